"""Describe modules as plain data, and rebuild them from it.

A file names what to build and its settings. Loading builds only what is registered here: the models of this package,
layers of ``torch.nn``, and what users register. Code is never read from a file.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from torch import nn

from anode.checks import describe, names_settings, nearest, require
from anode.ode.field import is_hooked
from anode.ode.solver import Solver

B = TypeVar("B", bound=Callable[..., nn.Module])
K = TypeVar("K", bound=nn.Module)
Settings = dict[str, Any]
SAVED = (type(None), str, int, float, tuple, list, dict, Solver, nn.Module)
"""The types of attributes that are saved in place of the argument that they held."""


@dataclass(frozen=True)
class Recipe:
    """How to build modules of one class, and how to read the settings of such a module.

    Attributes:
        name: The name in files.
        build: Builds a module from its settings.
        settings: Returns the settings of a module.
        origin: The Python module that registered it.
    """

    name: str
    build: Callable[..., nn.Module]
    settings: Callable[[nn.Module], Settings]
    origin: str


_RECIPES: dict[str, Recipe] = {}
_BY_CLASS: dict[type[nn.Module], Recipe] = {}


def register(builder: B, name: str | None = None) -> B:
    """Register a class or function so that the modules it builds can be saved and loaded. Use it as a decorator.

    The arguments of every call are recorded. They must be numbers, strings, ``None``, registered modules, layers of
    ``torch.nn``, an :class:`anode.Solver`, or lists, tuples and dictionaries of these. If a class stores an argument in
    the attribute of the same name, as in ``self.width = width``, the current value of the attribute is saved.

    Args:
        builder: A subclass of ``nn.Module``, or a function that returns a module. Write a function if the arguments of
            the class cannot be saved, or if you did not write the class.
        name: The name in files. Defaults to the name of the class or function.

    Returns:
        The class itself, or a function that also records its arguments.

    Raises:
        TypeError: If ``builder`` is neither a class of modules nor a function.
        ValueError: If the name is already registered, or missing because the function is a lambda.

    Example:
        >>> import torch, anode
        >>> @anode.register
        ... class Spiral(torch.nn.Module):
        ...     def __init__(self, speed=1.0):
        ...         super().__init__()
        ...         self.speed = speed
        ...     def forward(self, t, h):
        ...         return self.speed * torch.stack([h[..., 1], -h[..., 0]], dim=-1)
        >>> description_of(Spiral(speed=2.0))
        {'module': 'Spiral', 'settings': {'speed': 2.0}}
    """
    takes = "a subclass of torch.nn.Module, or a function that returns a module"
    is_module = isinstance(builder, nn.Module) or (isinstance(builder, type) and not issubclass(builder, nn.Module))
    if is_module or not (isinstance(builder, type) or inspect.isroutine(builder)):
        hint = "; register its class" if isinstance(builder, nn.Module) else ""
        raise TypeError(f"builder: takes {takes}, got {builder!r}{hint}")
    name = builder.__name__ if name is None else name
    named = isinstance(name, str) and name not in ("", "<lambda>")
    require(named, "name", name, "a name to use in files, which is required for a lambda")
    known = _RECIPES.get(name)
    if known is not None and (known.origin, known.build.__qualname__) != (builder.__module__, builder.__qualname__):
        raise ValueError(f"name: {name!r} is already registered by {known.origin}; pass another name=")
    signature = inspect.signature(builder)
    if isinstance(builder, type):
        _record_construction(builder, signature)
        _RECIPES[name] = _BY_CLASS[builder] = Recipe(name, builder, _recorded, builder.__module__)
        return builder

    @wraps(builder)
    def recording(*args: Any, **kwargs: Any) -> nn.Module:
        module = builder(*args, **kwargs)
        if not isinstance(module, nn.Module):
            raise TypeError(f"builder: takes {takes}, got {name}, which returned {describe(module)}")
        module.__dict__ |= {"_arguments": dict(signature.bind(*args, **kwargs).arguments), "_recipe": name}
        return module

    _RECIPES[name] = Recipe(name, recording, _recorded, builder.__module__)
    return recording  # type: ignore[return-value]


def _recorded(module: nn.Module) -> Settings:
    arguments: Settings | None = module.__dict__.get("_arguments")
    if arguments is None:
        kind = type(module).__name__
        raise TypeError(
            f"this {kind} was built before {kind} was registered, so its arguments are unknown; build it again"
        )
    now = {name: getattr(module, name, value) for name, value in module.__dict__.get("_kept", {}).items()}
    changed = {name: value for name, value in now.items() if value is not module.__dict__["_kept"][name]}
    return arguments | {name: value for name, value in changed.items() if isinstance(value, SAVED)}


def _as_given(value: Any) -> Any:
    """Copy a list or dictionary, because a constructor may modify it."""
    return value.copy() if isinstance(value, list | dict) else value


def _record_construction(kind: type[nn.Module], signature: inspect.Signature) -> None:
    made = kind.__init__

    @wraps(made)
    def construct(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        given = {name: _as_given(each) for name, each in bound.arguments.items()}
        made(self, *args, **kwargs)
        if type(self) is kind:  # a subclass has arguments of its own
            bound.apply_defaults()
            attributes = self.__dict__ | self._modules
            kept = {name: value for name, value in bound.arguments.items() if attributes.get(name, given) is value}
            self.__dict__ |= {"_arguments": given, "_kept": kept}

    kind.__init__ = construct  # type: ignore[method-assign]


def described(kind: type[K]) -> type[K]:
    """Register a class of this package, whose property ``settings`` returns the current arguments of a module."""
    _RECIPES[kind.__name__] = _BY_CLASS[kind] = Recipe(kind.__name__, kind, attrgetter("settings"), kind.__module__)
    return names_settings(kind)


def recipe_of(module: nn.Module) -> Recipe | None:
    """Return the recipe of a module; ``None`` if it is not registered or has hooks."""
    if is_hooked(module):
        return None
    by_function = module.__dict__.get("_recipe")
    return _BY_CLASS.get(type(module)) if by_function is None else _RECIPES.get(by_function)


def own_settings(module: nn.Module) -> Settings:
    """Return the settings that a module has now, without those of its parts; empty if only arguments are recorded."""
    recipe = recipe_of(module)
    found = {} if recipe is None or recipe.settings is _recorded else recipe.settings(module)
    return {name: value for name, value in found.items() if not isinstance(value, nn.Module | dict)}


def scripts_builders(module: nn.Module) -> dict[str, Callable[..., nn.Module]]:
    """Return the builders of a module's parts that the running script or notebook registered, by name."""
    recipes = filter(None, map(recipe_of, module.modules()))
    return {recipe.name: recipe.build for recipe in recipes if recipe.origin == "__main__"}


