"""Points and targets, checked, and the batches that are taken from them in the order that the seed says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.checks import finite_rows, require
from anode.data.images import ImageData
from anode.data.toy import Dataset
from anode.models.model import as_input


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch of a run."""
    return seed * 1_000_003 + epoch


@dataclass(frozen=True)
class Points:
    """Points and their targets.

    Attributes:
        x: [points, ...], or [members, points, ...]; whole numbers from 0 to 255 stand for values from 0 to 1.
        y: The same.
        members: How many members have points of their own; ``None`` for a model by itself.
        weights: How much each point counts, [points] or [members, points], 1 on average; ``None`` if all do alike.
    """

    x: Tensor
    y: Tensor
    members: int | None
    weights: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0 if self.members is None else 1]

    def take(self, batch: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Some points, their targets, and their weights if they have some.

        Args:
            batch: Their numbers, [points] or [members, points].
            like: In whose dtype and on whose device they are wanted.
        """
        which: tuple[Tensor, ...] = (batch,)
        if self.members is not None:
            which = (torch.arange(self.members, device=batch.device).unsqueeze(1), batch)
        weights = None if self.weights is None else self.weights[which].to(like)
        return as_input(self.x[which], like), self.y[which].to(like.device), weights

    def first(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first point, its target, and its weight if it has one."""
        cut = (slice(1),) if self.members is None else (slice(None), slice(1))
        weights = None if self.weights is None else self.weights[cut].to(like)
        return self.x[cut].to(like.device), self.y[cut].to(like.device), weights

    def in_turn(self, batch_size: int) -> tuple[Tensor, ...]:
        """All numbers of points in batches, in their order."""
        numbers = torch.arange(len(self), device="cpu")
        return (numbers if self.members is None else numbers.expand(self.members, -1)).split(batch_size, dim=-1)


@dataclass(frozen=True)
class Order:
    """In which order points are seen: a function of seed and epoch alone, so that it can be taken up anywhere.

    Attributes:
        seeds: One for each member, or the only one.
        points: How many there are.
        batch_size: How many at once; the last of an epoch may be fewer.
        stacked: Whether there are members.
    """

    seeds: Sequence[int]
    points: int
    batch_size: int
    stacked: bool
    _orders: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)  # of the epoch asked for last

    @property
    def batches(self) -> int:
        """How many batches make an epoch."""
        return -(-self.points // self.batch_size)

    def of_epoch(self, epoch: int) -> Tensor:
        """The numbers of the points in their order, [points] or [members, points]."""
        if epoch in self._orders:
            return self._orders[epoch]
        orders = []
        for seed in self.seeds:
            generator = torch.Generator("cpu").manual_seed(epoch_seed(seed, epoch))
            orders.append(torch.randperm(self.points, generator=generator, device="cpu"))
        self._orders.clear()
        self._orders[epoch] = torch.stack(orders) if self.stacked else orders[0]
        return self._orders[epoch]

    def batch(self, iteration: int) -> Tensor:
        """The numbers of the points of an iteration, [points] or [members, points]."""
        epoch, index = divmod(iteration, self.batches)
        return self.of_epoch(epoch)[..., index * self.batch_size : (index + 1) * self.batch_size]


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
    return tuples or isinstance(data, Dataset | ImageData | Tensor)


def no_targets(x: Tensor) -> Tensor:
    """What stands for targets beside points that have none: no numbers for each point."""
    return x.new_empty((*x.shape[:1], 0), dtype=torch.float32)


def _parts(data: Any) -> tuple[Tensor, ...]:
    if isinstance(data, Tensor):
        return data, no_targets(data)
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
    takes += "; x alone if there are no targets"
    takes += f"; or {members} datasets, one per member" if members else ""
    several = members is not None and isinstance(data, list | tuple) and all(is_whole(each) for each in data)
    if not several:
        raise TypeError(f"{name}: takes {takes}, got {_kind(data)}")
    require(len(data) == members, name, len(data), takes)
    found = [points_of(f"{name}[{i}]", each, None) for i, each in enumerate(data)]
    parts = [[part for part in (each.x, each.y, each.weights) if part is not None] for each in found]
    shapes = {tuple(tuple(part.shape) for part in each) for each in parts}
    require(len(shapes) == 1, name, sorted(shapes), "data of one size, and targets of one shape")
    stacked = [torch.stack(same) for same in zip(*parts, strict=True)]
    return Points(stacked[0], stacked[1], members, *stacked[2:])


def _kind(data: Any) -> str:
    """What data are instead of points and targets, and how to make these of them."""
    if not isinstance(data, list | tuple):
        hint = "; pass DataLoader(data, batch_size=64)" if isinstance(data, torch.utils.data.Dataset) else ""
        return f"{type(data).__name__}{hint}"
    kinds = [type(part).__name__ for part in data[:4]]
    convert = "; convert its parts with torch.as_tensor(part, dtype=torch.float32), class numbers with torch.int64"
    hint = convert if any(isinstance(part, np.ndarray | list) for part in data) else ""
    return f"a {type(data).__name__} of {len(data)} parts ({', '.join(kinds)}){hint}"
