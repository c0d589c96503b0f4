"""Models on disk: the weights as safetensors, how to build the model as JSON. Nothing is ever executed by loading."""

from __future__ import annotations

from pathlib import Path

import anode
from anode.files import DamagedFileError, read_json, read_tensors, write_json, write_tensors
from anode.models.ensemble import stack
from anode.models.model import Model
from anode.models.nets import NeuralODE, ResNet
from anode.ode.inputs import lookup

FORMAT = "anode model 1"
CLASSES: dict[str, type[Model]] = {"NeuralODE": NeuralODE, "ResNet": ResNet}


def save(model: Model, path: str | Path) -> Path:
    """Write a model, or a stack of models, to ``<path>.json`` and ``<path>.safetensors``.

    Args:
        model: A :class:`anode.NeuralODE` or a :class:`anode.ResNet`.
        path: The two files' name without their suffix.

    Returns:
        The JSON file.
    """
    kind = type(model).__name__
    if CLASSES.get(kind) is not type(model):
        raise TypeError(f"model: takes a {' or a '.join(CLASSES)}, got {kind}; save its state_dict() with safetensors")
    described, weights = _files(path)
    write_tensors(weights, model.state_dict())
    content = {
        "format": FORMAT,
        "model": kind,
        "settings": model.settings,
        "members": model.members,
        "version": anode.__version__,
    }
    return write_json(described, content, indent=1)


def load(path: str | Path) -> Model:
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
        model = build(**content["settings"])
        if members is not None:
            model = stack([build(**content["settings"]) for _ in range(members)])
        tensors = read_tensors(weights)
        if tensors:
            model.to(next(iter(tensors.values())).dtype)
        model.load_state_dict(tensors)
    except DamagedFileError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedFileError(f"{described}: is not a model that can be loaded ({error})") from None
    return model


def _files(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.safetensors")
