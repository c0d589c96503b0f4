"""Save and load models: weights as safetensors, architecture as JSON. Loading never executes code from a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOENT
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anode.checks import Words, describe, number, require
from anode.files import DamagedFileError
from anode.models.description import build, description_of, own_settings
from anode.models.ensemble import members_of, stack, unstack
from anode.models.flow import PAPER
from anode.models.randomness import apart
from anode.ode.solver import SETTINGS, Solver
from anode.storage import read_described, read_json, write_described
from anode.version import __version__

FORMAT = "anode model 2"
BEFORE = "anode model 1"
"""The format of versions before 0.2, in which settings of the solver were among those of the model."""


def save(model: nn.Module, path: str | Path) -> Path:
    """Save a model, or a stack of models, to ``<path>.json`` and ``<path>.safetensors``.

    Args:
        model: A model, flow or field. Register your own modules with :func:`anode.register` first.
        path: Path of the two files, without a suffix or with ``.json``.

    Returns:
        The path of the JSON file.

    Raises:
        TypeError: If the model cannot be described, for example because a part is not registered.
        OSError: If the files cannot be written.
    """
    return save_noted(model, path, {})


def save_noted(model: nn.Module, path: str | Path, notes: dict[str, Any]) -> Path:
    """Save a model like :func:`save`, with notes in the JSON file that :func:`notes_of` reads."""
    if not isinstance(model, nn.Module):
        hint = "; call its own save(path)" if hasattr(model, "save") else ""
        raise TypeError(f"model: takes a torch.nn.Module, got {type(model).__name__}{hint}")
    lazy = next((name for name, each in all_tensors(model) if is_lazy(each)), None)
    takes = "a model whose lazy layers know their sizes; call it on a batch first"
    require(lazy is None, "model", Words(f"one whose {lazy} has no size yet"), takes)
    extra = next((name for name, each in model.state_dict().items() if not isinstance(each, Tensor)), None)
    takes = "modules whose state is tensors: register what get_extra_state returns as a buffer"
    require(extra is None, "model", Words(f"one with {extra}"), takes)
    described, weights = new_files(path)
    places: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict().items():  # tied parameters are written twice
        tensors[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    content = {**description(model), "notes": notes} if notes else description(model)
    return write_described(described, content, weights, tensors)


def notes_of(path: str | Path) -> dict[str, Any]:
    """Return the notes of a saved model that can be loaded; empty if it has none."""
    found: dict[str, Any] = read_json(files(path)[0]).get("notes", {})
    return found


def description(model: nn.Module) -> dict[str, Any]:
    """Return the description of a model that is saved as JSON."""
    members, tensors = members_of(model), model.state_dict()
    single = model if members is None else unstack(model)[0]
    found = description_of(single)
    content = {
        "format": FORMAT,
        "model": found["module"],
        "settings": found["settings"],
        "members": members,
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "tied": _tied(model),
        "version": __version__,
    }
    try:
        rebuilt = _check_shapes(content, tensors)
        if rebuilt is not None:
            _check_parts(single, rebuilt)
    except ValueError as error:
        hint = "build it with what has changed, or register a function that does, see anode.register"
        raise TypeError(f"model: was modified after it was built, and cannot be rebuilt: {error}; {hint}") from None
    return content


def all_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers with their names."""
    return [*model.named_parameters(), *model.named_buffers()]


def _tied(model: nn.Module) -> list[list[str]]:
    """Return the names of parameters that are the same tensor, in groups."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def load(path: str | Path) -> Any:
    """Load a model that :func:`save` wrote.

    Loading does not execute code from the files. It builds only the classes of this package, layers of ``torch.nn``,
    and what you have registered with :func:`anode.register`.

    Args:
        path: The path that was passed to :func:`save`, or one of the two files.

    Raises:
        FileNotFoundError: If a file does not exist.
        DamagedFileError: If the files do not hold a model, or a part of it is not registered.

    Example:
        >>> import anode, tempfile, pathlib, torch
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> model = anode.NeuralODE(2, 1, augment=1)
        >>> _ = anode.save(model, folder / "model")
        >>> torch.equal(anode.load(folder / "model")(torch.ones(1, 2)), model(torch.ones(1, 2)))
        True
    """
    described, weights = old_files(path)
    content, tensors = read_described(described, weights)
    with loadable(described, "a model"):
        return model_from(content, tensors)


def model_from(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Build a model from its description and its weights."""
    if "estimator" in content:
        raise ValueError(f"it holds an {content['estimator']}; call anode.{content['estimator']}.load")
    if content["format"] not in (FORMAT, BEFORE):
        raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
    if content["format"] == BEFORE:
        content = {**content, "settings": _as_now(content["settings"])}
    _check_shapes(content, tensors)
    model, members = _built(content), content["members"]
    if members is not None:
        model = stack([model] * members)
    for first, *others in content.get("tied", ()):
        for name in others:
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner)._parameters[leaf] = model.get_parameter(first)
    for name, value in all_tensors(model):
        if name in tensors:
            value.data = value.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)
    for name in content.get("frozen", ()):
        model.get_parameter(name).requires_grad_(False)
    return model


