"""Programs as readable text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from anode.engine.program.operation import SCALAR, Operation, Rows

if TYPE_CHECKING:
    from anode.engine.program.program import Program

INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "power": "**",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}
FORMULAS = {"copy": "{}", "negate": "-{}", "absolute": "abs({})", "square": "{}**2", "reciprocal": "1 / {}"}
PARAMETERS = {"elu": 1, "leaky_relu": 1, "softplus": 2}
"""Number of further arguments of functions."""
USUAL = {"elu": (1.0,), "softplus": (1.0, 20.0)}
"""Default values of these arguments, which are not shown."""
MOST_NUMBERS = 6
"""Maximum number of literal numbers that are shown individually."""


def listing(
    program: Program,
    tensors: Sequence[tuple[str, tuple[int, ...]]] | None = None,
    state: Sequence[tuple[str, int]] | None = None,
    context: Sequence[tuple[str, int]] = (),
) -> list[str]:
    """Return a program as readable lines.

    ``t`` is the time, ``y`` the state, ``dy`` its derivative and ``v1 (32)`` an intermediate value of 32 numbers per
    point.

    Args:
        program: The program.
        tensors: Name and shape of each of its tensors; by default they are numbered, and shown without a shape.
        state: Name and number of features of each component of the state; by default it is one, ``y``.
        context: Name and number of features of each tensor that has a row per point. These are the last features of the
            program's state.
    """
    if tensors is None:
        tensors = [(f"c{i}", (size,)) for i, size in enumerate(program.sizes)]
    own = program.dim - sum(size for _, size in context)
    return _Listing(program, tensors, [*(state or [("y", own)]), *context], own).lines()


class _Listing:
    """Finds words for numbers. A *source* is anything with its own name: a tensor, a value, the time."""

    def __init__(
        self,
        program: Program,
        tensors: Sequence[tuple[str, tuple[int, ...]]],
        state: Sequence[tuple[str, int]],
        slopes: int,
    ) -> None:
        self.program, self.tensors = program, tensors
        self.slope = program.slope[:slopes].tolist()
        self.starts = np.cumsum([0, *program.sizes]).tolist()
        self.state = [("t", 1), *state]
        self.state_starts = np.cumsum([0, *(size for _, size in self.state)]).tolist()
        self.titles: dict[int, str] = {}
        for operation in program.operations:
            owner = program.owner[operation.out]
            if owner not in self.titles:
                numbered = sum(name != "dy" for name in self.titles.values())
                self.titles[owner] = "dy" if list(program.values[owner]) == self.slope else f"v{numbered + 1}"

    def lines(self) -> list[str]:
        """Return the lines of all operations, and of the slope if it is not the last value."""
        lines = [f"{self.left(each)} = {self.right(each)}" for each in self.program.operations]
        if "dy" not in self.titles.values():
            lines.append(f"dy ({len(self.slope)}) = {self.text(self.slope)}")
        return lines

    def left(self, operation: Operation) -> str:
        owner = self.program.owner[operation.out]
        if len(self.program.values[owner]) == operation.rows:
            return f"{self.titles[owner]} ({operation.rows})"
        return self.text(list(operation.made))

    def right(self, operation: Operation) -> str:
        if operation.kind == "affine":
            return self.affine(operation)
        if operation.kind in ("sum", "largest"):
            return self.reduced(operation)
        inputs = [self.text(run.names(operation.rows)) for run in operation.inputs]
        if operation.kind == "select":
            return f"where({', '.join(inputs)})"
        if operation.kind == "binary":
            sign = INFIX.get(operation.name)
            return f"{operation.name}({', '.join(inputs)})" if sign is None else f"{inputs[0]} {sign} {inputs[1]}"
        if operation.name in FORMULAS:
            return FORMULAS[operation.name].format(*inputs)
        numbers = operation.numbers[: PARAMETERS.get(operation.name, 0)]
        shown = () if numbers == USUAL.get(operation.name) else numbers
        return f"{operation.name}({', '.join([*inputs, *map(_number, shown)])})"

    def reduced(self, operation: Operation) -> str:
        """Return text for the sum or maximum of each group."""
        name = "max" if operation.kind == "largest" else "sum"
        outer, length, inner = operation.groups
        names = list(operation.reads())
        if operation.rows == 1:
            return f"{name}({self.text(names)})"
        if inner == operation.rows * outer:  # the groups lie across
            return f"{name}({self.text(sorted(names))}.view({length}, {operation.rows}), 0)"
        return f"{name}({self.text(names)}.view({operation.rows}, {length}), 1)"

    def affine(self, operation: Operation) -> str:
        """Return text for a linear map, with its columns in the order of the tensors."""
        order = np.argsort(operation.weight[0], kind="stable")
        weight, names = operation.weight[:, order], np.array(operation.inputs[0].names(operation.width))[order]
        terms, at = [], 0
        for _, columns in groupby(range(len(names)), key=lambda i: self.source(int(weight[0, i]))[0]):
            count = len(list(columns))
            part, of = weight[:, at : at + count], self.text(names[at : at + count].tolist())
            terms.append(f"{self.text(part[:, 0].tolist())} * {of}" if count == 1 else f"{self.matrix(part)} @ {of}")
            at += count
        if any(self.literal(name) != 0.0 for name in operation.bias.tolist()):
            terms.append(self.text(operation.bias.tolist()))
        total = " + ".join(terms)
        return total if operation.activation == "none" else f"{operation.activation}({total})"

    def matrix(self, weight: Rows) -> str:
        """Return text for a matrix of scalars."""
        sources = {self.source(name)[0] for name in weight.reshape(-1).tolist()}
        shape = f"[{weight.shape[0]} x {weight.shape[1]}"
        if len(sources) > 1 or min(sources) < 0:
            return f"{shape} numbers]"
        index = sources.pop()
        name, size = self.tensors[index]
        places = weight - SCALAR - self.starts[index]
        for turned, suffix in ((places, ""), (places.T, ".T")):
            if np.array_equal(turned.reshape(-1), np.arange(math.prod(size))):
                return name + suffix
        return f"{name}{shape} of it]"

    def source(self, name: int) -> tuple[int, int]:
        """Return the tensor of a scalar, or -1 for a literal, and its place there."""
        place = name - SCALAR
        if place >= self.starts[-1]:
            return -1, place - self.starts[-1]
        index = int(np.searchsorted(self.starts, place, side="right")) - 1
        return index, place - self.starts[index]

    def literal(self, name: int) -> float | None:
        """Return the number of a name, if it is a literal."""
        index, place = self.source(name) if name >= SCALAR else (0, 0)
        return self.program.literals[place] if index < 0 else None

    def located(self, name: int) -> tuple[str, int, tuple[int, ...]]:
        """Return the source of a name, its place there, and the shape of the source."""
        if name >= SCALAR:
            index, place = self.source(name)
            return ("", place, ()) if index < 0 else (self.tensors[index][0], place, self.tensors[index][1])
        owner = self.program.owner[name]
        if owner == 0:
            index = int(np.searchsorted(self.state_starts, name, side="right")) - 1
            title, size = self.state[index]
            return title, name - self.state_starts[index], (size,)
        rows = self.program.values[owner]
        return self.titles[owner], name - rows.start, (len(rows),)

    def text(self, names: list[int]) -> str:
        """Return text for some numbers: their source, and where they are in it."""
        parts = []
        for title, group in groupby(map(self.located, names), key=lambda each: each[0]):
            members = list(group)
            places = [place for _, place, _ in members]
            if title:
                parts.append(_indexed(title, places, members[0][2]))
            else:
                parts.append(self.numbers(places))
        return parts[0] if len(parts) == 1 else f"cat({', '.join(parts)})"

    def numbers(self, places: list[int]) -> str:
        """Return text for literal numbers."""
        values = [_number(self.program.literals[place]) for place in places]
        if len(set(values)) == 1:
            return values[0]
        return f"[{', '.join(values)}]" if len(values) <= MOST_NUMBERS else f"[{len(values)} numbers]"


def _indexed(title: str, places: list[int], shape: tuple[int, ...]) -> str:
    """Return text for some places of a source with a title and a shape. Places are flat indices."""
    size = math.prod(shape)
    if places == list(range(size)) or size == 1:
        return title
    if len(set(places)) == 1:
        return f"{title}[{', '.join(map(str, np.unravel_index(places[0], shape)))}]"
    step = places[1] - places[0]
    even = step > 0 and places == list(range(places[0], places[-1] + 1, step))
    flat = title if len(shape) == 1 else f"{title}.flatten()"
    if len(shape) == 2 and even and len(places) == shape[0] and step == shape[1]:
        return f"{title}[:, {places[0]}]"
    if len(shape) == 2 and even and len(places) == shape[1] and step == 1 and places[0] % shape[1] == 0:
        return f"{title}[{places[0] // shape[1]}]"
    if even:
        return f"{flat}[{places[0]}:{places[-1] + 1}{'' if step == 1 else f':{step}'}]"
    shown = ", ".join(map(str, places)) if len(places) <= MOST_NUMBERS else f"{len(places)} places"
    return f"{flat}[[{shown}]]"


def _number(value: float) -> str:
    return f"{value:.6g}"
