"""Operations on the features of a point, of which programs consist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Names of numbers. Below :data:`SCALAR` they name *rows*, which hold one number per point. From there on they name
*scalars*, which are the same for all points: elements of the program's tensors and, behind them, literal numbers."""
SCALAR = 1 << 40
"""The name of the first scalar."""
LITERAL = 1 << 50
"""The name of the first literal, as long as a program is put together: the number of its tensors is not known then."""


@dataclass(frozen=True)
class Run:
    """Rows or scalars at equal distances, which an operation can read.

    Attributes:
        first: The name of the first.
        step: The distance between consecutive names; 0 if they are all the same.
    """

    first: int
    step: int

    @property
    def is_scalar(self) -> bool:
        """Whether these are scalars."""
        return self.first >= SCALAR

    def after(self, count: int) -> Run:
        """Return the run without its first ``count`` names."""
        return Run(self.first + count * self.step, self.step)

    def names(self, count: int) -> list[int]:
        """Return the first ``count`` names."""
        return [self.first + i * self.step for i in range(count)]


@dataclass
class Operation:
    """One operation of a program.

    Attributes:
        kind: ``"unary"``, ``"binary"``, ``"select"``, ``"sum"``, ``"largest"`` or ``"affine"``; in pullbacks also
            ``"pull"``, an affine map transposed, ``"points"``, a sum over all points, and ``"fold"``, the product of
            its inputs (one or two), summed over points into the cotangent of a uniform value.
        out: The first of the consecutive rows that it writes.
        rows: The number of these rows.
        inputs: The rows and scalars that it reads.
        name: The function, for unary and binary operations.
        numbers: Further arguments of the function.
        groups: For a sum: distance of the groups, length of a group, distance within a group.
        weight: For an affine map: the scalars, [outputs, inputs].
        bias: For an affine map: the scalars, [outputs].
        activation: For an affine map: the function applied to its result.
        add: Whether the result is added to the existing values.
        derivative: The first of the rows that receive the derivative of the function; -1 for none.
        layer: For an affine map and its pullback: the index of the map in the program.
        seen: For a pullback: the rows from which the derivative of the activation before it is computed.
    """

    kind: str
    out: int
    rows: int
    inputs: list[Run]
    name: str = ""
    numbers: tuple[float, float] = (0.0, 0.0)
    groups: tuple[int, int, int] = (0, 0, 0)
    weight: Any = None
    bias: Any = None
    activation: str = "none"
    add: bool = False
    derivative: int = -1
    layer: int = -1
    seen: int = -1

    def reads(self) -> Iterator[int]:
        """The rows that it reads."""
        if self.seen >= 0:
            yield from range(self.seen, self.seen + self.rows)
        for run in self.inputs:
            if run.is_scalar:
                continue
            if self.kind in ("sum", "largest"):
                outer, length, inner = self.groups
                yield from (run.first + g * outer + i * inner for g in range(self.rows) for i in range(length))
            else:
                yield from run.names(self.width)

    @property
    def width(self) -> int:
        """The number of rows or scalars of each input."""
        if self.kind in ("affine", "pull"):
            return self.weight.shape[1 if self.kind == "affine" else 0]
        return self.rows

    @property
    def made(self) -> range:
        """The rows that it writes."""
        return range(self.out, self.out + self.rows)


def runs(columns: list[Rows], owner: list[int], literal: int = LITERAL) -> Iterator[tuple[int, int, list[Run]]]:
    """Cut lists of names, all of the same length, into pieces with equal steps.

    Args:
        columns: The lists.
        owner: One number per row. Rows with the same number lie in the same piece of memory.
        literal: The name of the first literal. No run has both literals and elements of tensors.

    Yields:
        Start and length of each piece, and the run of each list there.
    """
    count = len(columns[0])
    lists = [column.tolist() for column in columns]
    start = 0
    while start < count:
        end, steps = start + 1, [0] * len(lists)
        if end < count:
            steps = [names[end] - names[start] for names in lists]
        while end < count and all(
            names[end] - names[end - 1] == step and _together(names[end - 1], names[end], owner, literal)
            for names, step in zip(lists, steps, strict=True)
        ):
            end += 1
        if end == start + 1:
            steps = [0] * len(lists)
        yield start, end - start, [Run(names[start], step) for names, step in zip(lists, steps, strict=True)]
        start = end


def _together(a: int, b: int, owner: list[int], literal: int) -> bool:
    """Whether two names lie in the same memory: both are scalars of one kind, or rows of one owner."""
    if a >= SCALAR or b >= SCALAR:
        return a >= SCALAR and b >= SCALAR and (a >= literal) == (b >= literal)
    return owner[a] == owner[b]
