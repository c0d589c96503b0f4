"""Fitted estimators on disk, as JSON and safetensors: nothing is ever executed by loading."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.files import read_described, write_described
from anode.models.description import built_from, description_of
from anode.models.flow import PAPER
from anode.models.saving import description, files, loadable, model_from
from anode.ode.solver import SETTINGS, Solver
from anode.train.formats import from_json, to_json
from anode.train.history import History
from anode.version import __version__

FORMAT = "anode estimator 1"


def save(estimator: Any, path: str | Path) -> Path:
    """Write a fitted estimator to ``<path>.json`` and ``<path>.safetensors``.

    Args:
        estimator: The estimator.
        path: The two files' name, without a suffix or with ``.json``.

    Returns:
        The JSON file.
    """
    described, weights = files(path)
    tensors: dict[str, Tensor] = {}
    fitted = {name: _plain(name, value, tensors) for name, value in learned(estimator).items()}
    content = {
        "format": FORMAT,
        "estimator": type(estimator).__name__,
        "parameters": {name: description_of(value, name) for name, value in estimator.get_params(deep=False).items()},
        "fitted": fitted,
        "version": __version__,
    }
    return write_described(described, content, weights, tensors)


def load(kind: type[Any], path: str | Path) -> Any:
    """Read an estimator of a class that :func:`save` wrote; :class:`anode.files.DamagedFileError` if it is damaged."""
    described, weights = files(path)
    content, tensors = read_described(described, weights)
    with loadable(described, f"an {kind.__name__}"):
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        if content["estimator"] != kind.__name__:
            raise ValueError(f"it holds an {content['estimator']}")
        parameters = {name: built_from(value) for name, value in content["parameters"].items()}
        settings = {name: parameters.pop(name) for name in SETTINGS if name in parameters}  # before version 0.2
        if settings:
            parameters["solver"] = PAPER.but(**settings)
        estimator = kind(**parameters)
        for name, value in content["fitted"].items():
            if not name.endswith("_") or name.startswith("__"):
                raise ValueError(f"it has a learned attribute {name!r}")
            setattr(estimator, name, _learned(name, value, tensors))
        check_learned(estimator)
        return estimator


def check_learned(estimator: Any) -> None:
    """Raise ``ValueError`` unless everything that predictions need is there, and of the size it should have."""
    columns, outputs = estimator.n_features_in_, estimator.model_.head.bias.shape[-1]
    settings = estimator.model_.settings
    seen = math.prod(settings["image"]) if "image" in settings else settings["in_features"]
    if columns != seen:
        raise ValueError(f"its n_features_in_ is {columns!r}, its model takes {seen}")
    sizes = {"offset_": columns, "scale_": columns, "classes_": outputs}
    sizes |= {"target_offset_": outputs, "target_scale_": outputs}
    of_kind = ("classes_",) if hasattr(type(estimator), "predict_proba") else ("target_offset_", "target_scale_")
    for name in ("offset_", "scale_", *of_kind):
        if np.shape(getattr(estimator, name)) != (sizes[name],):
            raise ValueError(f"its {name} has not {sizes[name]} values")


def without_torch(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an estimator with its solver and model as descriptions and arrays."""
    if isinstance(state.get("solver"), Solver):
        state = {**state, "solver": description_of(state["solver"])}
    if "model_" not in state:
        return state
    weights = {name: tensor.numpy(force=True) for name, tensor in state["model_"].state_dict().items()}
    return {**state, "model_": {"description": description(state["model_"]), "weights": weights}}


def with_torch(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an estimator from what :func:`without_torch` made of them."""
    if isinstance(state.get("solver"), dict):
        state = {**state, "solver": built_from(state["solver"])}
    if "model_" not in state:
        return state
    weights = {name: torch.from_numpy(np.array(array)) for name, array in state["model_"]["weights"].items()}
    return {**state, "model_": model_from(state["model_"]["description"], weights)}


def learned(estimator: Any) -> dict[str, Any]:
    """What fitting has added to an estimator, by scikit-learn's convention about names."""
    return {name: value for name, value in vars(estimator).items() if name.endswith("_")}


def _plain(name: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """A learned attribute as JSON has it; its arrays go to the tensors."""
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
    raise TypeError(f"{name}: takes numbers and text to be saved, got {value!r}")


def _learned(name: str, value: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """A learned attribute from what :func:`_plain` made of it."""
    if "model" in value:
        prefix = f"{name}."
        weights = {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        return model_from(value["model"], weights)
    if "history" in value:
        return History(**from_json(value["history"]))
    if "array" in value:
        if np.dtype(value["array"]).kind not in "biuf":  # texts can have any length
            raise ValueError(f"{name}: takes an array of numbers, got {value['array']!r}")
        return tensors[name].numpy().astype(value["array"])
    if "texts" in value:
        return np.array(value["texts"], dtype=object if value["dtype"] == "object" else str)
    return value["value"]