def restore(builders: dict[str, Callable[..., nn.Module]]) -> None:
    """Register what :func:`scripts_builders` returned in another process, unless it is already registered here."""
    for name, builder in builders.items():
        recipe = _RECIPES.setdefault(name, Recipe(name, builder, _recorded, "__main__"))
        if isinstance(builder, type):
            _BY_CLASS.setdefault(builder, recipe)


def description_of(value: Any, name: str = "model") -> Any:
    """Return the description of a module, or of an argument of one, as values that JSON can hold.

    Args:
        value: The module or argument.
        name: The name of the argument, for error messages.

    Raises:
        TypeError: If it cannot be described; the error says what to do.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}  # JSON has no NaN and infinity
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list):
        return [description_of(each, name) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [description_of(each, name) for each in value]}
    if isinstance(value, dict):
        return {"table": [[description_of(key, name), description_of(each, name)] for key, each in value.items()]}
    if isinstance(value, Solver):
        return {"solver": value.to_json()}
    recipe = recipe_of(value) if isinstance(value, nn.Module) else None
    if recipe is not None:
        settings = recipe.settings(value)
        return {"module": recipe.name, "settings": {key: description_of(each, key) for key, each in settings.items()}}
    if isinstance(value, nn.Module):
        raise TypeError(
            f"{name}: cannot describe how to build a {type(value).__name__}; decorate the class, or a function that "
            "builds it, with @anode.register" + ("; its hooks cannot be described" if is_hooked(value) else "")
        )
    if callable(value):
        return _description_of_builder(value, name)
    raise TypeError(
        f"{name}: only numbers, text, registered modules, and lists and dictionaries of these can be saved, "
        f"got {value!r}"
    )


def _description_of_builder(value: Any, name: str) -> dict[str, Any]:
    """Return the description of a registered class or function, optionally with arguments bound by ``partial``."""
    bound = value if isinstance(value, partial) else partial(value)
    recipe = next((recipe for recipe in _RECIPES.values() if recipe.build is bound.func), None)
    if recipe is None or bound.args:
        raise TypeError(
            f"{name}: cannot describe {value!r}; decorate the class or function with @anode.register, and bind "
            "arguments, if any, with functools.partial by keyword"
        )
    settings = {key: description_of(each, key) for key, each in bound.keywords.items()}
    return {"builder": recipe.name, "settings": settings}


def built_from(value: Any) -> Any:
    """Rebuild what :func:`description_of` described."""
    if isinstance(value, list):
        return [built_from(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "module" in value:
        return build(value["module"], value["settings"])
    if "builder" in value:
        builder, settings = _recipe(value["builder"]).build, value["settings"]
        return partial(builder, **{key: built_from(each) for key, each in settings.items()}) if settings else builder
    if "number" in value:
        return float(value["number"])
    if "solver" in value:
        return Solver.from_json(value["solver"])
    if "tuple" in value:
        return tuple(built_from(each) for each in value["tuple"])
    return {built_from(key): built_from(each) for key, each in value["table"]}


def build(name: str, settings: Settings) -> nn.Module:
    """Build a module from its registered name and the description of its settings."""
    recipe = _recipe(name)
    found = {key: built_from(each) for key, each in settings.items()}
    if recipe.origin == "torch.nn" and (odd := found.keys() & {"device", "dtype"}):
        raise ValueError(f"{name} takes no argument {min(odd)!r} here")
    if recipe.settings is not _recorded:
        return recipe.build(**found)
    signature = inspect.signature(recipe.build)
    if unknown := found.keys() - signature.parameters.keys():
        raise ValueError(f"{name} takes no argument {min(unknown)!r}")
    call = inspect.BoundArguments(signature, OrderedDict(found))
    return recipe.build(*call.args, **call.kwargs)


def _recipe(name: Any) -> Recipe:
    """Return the recipe with a name, or raise ``ValueError``."""
    recipe = _RECIPES.get(name) if isinstance(name, str) else None
    if recipe is None:
        hint = nearest(name, _RECIPES)
        raise ValueError(f"{name!r} is not registered; import the module that registers it first{hint}")
    return recipe


# -------------------------------------------------------------------------------------------------- Layers of torch.nn

LAYERS = (
    *(nn.Linear, nn.Bilinear, nn.Identity, nn.Flatten, nn.Unflatten, nn.MultiheadAttention, nn.Embedding),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.PixelShuffle, nn.ZeroPad2d),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.AvgPool3d, nn.MaxPool3d, nn.AdaptiveMaxPool2d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Upsample),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.PReLU, nn.Softmax, nn.LogSoftmax, nn.ReLU6, nn.GLU),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
)
"""The layers whose arguments are stored as attributes with the same names."""
NOT_STORED = {"device", "dtype", "_weight", "_freeze", "min_value", "max_value"}
"""The arguments that layers do not store; the default fits them all, because weights are stored otherwise."""
FLAGS = {"bias": ("bias", "in_proj_bias"), "add_bias_kv": ("bias_k",)}
"""The arguments that say whether a layer has a tensor, with the possible names of the tensor."""


def _from_attributes(layer: nn.Module) -> Settings:
    parameters = inspect.signature(type(layer)).parameters.values()
    named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in NOT_STORED]
    return {name: _attribute(layer, name) for name in named}


def _attribute(layer: nn.Module, name: str) -> Any:
    if name in FLAGS:
        return any(layer._parameters.get(tensor) is not None for tensor in FLAGS[name])
    return tuple(value) if isinstance(value := getattr(layer, name), tuple) else value


def _sequence(layers: dict[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


for _layer in LAYERS:
    _RECIPES[_layer.__name__] = _BY_CLASS[_layer] = Recipe(_layer.__name__, _layer, _from_attributes, "torch.nn")
_RECIPES["Sequential"] = _BY_CLASS[nn.Sequential] = Recipe(
    "Sequential", _sequence, lambda net: {"layers": dict(net.named_children())}, "torch.nn"
)
