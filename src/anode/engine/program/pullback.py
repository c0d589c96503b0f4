"""Derive the pullback of a program: operations that pull a cotangent of the slope back to state and tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from anode.engine.program.operation import SCALAR, Operation, Run, runs
from anode.engine.program.program import Program

FROM_VALUE = {"relu": "relu_pull", "tanh": "tanh_pull", "sigmoid": "sigmoid_pull", "exp": "multiply"}
"""Functions whose derivative is computed from their value, and how it enters a cotangent."""
BEND = {"tanh_pull": "tanh_bend", "sigmoid_pull": "sigmoid_bend"}
"""Those of these that right-hand sides use which differentiate inside, and their derivative by the value."""
FLAT = {"sign", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
"""Functions whose derivative is zero."""


class Pullback:
    """The operations that pull a cotangent back.

    Args:
        program: The program.

    Attributes:
        program: The program, whose operations now write the derivatives that are needed.
        operations: The operations after the program, in order.
        cotangents: For each value of the program, the first row of its cotangent.
        slope: The first row of the slope's cotangent, the input.
        state: The first row of the state's cotangent, the result.
        defined: The rows of cotangents that operations write.
        derivatives: The rows that hold derivatives, and their number.
        uniform: The rows, of the program and of these operations, that belong to uniform values. The cotangent of such
            a value is only complete when summed over its entries.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.operations: list[Operation] = []
        self.derivatives: dict[int, int] = {}
        self.uniform = set(program.uniform)
        self._next = len(program.owner)
        self.slope, self.state = self._rows(len(program.slope)), self._rows(program.dim)
        self.cotangents = {0: self.state - 1}  # row 0 is time, whose cotangent nobody wants
        self.defined = set(range(self.slope, self.slope + len(program.slope)))
        self._values, self._tensors = program.values, sum(program.sizes)
        self._readers = Counter(row for operation in program.operations for row in operation.reads())
        self._active = {op.out: op for op in program.operations if op.activation != "none"}
        self._pulled: set[int] = set()  # the outputs whose cotangent has passed the activation already
        self._is_uniform = False  # whether the operation that is pulled back is
        self._take_slope()
        made = [self._pull(each) for each in reversed(program.operations)]
        self.program = replace(self.program, operations=tuple(reversed(made)))  # which may have new literals
        self._fill(range(self.state, self.state + program.dim))
        self.operations = self._needed()

    def _needed(self) -> list[Operation]:
        """Return the operations on which a wanted result depends."""
        affine = [self.cotangent(row) for each in self.program.operations if each.kind == "affine" for row in each.made]
        wanted = {*range(self.state, self.state + self.program.dim), *affine}
        kept: list[Operation] = []
        for operation in reversed(self.operations):
            if operation.kind == "points" or wanted.intersection(operation.made):
                kept.append(operation)
                wanted.update(operation.reads())
        return kept[::-1]

    def _rows(self, count: int, uniform: bool = False) -> int:
        """Return the first of new rows."""
        first = self._next
        self._next += count
        if uniform:
            self.uniform.update(range(first, self._next))
        return first

    def cotangent(self, row: int) -> int:
        """Return the row of the cotangent of a row."""
        owner = self.program.owner[row]
        value = self._values[owner]
        if owner not in self.cotangents:
            self.cotangents[owner] = self._rows(len(value), row in self.uniform)
        return self.cotangents[owner] + row - value.start

    def _take_slope(self) -> None:
        """Start with the cotangent of the slope, in place if the slope is a value without other uses."""
        program, names = self.program, self.program.slope.tolist()
        owner = program.owner[names[0]] if names[0] < SCALAR else 0
        alone = self.uniform.isdisjoint(names) and self._readers.keys().isdisjoint(names)
        if owner and names == list(self._values[owner]) and alone:
            self.cotangents[owner] = self.slope
            return
        for start, count, (run,) in runs([program.slope], program.owner, SCALAR + self._tensors):
            self._send(run, count, "unary", "copy", [Run(self.slope + start, 1)])

    def _pull(self, operation: Operation) -> Operation:
        """Pull the cotangent of a result back to the inputs, and return the operation, which keeps its derivative."""
        operation = self._active.get(operation.out, operation)
        places = range(self.cotangent(operation.out), self.cotangent(operation.out) + operation.rows)
        if not self.defined.intersection(places):
            return operation
        self._fill(places)
        self._is_uniform = operation.out in self.uniform
        g = Run(places[0], 1)
        if operation.kind == "affine":
            return self._pull_affine(operation, g)
        if operation.kind == "unary":
            return self._pull_unary(operation, g)
        if operation.kind == "binary":
            self._pull_binary(operation, g)
        elif operation.kind == "select":
            c, a, b = operation.inputs
            zero = self._literal(0.0)
            self._send(a, operation.rows, "select", "", [c, g, zero])
            self._send(b, operation.rows, "select", "", [c, zero, g])
        else:
            self._pull_reduction(operation, g)
        return operation

    def _pull_affine(self, operation: Operation, g: Run) -> Operation:
        if operation.activation != "none" and operation.out not in self._pulled:
            operation, seen = self._seen(operation, operation.activation)
            how = FROM_VALUE.get(operation.activation, "multiply")
            self.operations.append(Operation("binary", g.first, operation.rows, [g, seen], how))
        (run,), inputs = operation.inputs, operation.weight.shape[1]
        skipped = int(run.first == 0)  # the cotangent of time is not wanted
        if run.first + inputs - 1 == 0:
            return operation
        source = run.first + skipped
        rows = [self.cotangent(row) for row in range(source, run.first + inputs)]
        before = self._active.get(source)
        alone = before is not None and before.rows == inputs and all(self._readers[row] == 1 for row in before.made)
        pull = Operation("pull", rows[0], len(rows), [g], layer=operation.layer, weight=operation.weight[:, skipped:])
        if alone and before is not None and not self.defined.intersection(rows):
            before, seen = self._seen(before, before.activation)
            self._active[source] = before
            self._pulled.add(source)
            pull.activation, pull.seen = before.activation, seen.first
        elif self.defined.intersection(rows):
            self._fill(rows)
            pull.add = True
        self.operations.append(pull)
        self.defined.update(rows)
        return operation

    def _seen(self, operation: Operation, activation: str) -> tuple[Operation, Run]:
        """Return an operation that keeps the rows from which its derivative is computed, and these rows."""
        if activation in FROM_VALUE:
            return operation, Run(operation.out, 1)
        if operation.derivative < 0:
            operation = replace(operation, derivative=self._rows(operation.rows, operation.out in self.uniform))
            self.derivatives[operation.derivative] = operation.rows
            if operation.kind == "affine":
                self._active[operation.out] = operation
        return operation, Run(operation.derivative, 1)

    def _pull_unary(self, operation: Operation, g: Run) -> Operation:
        (a,), name = operation.inputs, operation.name
        if name in FLAT or (a.is_scalar and not self._is_tensor(a)):
            return operation
        if name in ("copy", "negate"):
            self._send(a, operation.rows, "unary", name, [g])
            return operation
        operation, seen = self._seen(operation, name)
        self._send(a, operation.rows, "binary", FROM_VALUE.get(name, "multiply"), [g, seen])
        return operation

    def _pull_binary(self, operation: Operation, g: Run) -> None:
        (a, b), count, name = operation.inputs, operation.rows, operation.name
        out = Run(operation.out, 1)
        if name in ("add", "subtract"):
            self._send(a, count, "unary", "copy", [g])
            self._send(b, count, "unary", "copy" if name == "add" else "negate", [g])
        elif name == "multiply":
            self._send(a, count, "binary", "multiply", [g, b])
            self._send(b, count, "binary", "multiply", [g, a])
        elif name == "divide":
            self._send(a, count, "binary", "divide", [g, b])
            if self._wants(b):
                share = self._temporary(
                    "binary", "multiply", [self._temporary("binary", "divide", [g, b], count), out], count
                )
                self._send(b, count, "unary", "negate", [share])
        elif name == "power":
            self._pull_power(operation, g)
        elif name in BEND:
            self._send(a, count, "binary", name, [g, b])
            if self._wants(b):
                self._send(b, count, "binary", BEND[name], [self._temporary("binary", "multiply", [g, a], count), b])
        elif name in ("maximum", "minimum"):
            wins = "greater" if name == "maximum" else "less"
            half = self._temporary("binary", "multiply", [g, self._literal(0.5)], count)
            for run, other in ((a, b), (b, a)):  # which share it where they are equal, as torch has it
                if self._wants(run):
                    mine = self._temporary("binary", wins, [run, other], count)
                    equal = self._temporary("binary", "equal", [run, other], count)
                    self._send(run, count, "select", "", [mine, g, self._literal(0.0)])
                    self._send(run, count, "select", "", [equal, half, self._literal(0.0)])
        elif name not in FLAT:
            raise ValueError(f"name: takes a function with a derivative, got {name!r}")

    def _pull_power(self, operation: Operation, g: Run) -> None:
        (a, b), count = operation.inputs, operation.rows
        if self._wants(a):
            less = self._temporary("binary", "subtract", [b, self._literal(1.0)], count)
            slope = self._temporary("binary", "power", [a, less], count)
            factor = self._temporary("binary", "multiply", [slope, b], count)
            self._send(a, count, "binary", "multiply", [g, factor])
        if self._wants(b):
            log = self._temporary("unary", "log", [a], count)
            factor = self._temporary("binary", "multiply", [log, Run(operation.out, 1)], count)
            zero = self._temporary("binary", "equal", [a, self._literal(0.0)], count)  # 0^b does not move with b
            safe = self._temporary("select", "", [zero, self._literal(0.0), factor], count)
            self._send(b, count, "binary", "multiply", [g, safe])

    def _pull_reduction(self, operation: Operation, g: Run) -> None:
        """Pass the cotangent of each group to its members; for a maximum, to those that equal it."""
        (run,), (outer, length, inner) = operation.inputs, operation.groups
        for group in range(operation.rows):
            members, mine = Run(run.first + group * outer, inner), Run(g.first + group, 0)
            if operation.kind == "sum":
                self._send(members, length, "unary", "copy", [mine])
                continue
            largest = self._temporary("binary", "equal", [members, Run(operation.out + group, 0)], length)
            ties = Operation("sum", self._rows(1, self._is_uniform), 1, [largest], groups=(0, length, 1))
            self.operations.append(ties)
            share = self._temporary("binary", "divide", [mine, Run(ties.out, 0)], 1)
            self._send(members, length, "binary", "multiply", [largest, Run(share.first, 0)])

    def _wants(self, run: Run) -> bool:
        """Whether the cotangents of these are needed."""
        return self._is_tensor(run) if run.is_scalar else (run.first, run.step) != (0, 0)

    def _is_tensor(self, run: Run) -> bool:
        return run.first - SCALAR < self._tensors

    def _literal(self, value: float) -> Run:
        literals = list(self.program.literals)
        if value not in literals:
            literals.append(value)
            self.program = replace(self.program, literals=tuple(literals))
        return Run(SCALAR + self._tensors + literals.index(value), 0)

    def _temporary(self, kind: str, name: str, inputs: list[Run], count: int) -> Run:
        made = self._rows(count, self._is_uniform)
        self.operations.append(Operation(kind, made, count, inputs, name))
        return Run(made, 1)

    def _folded(self, kind: str, name: str, inputs: list[Run], count: int) -> Run:
        """Return the result of an operation on this number of rows, summed over points."""
        if name not in ("copy", "multiply"):
            inputs = [self._temporary(kind, name, inputs, count)]
        made = self._rows(count, uniform=True)
        self.operations.append(Operation("fold", made, count, inputs))
        return Run(made, 1)

    def _send(self, run: Run, count: int, kind: str, name: str, inputs: list[Run]) -> None:
        """Add a contribution, computed by an operation on this number of rows, to the cotangents of the inputs."""
        if not self._wants(run):
            return
        if run.first in self.uniform and not self._is_uniform:
            part = self._folded(kind, name, inputs, count)
            self._is_uniform = True
            self._send(run, count, "unary", "copy", [part])
            self._is_uniform = False
            return
        if run.is_scalar or (run.step == 0 and count > 1):
            part = inputs[0] if name == "copy" else self._temporary(kind, name, inputs, count)
            if run.is_scalar:
                self.operations.append(Operation("points", run.first, count, [part, run]))
            else:
                self._sum(part, count, self.cotangent(run.first))
            return
        rows = run.names(count)
        if run.step not in (0, 1):
            for i, row in enumerate(rows):
                self._send(Run(row, 0), 1, kind, name, [Run(each.after(i).first, 0) for each in inputs])
            return
        wanted = [(i, self.cotangent(row)) for i, row in enumerate(rows) if row > 0]
        for defined, piece in groupby(wanted, key=lambda each: each[1] in self.defined):
            part_of = list(piece)
            (start, place), length = part_of[0], len(part_of)
            moved = [each.after(start) for each in inputs]
            self.operations.append(Operation(kind, place, length, moved, name, add=defined))
            self.defined.update(range(place, place + length))

    def _sum(self, part: Run, count: int, place: int) -> None:
        """Sum rows into one."""
        if part.step == 0:
            part = self._temporary("unary", "copy", [part], count)
        add = place in self.defined
        self.operations.append(Operation("sum", place, 1, [part], groups=(0, count, 1), add=add))
        self.defined.add(place)

    def _fill(self, rows: Iterable[int]) -> None:
        """Write zeros to cotangents without contributions."""
        for row in rows:
            if row not in self.defined:
                self.operations.append(Operation("unary", row, 1, [self._literal(0.0)], "copy"))
                self.defined.add(row)
