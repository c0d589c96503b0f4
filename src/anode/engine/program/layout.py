"""The memory layout of a program, and its encoding for the compiled engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from anode.engine.program.operation import SCALAR, Operation, Rows, Run, runs
from anode.engine.program.program import Program
from anode.engine.program.pullback import Pullback

KINDS = ("unary", "binary", "select", "sum", "largest", "affine", "pull", "points", "fold")
"""The kinds of operations, in the engine's order."""
ACTIVATIONS = ("none", "relu", "tanh", "softplus", "silu", "gelu")
"""The activations that the engine fuses with an affine map, in its order."""


class Space(IntEnum):
    """Memory spaces, in the engine's order."""

    STATE = 0
    """The state, and the time in front of it."""
    KEPT = 1
    """What an evaluation leaves for its pullback."""
    SCRATCH = 2
    """What only the evaluation itself needs."""
    SCALAR = 3
    """Elements of tensors, and literal numbers."""
    SLOPE = 4
    """The result."""
    COTANGENT = 5
    """The cotangents of the slope and of affine maps, which the gradients of weights are summed from."""
    PULLED = 6
    """The cotangent of the state."""
    LOOSE = 7
    """Other cotangents."""
    UNIFORM = 8
    """Values that depend on time and tensors only, which the pullback finds again."""
    UNIFORM_COTANGENT = 9
    """Their cotangents."""


SIZED = (Space.KEPT, Space.SCRATCH, Space.COTANGENT, Space.LOOSE, Space.UNIFORM, Space.UNIFORM_COTANGENT)
"""The spaces for which the engine allocates memory, in its order."""


@dataclass(frozen=True)
class Code:
    """A program for the compiled engine, see ``native/program.h``."""

    dim: int
    outputs: int
    uses_time: bool
    rows: list[int]
    forward: list[list[int]]
    forward_numbers: list[list[float]]
    backward: list[list[int]]
    backward_numbers: list[list[float]]
    layers: list[list[int]]
    weights: list[bytes]
    biases: list[bytes]
    sizes: list[int]
    literals: list[float]


