"""Programs: a field as a short list of operations on the features of a point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from anode.engine.program.fusing import fused
from anode.engine.program.listing import listing
from anode.engine.program.operation import LITERAL, SCALAR, Operation, Rows, Run, runs

SHORT_SUM = 4
"""Maximum number of terms that are added one by one, wherever they lie."""
FOLDED: dict[str, Callable[..., NDArray[np.float64]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "tanh_pull": lambda g, value: g * (1 - value**2),
    "sigmoid_pull": lambda g, value: g * value * (1 - value),
}
"""Binary functions of literal numbers."""


@dataclass(frozen=True, eq=False)
class Program:
    """A field f(t, y), where y has ``dim`` features, as operations on the features of one point.

    Attributes:
        dim: Number of features of the state. Row 0 is the time, rows 1 to ``dim`` are the state.
        operations: The operations, in order.
        slope: The rows or scalars that are the derivative of the state.
        sizes: Number of elements of each tensor that the program uses.
        literals: Constants, which follow the elements of the tensors.
        owner: For each row, the index of the value that it belongs to; 0 for time and state. The rows of a value are
            consecutive.
    """

    dim: int
    operations: tuple[Operation, ...]
    slope: Rows
    sizes: tuple[int, ...]
    literals: tuple[float, ...]
    owner: list[int]

    @property
    def uses_time(self) -> bool:
        """Whether the slope depends on time directly, not only through the state."""
        return 0 in self.slope or any(0 in operation.reads() for operation in self.operations)

    @cached_property
    def values(self) -> list[range]:
        """The rows of each value, by its index."""
        counts = Counter(self.owner).values()
        return [range(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]

    @cached_property
    def uniform(self) -> frozenset[int]:
        """The rows that depend on time and tensors only, and are the same for all points with the same time.

        Values are uniform as a whole or not at all, so that only elementwise operations read both kinds.
        """
        varying = {0}
        for operation in self.operations:
            if any(row > 0 and self.owner[row] in varying for row in operation.reads()):
                varying.add(self.owner[operation.out])
        return frozenset(
            row for operation in self.operations for row in operation.made if self.owner[row] not in varying
        )

    def __str__(self) -> str:
        return "\n".join(listing(self))


class Builder:
    """Builds a program. Methods take and return names, see :data:`Rows`, in arrays of any shape.

    Args:
        dim: Number of features of the state.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.operations: list[Operation] = []
        self.sizes: list[int] = []
        self.owner = [0] * (dim + 1)
        self._literals: dict[str, int] = {}  # the literals that were asked for, numbered from 0
        self._known: dict[tuple[object, ...], Rows] = {}

    @property
    def rows(self) -> int:
        """Number of rows so far: the time, the state and what is computed."""
        return len(self.owner)

    def extend(self, count: int) -> None:
        """Add features to the state. Nothing may have been computed yet."""
        self.dim += count
        self.owner += [0] * count

    def state(self, count: int) -> Rows:
        """Return the features of the state."""
        return np.arange(1, count + 1)

    def time(self) -> Rows:
        """Return the time."""
        return np.array(0)

    def tensor(self, shape: tuple[int, ...]) -> Rows:
        """Add a tensor and return its elements."""
        count, first = math.prod(shape), sum(self.sizes)
        self.sizes.append(count)
        return (SCALAR + np.arange(first, first + count)).reshape(shape)

    def numbers(self, values: NDArray[np.float64] | float) -> Rows:
        """Return literal numbers."""
        array = np.asarray(values, dtype=np.float64)
        names = [self._literal(value) for value in array.reshape(-1).tolist()]
        return np.array(names, dtype=np.int64).reshape(array.shape)

    def _literal(self, value: float) -> int:
        return LITERAL + self._literals.setdefault(repr(value), len(self._literals))  # repr knows -0.0 and NaN

    def moves(self, names: Rows) -> bool:
        """Whether any of these is a row: time, state, or computed."""
        return bool((names < SCALAR).any())

    def value(self, names: Rows) -> NDArray[np.float64] | None:
        """Return the numbers if all of these are literals; otherwise ``None``."""
        if not (names >= LITERAL).all():
            return None
        known = list(map(float, self._literals))
        return np.array([known[name - LITERAL] for name in names.reshape(-1).tolist()]).reshape(names.shape)

    def unary(self, name: str, x: Rows, p: float = 0.0, q: float = 0.0) -> Rows:
        """Apply a function of one number elementwise."""
        return self._elementwise("unary", name, (p, q), [x])

    def binary(self, name: str, a: Rows, b: Rows) -> Rows:
        """Apply a function of two numbers elementwise. The arrays broadcast against each other."""
        left, right = self.value(a), self.value(b)
        if left is not None and right is not None:
            with np.errstate(all="ignore"):
                return self.numbers(FOLDED[name](left, right))
        for number, other, side in ((right, a, 1), (left, b, 0)):
            neutral = {"add": 0.0, "multiply": 1.0, **({"subtract": 0.0, "divide": 1.0} if side else {})}.get(name)
            if neutral is not None and number is not None and (number == neutral).all():
                return np.broadcast_to(other, np.broadcast_shapes(a.shape, b.shape))
        return self._elementwise("binary", name, (0.0, 0.0), [a, b])

    def where(self, c: Rows, a: Rows, b: Rows) -> Rows:
        """Return ``a`` where c is not zero, and ``b`` elsewhere."""
        return self._elementwise("select", "", (0.0, 0.0), [c, a, b])

    def linear(self, x: Rows, weight: Rows, bias: Rows | None = None) -> Rows:
        """Apply a linear map [outputs, inputs] to the last dimension of x, and add a bias [outputs]."""
        outputs, inputs = weight.shape
        if bias is None:
            bias = np.broadcast_to(self.numbers(0.0), (outputs,))
        if self.moves(weight) or self.moves(bias) or x.shape[-1] != inputs:
            raise ValueError("weight: takes scalars [outputs, inputs] that fit x")
        shape = (*x.shape[:-1], outputs)
        if not inputs or not math.prod(shape):
            return np.broadcast_to(bias, shape)
        key = weight.tobytes(), bias.tobytes(), weight.shape  # made once, since all share the memory and the hash
        made = [self._affine(self.together(each), weight, bias, key) for each in x.reshape(-1, inputs)]
        return np.stack(made).reshape(shape)

    def _affine(self, x: Rows, weight: Rows, bias: Rows, key: tuple[object, ...]) -> Rows:
        key = ("affine", x.tobytes(), *key)
        if key not in self._known:
            if len(set(x.tolist())) == len(x) and (x[1:] < x[:-1]).any():  # take the inputs in memory's order
                order = np.argsort(x)
                x, weight = x[order], weight[:, order]
            ((_, _, [run]),) = runs([x], self.owner)
            made = self._made(len(weight))
            self.operations.append(Operation("affine", int(made[0]), len(weight), [run], weight=weight, bias=bias))
            self._known[key] = made
        return self._known[key]

    def together(self, x: Rows) -> Rows:
        """Return the same numbers in consecutive rows, in some order."""
        ordered = np.sort(x)
        pieces = list(runs([ordered], self.owner))
        if len(pieces) == 1 and pieces[0][2][0].step == 1 and ordered[0] < SCALAR:
            return x
        if len(x) == 1 and x[0] < SCALAR:
            return x
        return self.copied(x)

    def copied(self, x: Rows) -> Rows:
        """Return the same numbers in new, consecutive rows."""
        key = ("copy", x.tobytes())
        if key not in self._known:
            made = self._made(len(x))
            for start, count, inputs in runs([x], self.owner):
                self.operations.append(Operation("unary", int(made[start]), count, inputs, "copy"))
            self._known[key] = made
        return self._known[key]

    def sum(self, x: Rows, axes: tuple[int, ...]) -> Rows:
        """Return the sum over some axes."""
        groups, shape = self._grouped(x, axes)
        if groups.shape[1] == 0:
            return np.broadcast_to(self.numbers(0.0), shape)
        if groups.shape[1] <= SHORT_SUM or not self.moves(groups):
            total = groups[:, 0]
            for i in range(1, groups.shape[1]):
                total = self.binary("add", total, groups[:, i])
            return total.reshape(shape)
        return self._reduced("sum", groups).reshape(shape)

    def largest(self, x: Rows, axes: tuple[int, ...]) -> Rows:
        """Return the maximum over some axes."""
        groups, shape = self._grouped(x, axes)
        return self._reduced("largest", groups).reshape(shape)

    def _grouped(self, x: Rows, axes: tuple[int, ...]) -> tuple[Rows, tuple[int, ...]]:
        """Return the numbers to reduce, [groups, length], and the shape of the result."""
        kept = [axis for axis in range(x.ndim) if axis not in {a % x.ndim for a in axes}]
        shape = tuple(x.shape[axis] for axis in kept)
        order = [*kept, *(axis for axis in range(x.ndim) if axis not in kept)]
        return x.transpose(order).reshape(math.prod(shape), -1), shape

    def _reduced(self, kind: str, groups: Rows) -> Rows:
        """Reduce each group to one number."""
        key = (kind, groups.tobytes(), groups.shape)
        if key in self._known:
            return self._known[key]
        count, length = groups.shape
        inner = int(groups[0, 1] - groups[0, 0]) if length > 1 else 1
        outer = int(groups[1, 0] - groups[0, 0]) if count > 1 else 0
        places = np.arange(count)[:, None] * outer + np.arange(length) * inner
        regular = (groups < SCALAR).all() and inner > 0 and outer >= 0 and (groups == groups[0, 0] + places).all()
        if not regular or len({self.owner[i] for i in groups.reshape(-1).tolist()}) > 1:
            groups = self.copied(groups.reshape(-1)).reshape(groups.shape)
            inner, outer = 1, length
        made = self._made(count)
        ((_, _, [run]),) = runs([groups[0, :1]], self.owner)
        self.operations.append(Operation(kind, int(made[0]), count, [run], groups=(outer, length, inner)))
        self._known[key] = made
        return made

    def _elementwise(self, kind: str, name: str, numbers: tuple[float, float], inputs: list[Rows]) -> Rows:
        """Add an operation on single numbers. Repeated ones are computed once."""
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        columns = np.stack([np.broadcast_to(x, shape).reshape(-1) for x in inputs])
        if not columns.shape[1]:
            return np.zeros(shape, np.int64)
        _, first, back = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they come, so that they stay side by side
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        distinct = columns[:, first[order]]
        key = (kind, name, numbers, distinct.tobytes())
        if key not in self._known:
            made = self._made(distinct.shape[1])
            for start, count, found in runs(list(distinct), self.owner):
                self.operations.append(Operation(kind, int(made[start]), count, found, name, numbers))
            self._known[key] = made
        return self._known[key][rank[back.reshape(-1)]].reshape(shape)

    def _made(self, count: int) -> Rows:
        """Return new, consecutive rows."""
        first, owner = len(self.owner), self.owner[-1] + 1
        self.owner.extend([owner] * count)
        return np.arange(first, first + count)

    def finish(self, slope: Rows) -> Program:
        """Return the program with this slope, without unused operations."""
        operations = _needed(self.operations, slope)
        base = sum(self.sizes)

        def placed(names: Rows) -> Rows:
            """Return names in which literals follow the elements of all tensors."""
            return np.where(names >= LITERAL, names - LITERAL + SCALAR + base, names)

        for each in operations:
            each.inputs = [Run(int(placed(np.array(run.first))), run.step) for run in each.inputs]
            if each.kind == "affine":
                each.weight, each.bias = placed(each.weight), placed(each.bias)
        slope = placed(slope)
        literals = tuple(map(float, self._literals))
        zeros = {SCALAR + base + i for i, literal in enumerate(literals) if literal == 0.0}
        operations = _needed(fused(operations, slope, zeros), slope)
        for layer, each in enumerate(each for each in operations if each.kind == "affine"):
            each.layer = layer
        return Program(self.dim, tuple(operations), slope, tuple(self.sizes), literals, self.owner)


def _needed(operations: list[Operation], slope: Rows) -> list[Operation]:
    """Return the operations that the slope depends on."""
    wanted = set(slope.reshape(-1).tolist())
    kept: list[Operation] = []
    for operation in reversed(operations):
        if wanted.intersection(operation.made):
            kept.append(replace(operation))
            wanted.update(operation.reads())
    return kept[::-1]
