"""A shadow of f's memory: what every element of a recorded tensor is in the program.

An element has a code, which holds the id of a row or scalar and the point to which it belongs. Codes move as the
elements do: torch's own operations copy and write them, through views as well. If an operation mixes points, an element
ends up where another point's should be, and its code shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anode.engine.program.operation import Rows
from anode.engine.trace.events import Ref

Decoded = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Ids and points, one of each per element of a tensor."""
UNSET = -1
ZERO = 0  # the number 0, which torch's operations leave where they fill up


class Order(Enum):
    """What a dimension holds whose length is a multiple of the number of points."""

    SAME = 0  # all points, and whatever they are merged with, alike
    OUTER = 1  # points, of each of them the entries of another dimension
    INNER = 2  # the entries of another dimension, of each of them the points


@dataclass(frozen=True)
class PointLayout:
    """The layout of the points of a batch in tensors that are read or written together.

    Attributes:
        points: Number of points; 0 without a batch dimension.
        order: How they are merged with another dimension.
    """

    points: int
    order: Order = Order.OUTER

    def axis(self, size: tuple[int, ...]) -> int | None:
        """Return the dimension of the points.

        Raises:
            ValueError: If there are two.
        """
        axes = [i for i, n in enumerate(size) if self.points and n and n % self.points == 0]
        if len(axes) > 1:
            raise ValueError("two dimensions are as long as the batch")
        return axes[0] if axes else None

    def folded(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Return the size of the tensor of a single point."""
        axis = self.axis(size)
        if axis is None:
            return size
        apart, along = self._split(size, axis)
        return apart[:along] + apart[along + 1 :]

    def _split(self, size: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], int]:
        """Return the size with the points split from the dimension they are merged with, and their dimension."""
        if self.order is Order.SAME:
            return (*size[: axis + 1], 1, *size[axis + 1 :]), axis
        rest = size[axis] // self.points
        inner = self.order is Order.INNER
        pair = (rest, self.points) if inner else (self.points, rest)
        return size[:axis] + pair + size[axis + 1 :], axis + inner

    def fold(self, ids: Rows, points: Rows) -> Rows | None:
        """Reduce a tensor to a single point; ``None`` if its elements are not the same for all points."""
        axis = self.axis(ids.shape)
        if axis is None:
            return ids if (points < 0).all() else None
        apart, along = self._split(ids.shape, axis)
        ids, points = np.moveaxis(ids.reshape(apart), along, 0), np.moveaxis(points.reshape(apart), along, 0)
        here = np.arange(len(ids)).reshape(-1, *[1] * (ids.ndim - 1))
        own = (points < 0) | (points == here) if self.order is not Order.SAME else points < 0
        return ids[0] if (ids == ids[:1]).all() and own.all() else None

    def unfold(self, ids: Rows, size: tuple[int, ...], per_point: bool) -> tuple[Rows, Rows] | None:
        """Expand the tensor of a single point; ``None`` if values differ between points without a dimension for it."""
        axis = self.axis(size)
        if axis is None:
            return None if per_point else (ids, np.full(size, -1))
        apart, along = self._split(size, axis)
        shape = [1] * len(apart)
        shape[along] = apart[along]
        points = np.arange(apart[along]).reshape(shape) if per_point else np.full(shape, -1)
        ids = np.broadcast_to(np.expand_dims(ids, along), apart).reshape(size)
        return ids, np.broadcast_to(points, apart).reshape(size)


class Shadow:
    """The codes of storages.

    Args:
        points: Number of points; 0 without a batch dimension.
    """

    def __init__(self, points: int) -> None:
        self._base = points + 1
        self._codes: dict[int, Tensor] = {}

    def __contains__(self, storage: int) -> bool:
        return storage in self._codes

    def make(self, storage: int, length: int) -> None:
        """Add a storage without contents."""
        self._codes[storage] = torch.full((length,), UNSET)

    def view(self, ref: Ref) -> Tensor:
        """Return the codes of a tensor, to read and to write."""
        return self._codes[ref.storage].as_strided(ref.size, ref.stride, ref.offset)

    def encode(self, ids: Rows, points: Rows | int = -1) -> Tensor:
        """Return codes from ids and points; point -1 means no point."""
        codes = np.multiply(ids, self._base, dtype=np.int64, order="C")  # a wide map has millions: without copies
        codes += points + self._base + 1
        return torch.from_numpy(np.asarray(codes))

    def decode(self, codes: Tensor) -> Decoded:
        """Return ids and points from codes. The id of `ZERO` is -1."""
        array = codes.numpy()
        return array // self._base - 1, array % self._base - 1
