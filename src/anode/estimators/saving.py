"""Save and load fitted estimators as JSON and safetensors. Loading never executes code from a file."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.models.description import built_from, description_of, restore, scripts_builders
from anode.models.flow import PAPER
from anode.models.saving import FORMAT as MODEL
from anode.models.saving import description, loadable, model_from, new_files, old_files
from anode.ode.solver import SETTINGS, Solver
from anode.storage import read_described, write_described
from anode.train.formats import from_json, to_json
from anode.train.history import History
from anode.version import __version__

FORMAT = "anode estimator 1"
ONLY_FOR_TRAINING = ("optimizer", "scheduler", "callbacks", "regularisers")
"""Parameters that predictions do not need: if one cannot be saved, it is omitted."""
MODULES = ("augment", "model_")
"""The attributes that may be modules."""


def save(estimator: Any, path: str | Path) -> Path:
    """Save a fitted estimator to ``<path>.json`` and ``<path>.safetensors``.

    Args:
        estimator: The estimator.
        path: Path of the two files, without a suffix or with ``.json``.

    Returns:
        The path of the JSON file.
    """
    described, weights = new_files(path)
    tensors: dict[str, Tensor] = {}
    content = {
        "format": FORMAT,
        "estimator": type(estimator).__name__,
        "parameters": _plain_parameters(estimator.get_params(deep=False), tensors),
        "fitted": {name: _plain(name, value, tensors) for name, value in learned(estimator).items()},
        "version": __version__,
    }
    return write_described(described, content, weights, tensors)


def load(kind: type[Any], path: str | Path) -> Any:
    """Load an estimator of a class that :func:`save` wrote, or raise :class:`anode.files.DamagedFileError`."""
    described, weights = old_files(path)
    content, tensors = read_described(described, weights)
    with loadable(described, f"an {kind.__name__}"):
        if content["format"] == MODEL:
            raise ValueError("it holds a model; call anode.load")
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        if content["estimator"] != kind.__name__:
            raise ValueError(f"it holds an {content['estimator']}; call anode.{content['estimator']}.load")
        parameters = {name: _parameter(name, value, tensors) for name, value in content["parameters"].items()}
        settings = {name: parameters.pop(name) for name in SETTINGS if name in parameters}  # before version 0.2
        if settings:
            parameters["solver"] = PAPER.but(**settings)
        estimator = kind(**parameters)
        for name, value in content["fitted"].items():
            if not name.endswith("_") or name.startswith("__"):
                raise ValueError(f"it has a learned attribute {name!r}")
            setattr(estimator, name, _learned(name, value, tensors))
        estimator._check_learned()
        return estimator


def check_sizes(estimator: Any, sizes: dict[str, int]) -> None:
    """Raise ``ValueError`` unless each of the learned arrays has the given number of values."""
    for name, size in sizes.items():
        if np.shape(getattr(estimator, name)) != (size,):
            raise ValueError(f"its {name} does not have {size} values")


def without_torch(state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an estimator with its solver and modules as descriptions and arrays."""
    found = dict(state)
    if isinstance(state.get("solver"), Solver):
        found["solver"] = description_of(state["solver"])
    for name in MODULES:
        if isinstance(state.get(name), torch.nn.Module):
            with suppress(TypeError):  # it is not registered, but it may still be picklable
                found[name] = _in_arrays(state[name])
    return found


def with_torch(state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an estimator from what :func:`without_torch` returned."""
    found = dict(state)
    if isinstance(state.get("solver"), dict):
        found["solver"] = built_from(state["solver"])
    for name in MODULES:
        if isinstance(state.get(name), dict):
            restore(state[name].get("builders", {}))
            weights = {key: torch.from_numpy(np.array(array)) for key, array in state[name]["weights"].items()}
            found[name] = model_from(state[name]["description"], weights)
    return found


def _in_arrays(module: torch.nn.Module) -> dict[str, Any]:
    weights = {name: tensor.numpy(force=True) for name, tensor in module.state_dict().items()}
    builders = scripts_builders(module)  # another process cannot import these; cloudpickle sends them by value
    return {"description": description(module), "weights": weights, **({"builders": builders} if builders else {})}


def learned(estimator: Any) -> dict[str, Any]:
    """Return the fitted attributes of an estimator, whose names end in an underscore in scikit-learn."""
    return {name: value for name, value in vars(estimator).items() if name.endswith("_")}


def _plain_parameters(parameters: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return parameters for JSON. Those that cannot be saved and are not needed are omitted, with a warning."""
    found, left_out = {}, []
    for name, value in parameters.items():
        try:
            is_module = isinstance(value, torch.nn.Module)
            found[name] = _plain(name, value, tensors) if is_module else description_of(value, name)
        except TypeError:
            if name not in ONLY_FOR_TRAINING:
                raise
            left_out.append(name)
    if left_out:
        names = ", ".join(left_out)
        what = (
            f"{names}: not saved, because a file cannot hold functions and such objects; predictions do not need them"
        )
        warnings.warn(f"{what}, but set them again before you fit the loaded estimator", UserWarning, stacklevel=4)
    return found


def _parameter(name: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a parameter from what :func:`_plain_parameters` returned."""
    is_module = isinstance(value, dict) and "model" in value
    return _learned(name, value, tensors) if is_module else built_from(value)


def _plain(name: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a fitted attribute or a module for JSON, and put its arrays into ``tensors``."""
    if isinstance(value, torch.nn.Module):
        tensors |= {f"{name}.{key}": tensor for key, tensor in value.state_dict().items()}
        return {"model": description(value)}
    if isinstance(value, History):
        return {"history": to_json(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        tensors[name] = torch.from_numpy(value)
        return {"array": str(value.dtype)}
    if isinstance(value, np.ndarray) and all(isinstance(each, str) for each in value.tolist()):
        return {"texts": value.tolist(), "dtype": "object" if value.dtype.kind == "O" else "str"}
    if isinstance(value, int | float | str | bool):
        return {"value": value}
    raise TypeError(f"{name}: only numbers and text can be saved, got {value!r}")


def _learned(name: str, value: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """Return a fitted attribute from what :func:`_plain` returned."""
    if "model" in value:
        prefix = f"{name}."
        weights = {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        return model_from(value["model"], weights)
    if "history" in value:
        return History(**from_json(value["history"]))
    if "array" in value:
        if np.dtype(value["array"]).kind not in "biuf":  # a dtype of texts could ask for any amount of memory
            raise ValueError(f"{name}: takes an array of numbers, got {value['array']!r}")
        return tensors[name].numpy().astype(value["array"])
    if "texts" in value:
        return np.array(value["texts"], dtype=object if value["dtype"] == "object" else str)
    return value["value"]
