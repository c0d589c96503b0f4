"""Compare the architectures of modules."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from anode.models.description import description_of


def configuration(module: nn.Module) -> Any:
    """Return the architecture of a module as values that JSON can hold, for comparisons.

    A module that is not registered is described by its class, parameters and parts. It cannot be rebuilt from that.
    """
    try:
        return description_of(module)
    except TypeError:
        kind = type(module)
        parameters = {name: [str(p.dtype), list(p.shape)] for name, p in module.named_parameters(recurse=False)}
        parts = {name: configuration(part) for name, part in module.named_children()}
        return {"class": f"{kind.__module__}.{kind.__qualname__}", "parameters": parameters, "parts": parts}


def difference(one: nn.Module, other: nn.Module) -> str:
    """Return how two modules differ, apart from the values of their parameters and buffers; empty if they do not.

    Unlike :func:`configuration`, this also compares attributes, frozen parameters, and tensors that are not buffers.
    """
    ours, theirs = _kinds(one), _kinds(other)
    parts, others = list(one.modules()), list(other.modules())
    alike = configuration(one) == configuration(other) and list(map(type, parts)) == list(map(type, others))
    pairs = zip(parts, others, strict=False)
    if own := next((type(a) for a, b in pairs if type(a) is not type(b) and repr(a) == repr(b)), None):
        return f"the class of a part: each has its own {own.__name__}, as torch.nn.utils.parametrize makes them"
    if not alike or ours.keys() != theirs.keys():
        return f"how they are built: {_first_difference(repr(one), repr(other))}"
    if name := next((name for name in ours if ours[name] != theirs[name]), ""):
        return f"{name}: {ours[name]} and {theirs[name]}"
    for part, its in zip(parts, others, strict=True):
        for name in part.__dict__.keys() & its.__dict__.keys():
            if not name.startswith("_") and not _same(part.__dict__[name], its.__dict__[name]):
                return f"{type(part).__name__}.{name}"
    return ""


def _first_difference(one: str, other: str) -> str:
    """Return the first lines in which two texts differ."""
    lines = zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing")
    return next((f"{mine.strip()} and {its.strip()}" for mine, its in lines if mine != its), one)


def _kinds(module: nn.Module) -> dict[str, str]:
    """Return shape, dtype and ``requires_grad`` of the module's tensors, by name."""
    return {
        name: f"{tuple(tensor.shape)} {tensor.dtype}, {'trained' if tensor.requires_grad else 'not trained'}"
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


def _same(mine: Any, its: Any) -> bool:
    """Whether two attributes are equal; only plain values and tensors are compared."""
    if isinstance(mine, Tensor) and isinstance(its, Tensor):
        return torch.equal(mine, its)
    return not isinstance(mine, str | int | float | tuple | Tensor) or bool(mine == its)
