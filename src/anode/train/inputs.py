"""What training takes: data and settings, for everybody or for each member; checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Number, Real
from typing import Any

import torch
from torch import Tensor

from anode.data.images import ImageData
from anode.data.toy import Dataset
from anode.ode.inputs import finite_rows, number, require

Data = Dataset | ImageData | tuple[Tensor, Tensor] | Sequence[Dataset]
"""Points and targets: for everybody, or a sequence with one for each member of a stack, all of one size.

Points may be images of bytes, ``torch.uint8``; a model sees them as numbers from 0 to 1.
"""


def tensors(name: str, data: Data, members: int | None) -> tuple[Tensor, Tensor]:
    """Points and targets, with a member dimension if there are members; checked."""
    if isinstance(data, Dataset):
        x, y = data.x, data.y
    elif isinstance(data, ImageData):
        x, y = data.images, data.labels
    elif isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        x, y = data  # type: ignore[assignment]
    else:
        return _of_each(name, data, members)
    require(x.ndim > 0 and y.ndim > 0 and len(x) == len(y), name, (tuple(x.shape), tuple(y.shape)), "as many x as y")
    require(len(x) > 0, name, tuple(x.shape), "at least one point")
    finite_rows(f"{name}, x", x)
    finite_rows(f"{name}, y", y)
    if members is None:
        return x, y
    return x.expand(members, *x.shape), y.expand(members, *y.shape)


def _of_each(name: str, data: Any, members: int | None) -> tuple[Tensor, Tensor]:
    fits = isinstance(data, Sequence) and len(data) == members and all(isinstance(each, Dataset) for each in data)
    takes = "a Dataset, an ImageData or a pair of tensors (x, y)" + (
        f", or {members} Datasets, one a member" if members else ""
    )
    if not fits:
        datasets = isinstance(data, list | tuple) and members and all(isinstance(each, Dataset) for each in data)
        require(not datasets, name, f"{len(data)} Datasets" if datasets else None, takes)
        raise TypeError(f"{name}: takes {takes}, got {type(data).__name__}")
    pairs = [tensors(f"{name}[{i}]", each, None) for i, each in enumerate(data)]
    sizes = {x.shape for x, _ in pairs}
    require(len(sizes) == 1, name, sorted(tuple(size) for size in sizes), "datasets of one size")
    shapes = {y.shape for _, y in pairs}
    require(len(shapes) == 1, name, sorted(tuple(shape) for shape in shapes), "targets of one shape")
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def per_member(name: str, value: Any, members: int | None, following: bool = False) -> list[Any]:
    """One value a member, from a sequence or from one for everybody, of which members may also count upwards."""
    if isinstance(value, Number):
        return [value + i * following for i in range(members or 1)]  # type: ignore[operator]
    values = list(value) if isinstance(value, Iterable) else []
    takes = "one number" if members is None else f"one number, or one for each of {members} members"
    require(members is not None and len(values) == members, name, value, takes)
    return values


def rate(name: str, value: Any) -> float:
    """A learning rate as a number of Python, whatever kind it is."""
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    number(name, float(value) if is_number else value)
    require(float(value) < math.inf, name, value, "a finite number")
    return float(value)


def whole(name: str, value: Any) -> int:
    """A seed as a whole number of Python, whatever kind it is."""
    fits = isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < 2**40
    require(fits, name, value, "whole numbers from 0 to below 2**40")
    return int(value)
