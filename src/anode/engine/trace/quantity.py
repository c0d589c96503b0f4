"""Rows of a program with operators, so that operations can be written as formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anode.engine.program.operation import Rows
from anode.engine.program.program import Builder


@dataclass(frozen=True, eq=False)
class Quantity:
    """A tensor of one point.

    Attributes:
        builder: The builder that receives the operations.
        rows: Ids, one per element.
        batch: The dimension along which the points lie, if the tensor has one. Computations drop it.
        dtype: The tensor's dtype; `None` for intermediate results.
    """

    builder: Builder
    rows: Rows
    batch: int | None = None
    dtype: torch.dtype | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def fixed(self) -> bool:
        """Whether every element is a number or an element of a captured tensor."""
        return not self.builder.moves(self.rows)

    def like(self, rows: Any) -> Quantity:
        """Return a quantity of the same builder with other rows."""
        return Quantity(self.builder, np.asarray(rows))

    def lift(self, other: Quantity | float) -> Quantity:
        """Return a number as a quantity."""
        return other if isinstance(other, Quantity) else self.like(self.builder.numbers(float(other)))

    def unary(self, name: str, p: float = 0.0, q: float = 0.0) -> Quantity:
        """Apply a function to each element."""
        return self.like(self.builder.unary(name, self.rows, p, q))

    def binary(self, name: str, other: Quantity | float) -> Quantity:
        """Combine elements with those of another quantity, which broadcasts."""
        return self.like(self.builder.binary(name, self.rows, self.lift(other).rows))

    def choose(self, yes: Quantity | float, no: Quantity | float) -> Quantity:
        """Take elements of `yes` where this is true, and of `no` elsewhere."""
        return self.like(self.builder.where(self.rows, self.lift(yes).rows, self.lift(no).rows))

    def sum(self, axes: Sequence[int], keepdim: bool = False) -> Quantity:
        """Return the sum over some dimensions."""
        return self._kept(self.builder.sum(self.rows, tuple(axes)) if axes else self.rows, axes, keepdim)

    def mean(self, axes: Sequence[int], keepdim: bool = False) -> Quantity:
        """Return the mean over some dimensions."""
        return self.sum(axes, keepdim) * (1.0 / max(1, self.count(axes)))

    def largest(self, axes: Sequence[int], keepdim: bool = False) -> Quantity:
        """Return the maximum over some dimensions."""
        return self._kept(self.builder.largest(self.rows, tuple(axes)) if axes else self.rows, axes, keepdim)

    def count(self, axes: Sequence[int]) -> int:
        """Return the number of elements in some dimensions."""
        return int(np.prod([self.shape[axis] for axis in axes], dtype=np.int64))

    def _kept(self, rows: Rows, axes: Sequence[int], keepdim: bool) -> Quantity:
        return self.like(np.expand_dims(rows, tuple(axes)) if keepdim else rows)

    def __add__(self, other: Quantity | float) -> Quantity:
        return self.binary("add", other)

    def __sub__(self, other: Quantity | float) -> Quantity:
        return self.binary("subtract", other)

    def __rsub__(self, other: float) -> Quantity:
        return self.lift(other).binary("subtract", self)

    def __mul__(self, other: Quantity | float) -> Quantity:
        return self if isinstance(other, (int, float)) and other == 1 else self.binary("multiply", other)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return self.binary("divide", other)

    def __neg__(self) -> Quantity:
        return self.unary("negate")

    __radd__ = __add__
    __rmul__ = __mul__
