"""What training takes: data and settings, for everybody or for each member; checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Number, Real
from typing import Any

import torch
from torch import Tensor

from anode.checks import finite_rows, number, require
from anode.data.images import ImageData
from anode.data.toy import Dataset
from anode.train.points import Points
from anode.train.streams import Batches, Stream, is_stream

Whole = Dataset | ImageData | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
Data = Whole | Sequence[Whole] | Batches
"""Points and targets, perhaps with weights: for all members, or one per member of a stack, all of one size; or batches.

Points may be images of bytes, ``torch.uint8``; a model sees them as numbers from 0 to 1.
"""


def data_of(name: str, data: Data, members: int | None, seed: int) -> Points | Stream:
    """What to train on or to look at: points and targets, or batches of them; checked."""
    if isinstance(data, list | tuple):  # for a stack, datasets of its members
        comes_in_batches = members is None and len(data) > 0 and all(isinstance(b, tuple) and is_whole(b) for b in data)
    else:
        comes_in_batches = not is_whole(data) and is_stream(data)
    return Stream(name, data, members, seed) if comes_in_batches else points_of(name, data, members)


def points_of(name: str, data: Any, members: int | None) -> Points:
    """Points, targets and weights, with a member dimension if there are members; checked."""
    if not is_whole(data):
        return _of_each(name, data, members)
    x, y, *weights = _parts(data)
    require(x.ndim > 0 and y.ndim > 0 and len(x) == len(y), name, (tuple(x.shape), tuple(y.shape)), "as many x as y")
    require(len(x) > 0, name, tuple(x.shape), "at least one point")
    finite_rows(f"{name}, x", x)
    finite_rows(f"{name}, y", y)
    parts = [x, y, *(_checked_weights(name, each, len(x)) for each in weights)]
    if members is not None:
        parts = [part.expand(members, *part.shape) for part in parts]
    return Points(parts[0], parts[1], members, *parts[2:])


def is_whole(data: Any) -> bool:
    """Whether data are points and targets."""
    tuples = isinstance(data, tuple) and len(data) in (2, 3) and all(isinstance(part, Tensor) for part in data)
    return tuples or isinstance(data, Dataset | ImageData)


def _parts(data: Any) -> tuple[Tensor, ...]:
    if isinstance(data, Dataset):
        return data.x, data.y
    return (data.images, data.labels) if isinstance(data, ImageData) else data


def _checked_weights(name: str, weights: Tensor, points: int) -> Tensor:
    """Weights, one of them on average."""
    shape = tuple(weights.shape)
    require(shape == (points,), f"{name}, weights", shape, f"one number a point, shape {(points,)}")
    finite_rows(f"{name}, weights", weights)
    lowest, total = float(weights.min()), float(weights.sum())
    require(
        lowest >= 0 < total, f"{name}, weights", lowest if lowest < 0 else "only 0", "numbers from 0, not all of them 0"
    )
    return weights / weights.double().mean()


def _of_each(name: str, data: Any, members: int | None) -> Points:
    takes = "a Dataset, an ImageData, tensors (x, y) or (x, y, weights), or batches of these such as a DataLoader"
    takes += f"; or {members} datasets, one per member" if members else ""
    several = members is not None and isinstance(data, list | tuple) and all(is_whole(each) for each in data)
    if not several:
        raise TypeError(f"{name}: takes {takes}, got {type(data).__name__}")
    require(len(data) == members, name, len(data), takes)
    found = [points_of(f"{name}[{i}]", each, None) for i, each in enumerate(data)]
    parts = [[part for part in (each.x, each.y, each.weights) if part is not None] for each in found]
    shapes = {tuple(tuple(part.shape) for part in each) for each in parts}
    require(len(shapes) == 1, name, sorted(shapes), "data of one size, and targets of one shape")
    stacked = [torch.stack(same) for same in zip(*parts, strict=True)]
    return Points(stacked[0], stacked[1], members, *stacked[2:])


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
