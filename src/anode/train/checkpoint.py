"""Models on disk: the weights as safetensors, how to build the model as JSON. Nothing is ever executed by loading."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import anode
from anode.files import DamagedFileError, read_json, read_tensors, write_json, write_tensors
from anode.models.ensemble import stack
from anode.models.nets import ImageNeuralODE, NeuralODE, ResNet
from anode.ode.gradients import Continuous, Discrete, Stored
from anode.ode.inputs import lookup

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
    kind = type(model).__name__
    if CLASSES.get(kind) is not type(model):
        raise TypeError(f"model: takes one of {', '.join(CLASSES)}, got {kind}; save its state_dict() with safetensors")
    described, weights = _files(path)
    content = {
        "format": FORMAT,
        "model": kind,
        "settings": {name: _as_json(value) for name, value in model.settings.items()},
        "members": model.members,
        "version": anode.__version__,
    }
    write_tensors(weights, model.state_dict())
    return write_json(described, content, indent=1)


def _as_json(value: Any) -> Any:
    if isinstance(value, Continuous):
        return {"continuous": asdict(value)}
    if isinstance(value, Discrete | Stored):
        return type(value).__name__.lower()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    raise TypeError(f"model: takes settings that are text or numbers to be saved, got {value!r}")


def _from_json(value: Any) -> Any:
    return Continuous(**value["continuous"]) if isinstance(value, dict) else value


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
    described, weights = _files(path)
    content = read_json(described)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        build = lookup("model", content["model"], CLASSES)
        members = content["members"]
        settings = {name: _from_json(value) for name, value in content["settings"].items()}
        with torch.random.fork_rng(devices=[]):
            models = [build(**settings) for _ in range(members or 1)]
        model = models[0] if members is None else stack(models)
        tensors = read_tensors(weights)
        if tensors:
            model.to(next(iter(tensors.values())).dtype)
        model.load_state_dict(tensors)
    except DamagedFileError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        what = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{described}: is not a model that can be loaded ({what})") from None
    return model


def _files(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    path = path.with_suffix("") if path.suffix == ".json" else path
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.safetensors")