class Layout:
    """Assigns a place to every row of a program and of its pullback, and encodes both.

    Args:
        program: The program.
        unary, binary: The names of the engine's functions, in its order.
    """

    def __init__(self, program: Program, unary: list[str], binary: list[str]) -> None:
        self.back = Pullback(program)
        self.program = self.back.program
        self.unary, self.binary = unary, binary
        self.sizes = dict.fromkeys(Space, 0)
        self.place: dict[int, tuple[Space, int]] = {}
        self._place_forward()
        self._place_backward()

    def _put(self, space: Space, rows: Iterable[int]) -> None:
        for row in rows:
            self.place[row] = (space, self.sizes[space])
            self.sizes[space] += 1

    def _place_forward(self) -> None:
        program, back = self.program, self.back
        for row in range(program.dim + 1):
            self.place[row] = (Space.STATE, row - 1)
        made = {program.owner[op.out] for op in program.operations}
        pulled = {row for op in back.operations for row in op.reads()}
        pulled |= {row for op in program.operations if op.kind == "affine" for row in op.reads()}
        read = {row for op in program.operations for row in op.reads()} | pulled
        slope = program.slope.tolist()
        loose = []
        for owner in sorted(made):
            rows = list(program.values[owner])
            if rows[0] in back.uniform:
                self._put(Space.UNIFORM, rows)
            elif rows == slope and not read.intersection(rows):
                self._put(Space.SLOPE, rows)
            elif pulled.intersection(rows):
                self._put(Space.KEPT, rows)
            else:
                loose.append(rows)
        self.copies_slope = not any(space is Space.SLOPE for space, _ in self.place.values())
        for first, count in back.derivatives.items():
            self._put(Space.UNIFORM if first in back.uniform else Space.KEPT, range(first, first + count))
        end = len(program.operations)
        self._share(Space.SCRATCH, loose, list(program.operations), dict.fromkeys(slope, end))

    def _place_backward(self) -> None:
        program, back = self.program, self.back
        self._put(Space.COTANGENT, range(back.slope, back.slope + len(program.slope)))
        self._put(Space.PULLED, range(back.state, back.state + program.dim))
        mapped = {program.owner[op.out] for op in program.operations if op.kind == "affine"}
        loose, taken = [], set(self.place)
        for owner, first in back.cotangents.items():
            if owner == 0 or first in taken:
                continue
            rows = list(range(first, first + len(program.values[owner])))
            if first in back.uniform:
                self._put(Space.UNIFORM_COTANGENT, rows)
            elif owner in mapped:
                self._put(Space.COTANGENT, rows)
            else:
                loose.append(rows)
        taken = {*self.place, *(row for rows in loose for row in rows)}
        made = [list(op.made) for op in back.operations if op.kind != "points" and op.out not in taken]
        for rows in made:
            if rows[0] in back.uniform:
                self._put(Space.UNIFORM_COTANGENT, rows)
        loose += [rows for rows in made if rows[0] not in back.uniform]
        self._share(Space.LOOSE, loose, back.operations, {})

    def _share(self, space: Space, blocks: list[list[int]], order: list[Operation], until: dict[int, int]) -> None:
        """Assign blocks of rows to places in a space. Blocks that are not needed at the same time share a place."""
        begin: dict[int, int] = {}
        end = dict(until)
        for i, operation in enumerate(order):
            for row in operation.made if operation.kind != "points" else ():
                begin.setdefault(row, i)
                end[row] = max(end.get(row, i), i)
            for row in operation.reads():
                end[row] = max(end.get(row, i), i)
        living: list[tuple[int, int, int]] = []  # last use, first place, places
        used = [rows for rows in blocks if any(row in begin for row in rows)]
        for rows in sorted(used, key=lambda rows: min(begin[row] for row in rows if row in begin)):
            now = min(begin[row] for row in rows if row in begin)
            living = [each for each in living if each[0] >= now]
            at = 0
            for _, first, count in sorted(living, key=lambda each: each[1]):
                if first - at >= len(rows):
                    break
                at = max(at, first + count)
            living.append((max(end.get(row, now) for row in rows), at, len(rows)))
            self.place.update({row: (space, at + i) for i, row in enumerate(rows)})
            self.sizes[space] = max(self.sizes[space], at + len(rows))

    def code(self) -> Code:
        """Return the program in the encoding of the engine."""
        program, back = self.program, self.back
        forward = [*program.operations, *self._slope_copies()]
        affine = [op for op in program.operations if op.kind == "affine"]
        return Code(
            dim=program.dim,
            outputs=len(program.slope),
            uses_time=program.uses_time,
            rows=[self.sizes[s] for s in SIZED],
            forward=[self._written(op) for op in forward],
            forward_numbers=[list(op.numbers) for op in forward],
            backward=[self._written(op) for op in back.operations],
            backward_numbers=[list(op.numbers) for op in back.operations],
            layers=[self._layer(op) for op in affine],
            weights=[_scalars(op.weight) for op in affine],
            biases=[_scalars(op.bias) for op in affine],
            sizes=list(program.sizes),
            literals=list(program.literals),
        )

    def _slope_copies(self) -> list[Operation]:
        """Return operations that copy the slope to its destination, if it was not computed there."""
        if not self.copies_slope:
            return []
        first = -1 - len(self.program.slope)  # below all names
        self.place.update({first + i: (Space.SLOPE, i) for i in range(len(self.program.slope))})
        return [
            Operation("unary", first + start, count, inputs, "copy")
            for start, count, inputs in runs([self.program.slope], self.program.owner)
        ]

    def _layer(self, operation: Operation) -> list[int]:
        """Return outputs, inputs, inputs without a cotangent, and the places of cotangent (-1 for none) and input."""
        outputs, inputs = operation.weight.shape
        run = operation.inputs[0]
        row = self.back.cotangent(operation.out)
        cotangent = self.place[row] if row in self.back.defined else (-1, 0)
        return [outputs, inputs, int(run.first == 0), *map(int, cotangent), *map(int, self.place[run.first])]

    def _written(self, op: Operation) -> list[int]:
        names: dict[str, Any] = {"unary": self.unary, "binary": self.binary}
        name = names[op.kind].index(op.name) if op.kind in names else 0
        out = (Space.SCALAR, op.out - SCALAR) if op.kind == "points" else self.place[op.out]
        written = [KINDS.index(op.kind), name, op.rows, int(op.add), *map(int, out)]
        written += [*map(int, self.place[op.derivative])] if op.derivative >= 0 else [-1, 0]
        for run in [*op.inputs, *[None] * (3 - len(op.inputs))]:
            written += self._operand(run)
        written += [*op.groups, op.layer, ACTIVATIONS.index(op.activation)]
        return [*written, *map(int, self.place[op.seen] if op.seen >= 0 else (-1, 0))]

    def _operand(self, run: Run | None) -> list[int]:
        """Return space, place and stride of an operand."""
        if run is None:
            return [-1, 0, 0]
        if run.is_scalar:
            return [int(Space.SCALAR), run.first - SCALAR, run.step]
        space, offset = self.place[run.first]
        return [int(space), offset, run.step]


def _scalars(names: Rows) -> bytes:
    """Return which scalars these are, as 32-bit integers: a wide map has millions."""
    return (names - SCALAR).astype(np.int32).tobytes()
