"""Points and targets, and the random order in which batches are taken from them."""

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
    """Return the random seed of an epoch."""
    return seed * 1_000_003 + epoch


@dataclass(frozen=True)
class Points:
    """Points and their targets.

    Attributes:
        x: Points, [points, ...] or [members, points, ...]. ``uint8`` is scaled to [0, 1] when a batch is taken.
        y: Targets, [points, ...] or [members, points, ...].
        members: Number of members; ``None`` for a single model.
        weights: Weights of the points, [points] or [members, points], with mean 1; ``None`` if all are equal.
    """

    x: Tensor
    y: Tensor
    members: int | None
    weights: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0 if self.members is None else 1]

    def take(self, batch: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return some points, their targets, and their weights or ``None``.

        Args:
            batch: Indices of the points, [points] or [members, points].
            like: A tensor with the dtype and device to convert to.
        """
        which: tuple[Tensor, ...] = (batch,)
        if self.members is not None:
            which = (torch.arange(self.members, device=batch.device).unsqueeze(1), batch)
        weights = None if self.weights is None else self.weights[which].to(like)
        return as_input(self.x[which], like), self.y[which].to(like.device), weights

    def first(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the first point, its target, and its weight or ``None``."""
        cut = (slice(1),) if self.members is None else (slice(None), slice(1))
        weights = None if self.weights is None else self.weights[cut].to(like)
        return self.x[cut].to(like.device), self.y[cut].to(like.device), weights

    def in_turn(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the indices of all points in batches, in order."""
        numbers = torch.arange(len(self), device="cpu")
        return (numbers if self.members is None else numbers.expand(self.members, -1)).split(batch_size, dim=-1)


@dataclass(frozen=True)
class Order:
    """The order of the points in each epoch. It depends only on seed and epoch, so training can resume anywhere.

    Attributes:
        seeds: One random seed per member, or the seed of a single model.
        points: Number of points.
        batch_size: Number of points per batch; the last batch of an epoch may be smaller.
        stacked: Whether the model is a stack.
    """

    seeds: Sequence[int]
    points: int
    batch_size: int
    stacked: bool
    _orders: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)  # of the last epoch requested

    @property
    def batches(self) -> int:
        """The number of batches per epoch."""
        return -(-self.points // self.batch_size)

    def of_epoch(self, epoch: int) -> Tensor:
        """Return the indices of the points in the order of an epoch, [points] or [members, points]."""
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
        """Return the indices of the points of an iteration, [points] or [members, points]."""
        epoch, index = divmod(iteration, self.batches)
        return self.of_epoch(epoch)[..., index * self.batch_size : (index + 1) * self.batch_size]


def points_of(name: str, data: Any, members: int | None) -> Points:
    """Check data and return it as points, with a member dimension if there are members."""
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
    """Whether data holds all points and targets at once, instead of batches."""
    tuples = isinstance(data, tuple) and len(data) in (2, 3) and all(isinstance(part, Tensor) for part in data)
    return tuples or isinstance(data, Dataset | ImageData | Tensor)


def no_targets(x: Tensor) -> Tensor:
    """Return the targets of points that have none: an empty row for each point."""
    return x.new_empty((*x.shape[:1], 0), dtype=torch.float32)


def _parts(data: Any) -> tuple[Tensor, ...]:
    if isinstance(data, Tensor):
        return data, no_targets(data)
    if isinstance(data, Dataset):
        return data.x, data.y
    return (data.images, data.labels) if isinstance(data, ImageData) else data


def _checked_weights(name: str, weights: Tensor, points: int) -> Tensor:
    """Check weights and return them scaled to mean 1."""
    shape = tuple(weights.shape)
    require(shape == (points,), f"{name}, weights", shape, f"one number per point, shape {(points,)}")
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
    require(len(shapes) == 1, name, sorted(shapes), "data and targets of the same shape for all members")
    stacked = [torch.stack(same) for same in zip(*parts, strict=True)]
    return Points(stacked[0], stacked[1], members, *stacked[2:])


def _kind(data: Any) -> str:
    """Describe data of the wrong type, with a hint at how to convert it."""
    if not isinstance(data, list | tuple):
        hint = "; pass DataLoader(data, batch_size=64)" if isinstance(data, torch.utils.data.Dataset) else ""
        return f"{type(data).__name__}{hint}"
    kinds = [type(part).__name__ for part in data[:4]]
    convert = "; convert its parts with torch.as_tensor(part, dtype=torch.float32), class indices with torch.int64"
    hint = convert if any(isinstance(part, np.ndarray | list) for part in data) else ""
    return f"a {type(data).__name__} of {len(data)} parts ({', '.join(kinds)}){hint}"
