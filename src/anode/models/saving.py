"""Models on disk: the weights as safetensors, how to build the model as JSON. Nothing is ever executed by loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import Words, number, require
from anode.files import DamagedFileError, read_described, write_described
from anode.models.description import build, description_of
from anode.models.ensemble import members_of, stack, unstack
from anode.models.flow import PAPER
from anode.models.randomness import apart
from anode.ode.solver import SETTINGS, Solver
from anode.version import __version__

FORMAT = "anode model 2"
BEFORE = "anode model 1"
"""What versions before 0.2 wrote: settings of the solver stood among those of the model."""


def save(model: nn.Module, path: str | Path) -> Path:
    """Write a model, or a stack of models, to ``<path>.json`` and ``<path>.safetensors``.

    Args:
        model: A model, a flow or a field. Parts that you wrote have to be registered, see :func:`anode.register`.
        path: The two files' name, without a suffix or with ``.json``.

    Returns:
        The JSON file.
    """
    if not isinstance(model, nn.Module):
        hint = "; call its own save(path)" if hasattr(model, "save") else ""
        raise TypeError(f"model: takes a torch.nn.Module, got {type(model).__name__}{hint}")
    described, weights = new_files(path)
    places: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict().items():  # tied ones are written twice
        tensors[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    return write_described(described, description(model), weights, tensors)


def description(model: nn.Module) -> dict[str, Any]:
    """How to build a model, as JSON has it."""
    members, tensors = members_of(model), model.state_dict()
    found = description_of(model if members is None else unstack(model)[0])
    content = {
        "format": FORMAT,
        "model": found["module"],
        "settings": found["settings"],
        "members": members,
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "version": __version__,
    }
    try:
        _check_shapes(content, tensors)
    except ValueError as error:
        raise TypeError(f"model: was changed after it was built, and cannot be built again: {error}") from None
    return content


def load(path: str | Path) -> Any:
    """Read a model that :func:`save` wrote.

    Args:
        path: The path that :func:`save` was given, or the JSON file itself.

    Raises:
        DamagedFileError: The files do not hold a model.

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
        return model_from(content, tensors)


def model_from(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """A model from its description and its weights."""
    if content["format"] not in (FORMAT, BEFORE):
        raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
    if content["format"] == BEFORE:
        content = {**content, "settings": _as_now(content["settings"])}
    _check_shapes(content, tensors)
    model, members = _built(content), content["members"]
    if members is not None:
        model = stack([model] * members)
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if name in tensors:
            value.data = value.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)
    for name in content.get("frozen", ()):
        model.get_parameter(name).requires_grad_(False)
    return model


def _as_now(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as versions before 0.2 wrote them, in the present form."""
    solver = {name: value for name, value in settings.items() if name in SETTINGS}
    others = {name: value for name, value in settings.items() if name not in SETTINGS}
    return {**others, "solver": {"solver": Solver.from_json(solver, PAPER).to_json()}} if solver else others


def _built(content: dict[str, Any]) -> nn.Module:
    with apart():
        return build(content["model"], content["settings"])


def _check_shapes(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` unless a described model has these tensors; nothing large is made to find out.

    Numbers in a description are anybody's, the tensors are as large as their file. A model is therefore made without
    values first, which takes no memory however large its layers, once it is known that there are not too many of them.
    """
    members = content["members"]
    number("members", members, whole=True, optional=True)
    require(members is None or len(tensors) > 0, "members", members, "nothing for a module without tensors")
    most = max((layers for layers in _layers_in(content["settings"])), default=0)
    require(most <= len(tensors), "layers", most, f"at most as many layers as there are tensors, {len(tensors)}")
    try:
        with torch.device("meta"):
            model = _built(content)
            expected = (model if members is None else stack([model])).state_dict()
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error):
            raise
        return  # a class of the user's computes with its tensors when it is made
    if expected.keys() != tensors.keys():
        odd = min(expected.keys() ^ tensors.keys())
        raise ValueError(
            f"its tensors are not those of the settings: {odd!r} is {'one too many' if odd in tensors else 'missing'}"
        )
    for name, tensor in tensors.items():
        own = expected[name].shape
        shape = tuple(own) if members is None else (members, *own[1:])
        if tuple(tensor.shape) != shape:
            raise ValueError(f"its tensor {name!r} has shape {tuple(tensor.shape)}, its settings say {shape}")
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise ValueError(f"its tensor {name!r} is of {tensor.dtype}, its settings say {expected[name].dtype}")


def _layers_in(value: Any) -> Iterator[int]:
    """The numbers of layers that a description asks for, at any depth."""
    if isinstance(value, dict):
        if isinstance(layers := value.get("layers"), int):
            yield layers
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _layers_in(each)


@contextmanager
def loadable(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong while something is made from a file's content into :class:`DamagedFileError`."""
    try:
        yield
    except DamagedFileError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise DamagedFileError(f"{path}: is not {what} that can be loaded ({reason})") from None


def files(path: str | Path) -> tuple[Path, Path]:
    """The JSON file and the safetensors file of a name."""
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path: takes the path of a file, got {path!r}")
    path = Path(path)
    path = path.with_suffix("") if path.suffix == ".json" else path
    return path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.safetensors")


def new_files(path: str | Path) -> tuple[Path, Path]:
    """The same for files that are to be written: the name must not be that of a folder."""
    found = files(path)
    require(not Path(path).is_dir(), "path", Words(f"the folder {path}"), "the name of a file, such as folder/model")
    return found
