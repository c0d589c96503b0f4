"""Models on disk: the weights as safetensors, how to build the model as JSON. Nothing is ever executed by loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anode.checks import lookup, number, require
from anode.files import DamagedFileError, read_described, write_described
from anode.models.ensemble import stack
from anode.models.flow import PAPER
from anode.models.nets import ImageNeuralODE, NeuralODE, ResNet
from anode.models.randomness import apart
from anode.ode.solver import SETTINGS, Solver
from anode.version import __version__

FORMAT = "anode model 1"
Savable = NeuralODE | ResNet | ImageNeuralODE
CLASSES: dict[str, type[Savable]] = {each.__name__: each for each in (NeuralODE, ResNet, ImageNeuralODE)}


def save(model: Savable, path: str | Path) -> Path:
    """Write a model, or a stack of models, to ``<path>.json`` and ``<path>.safetensors``.

    Args:
        model: A :class:`anode.NeuralODE`, a :class:`anode.ResNet` or an :class:`anode.ImageNeuralODE`.
        path: The two files' name, without a suffix or with ``.json``.

    Returns:
        The JSON file.
    """
    described, weights = files(path)
    return write_described(described, description(model), weights, model.state_dict())


def description(model: Savable) -> dict[str, Any]:
    """How to build a model, as JSON has it."""
    kind = type(model).__name__
    if CLASSES.get(kind) is not type(model):
        raise TypeError(f"model: takes one of {', '.join(CLASSES)}, got {kind}; save its state_dict() with safetensors")
    solver = {} if isinstance(model, ResNet) else model.flow.solver.to_json(PAPER)
    return {
        "format": FORMAT,
        "model": kind,
        "settings": {name: _as_json(value) for name, value in model.settings.items()} | solver,
        "members": model.members,
        "version": __version__,
    }


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    raise TypeError(f"model: takes settings that are text or numbers to be saved, got {value!r}")


def load(path: str | Path) -> Savable:
    """Read a model that :func:`save` wrote; :class:`anode.files.DamagedFileError` if it is damaged.

    Example:
        >>> import anode, tempfile, pathlib, torch
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> model = anode.NeuralODE(2, 1, augment=1)
        >>> _ = anode.save(model, folder / "model")
        >>> torch.equal(anode.load(folder / "model")(torch.ones(1, 2)), model(torch.ones(1, 2)))
        True
    """
    described, weights = files(path)
    content, tensors = read_described(described, weights)
    with loadable(described, "a model"):
        return build(content, tensors)


def build(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> Savable:
    """A model from its description and its weights."""
    if content["format"] != FORMAT:
        raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
    kind, members = lookup("model", content["model"], CLASSES), content["members"]
    settings = dict(content["settings"])
    solver = {name: settings.pop(name) for name in SETTINGS if name in settings}
    if solver:
        settings["solver"] = Solver.from_json(solver, PAPER)
    _check_shapes(kind, settings, members, tensors)
    with apart():
        model = kind(**settings)
    if members is not None:
        model = stack([model] * members)
    if tensors:
        model.to(next(iter(tensors.values())).dtype)
    model.load_state_dict(tensors)
    return model


def _check_shapes(kind: type[Savable], settings: dict[str, Any], members: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` unless a model of these settings has these tensors; nothing large is made to find out.

    Numbers in a description are anybody's, the tensors are as large as their file. A model is therefore made without
    values first, which takes no memory however large its layers, once it is known that there are not too many of them.
    """
    number("members", members, whole=True, optional=True)
    layers = settings.get("layers", 1)
    takes = f"at most as many layers as there are tensors, {len(tensors)}"
    require(not isinstance(layers, int) or layers <= len(tensors), "layers", layers, takes)
    with torch.device("meta"):
        expected = kind(**settings).state_dict()
    if expected.keys() != tensors.keys():
        odd = min(expected.keys() ^ tensors.keys())
        raise ValueError(
            f"its tensors are not those of the settings: {odd!r} is {'one too many' if odd in tensors else 'missing'}"
        )
    stacked = () if members is None else (members,)
    for name, tensor in tensors.items():
        shape = (*stacked, *expected[name].shape)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"its tensor {name!r} has shape {tuple(tensor.shape)}, its settings say {shape}")


@contextmanager
def loadable(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong while something is made from a file's content into :class:`DamagedFileError`."""
    try:
        yield
    except DamagedFileError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{path}: is not {what} that can be loaded ({reason})") from None


def files(path: str | Path) -> tuple[Path, Path]:
    """The JSON file and the safetensors file of a name."""
    path = Path(path)
    path = path.with_suffix("") if path.suffix == ".json" else path
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.safetensors")