def _as_now(settings: dict[str, Any]) -> dict[str, Any]:
    """Convert settings written by versions before 0.2 to the current format."""
    solver = {name: value for name, value in settings.items() if name in SETTINGS}
    others = {name: value for name, value in settings.items() if name not in SETTINGS}
    return {**others, "solver": {"solver": Solver.from_json(solver, PAPER).to_json()}} if solver else others


def _built(content: dict[str, Any]) -> nn.Module:
    with apart():
        return build(content["model"], content["settings"])


def _check_shapes(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """Raise ``ValueError`` unless a described model has these tensors, without allocating memory.

    A description from an untrusted file may ask for huge layers. The number of layers is therefore checked first, and
    then the model is built on the meta device, where tensors take no memory.

    Returns:
        A member of the model on the meta device; ``None`` if it cannot be built there.
    """
    members = content["members"]
    number("members", members, whole=True, optional=True)
    require(members is None or len(tensors) > 0, "members", members, "null for a module without tensors")
    most = max((layers for layers in _layers_in(content["settings"])), default=0)
    require(most <= len(tensors), "layers", most, f"at most {len(tensors)}, the number of tensors")
    try:
        with torch.device("meta"):
            model = _built(content)
            expected = (model if members is None else stack([model])).state_dict()
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error):
            raise
        return None  # the constructor of a user's class computes with its tensors
    if expected.keys() != tensors.keys():
        odd = min(expected.keys() ^ tensors.keys())
        raise ValueError(
            f"its tensors do not match its settings: {odd!r} is {'not expected' if odd in tensors else 'missing'}"
        )
    for name, tensor in tensors.items():
        own = expected[name].shape
        shape = tuple(own) if members is None else (members, *own[1:])
        if tuple(tensor.shape) != shape:
            raise ValueError(f"its tensor {name!r} has shape {tuple(tensor.shape)}, its settings say {shape}")
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise ValueError(f"its tensor {name!r} is of {tensor.dtype}, its settings say {expected[name].dtype}")
    return model


def _check_parts(model: nn.Module, rebuilt: nn.Module) -> None:
    """Raise ``ValueError`` unless a model has the parts of the one that is built from its description."""
    pairs = zip_longest(*(each.named_modules(remove_duplicate=False) for each in (model, rebuilt)), fillvalue=None)
    for ours, theirs in pairs:
        if ours is None or theirs is None or ours[0] != theirs[0]:
            names = " and ".join(repr(each[0]) if each else "nothing" for each in (ours, theirs))
            raise ValueError(f"its parts differ from those of its settings in {names}")
        name, part, its = ours[0] or type(model).__name__, ours[1], theirs[1]
        if type(part).__qualname__ != type(its).__qualname__:
            raise ValueError(f"its part {name!r} is {describe(part)}, its settings say {describe(its)}")
        now, then = own_settings(part), own_settings(its)
        for key in now.keys() | then.keys():
            if description_of(now.get(key), key) != description_of(then.get(key), key):
                raise ValueError(f"{name}.{key} is {now.get(key)!r}, its settings say {then.get(key)!r}")


def _layers_in(value: Any) -> Iterator[int]:
    """Yield the numbers of layers in a description, at any depth."""
    if isinstance(value, dict):
        if isinstance(layers := value.get("layers"), int):
            yield layers
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _layers_in(each)


@contextmanager
def loadable(path: Path, what: str) -> Iterator[None]:
    """Convert any error in the body, which builds an object from a file's content, to :class:`DamagedFileError`."""
    try:
        yield
    except DamagedFileError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{path}: is not {what} that can be loaded ({reason})") from None


def files(path: str | Path) -> tuple[Path, Path]:
    """Return the JSON file and the safetensors file of a path."""
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path: takes the path of a file, got {path!r}")
    path = Path(path)
    path = path.with_suffix("") if path.suffix in (".json", ".safetensors") else path
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.safetensors")


def old_files(path: str | Path) -> tuple[Path, Path]:
    """Return the files of a path to read, or raise ``FileNotFoundError`` if there is no JSON file."""
    found = files(path)
    if not found[0].exists():
        inside = Path(path) / "model"
        what = str(inside) if inside.with_suffix(".json").exists() else "the path that it was saved to"
        raise FileNotFoundError(ENOENT, f"No such file; pass {what}", str(found[0]))
    return found


def new_files(path: str | Path) -> tuple[Path, Path]:
    """Return the files of a path to write to, or raise ``ValueError`` if the path is a folder."""
    found = files(path)
    require(not Path(path).is_dir(), "path", Words(f"the folder {path}"), "the name of a file, such as folder/model")
    return found
