"""Fuse affine maps with what is done to their results: adding a bias or the time, and an activation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anode.engine.program.operation import Operation, Rows, Run

ACTIVATIONS = {"relu", "tanh", "softplus", "silu", "gelu"}
"""Activations that the engine applies while it multiplies."""
TIME = Run(0, 0)
"""The time, as an operand of an elementwise operation."""


def fused(operations: list[Operation], slope: Rows, zeros: set[int]) -> list[Operation]:
    """Return equivalent operations, fewer of them, of which some may no longer be needed.

    Args:
        operations: The operations, in order.
        slope: The names of the slope.
        zeros: The names of literals that are zero.
    """
    readers = _readers(operations, slope)
    makers = {operation.out: operation for operation in operations}
    kept = dict(enumerate(operations))
    for i, operation in enumerate(operations):
        if operation.kind != "affine":
            continue
        while (reader := _only_reader(operation, readers)) is not None:
            grown = _with(operation, operations[reader], makers, zeros)
            if grown is None:
                break
            operation = replace(grown, out=operations[reader].out)
            del kept[reader]
        kept[i] = operation
    return list(kept.values())


def _readers(operations: list[Operation], slope: Rows) -> dict[int, set[int]]:
    """Return the indices of the operations that read each row; -1 stands for the slope."""
    readers: dict[int, set[int]] = {row: {-1} for row in slope.tolist()}
    for i, operation in enumerate(operations):
        for row in operation.reads():
            readers.setdefault(row, set()).add(i)
    return readers


def _only_reader(operation: Operation, readers: dict[int, set[int]]) -> int | None:
    """Return the index of the operation that is the only one to read a result, if there is such an operation."""
    found: set[int] = set().union(*(readers.get(row, ()) for row in operation.made))
    return found.pop() if len(found) == 1 and -1 not in found else None


def _with(affine: Operation, after: Operation, makers: dict[int, Operation], zeros: set[int]) -> Operation | None:
    """Return the map that also does what the operation after it does; ``None`` if no map can."""
    own = Run(affine.out, int(affine.rows > 1))
    if own not in after.inputs or after.rows != affine.rows or affine.activation != "none":
        return None
    if after.kind == "unary":
        plain = after.name in ACTIVATIONS and (after.name != "softplus" or after.numbers == (1.0, 20.0))
        return replace(affine, activation=after.name) if plain else None
    if (after.kind, after.name) != ("binary", "add"):
        return None
    (other,) = [run for run in after.inputs if run != own] or [own]
    if other.is_scalar:
        return _with_bias(affine, other, zeros)
    return _with_time(affine, other, makers, zeros)


def _with_bias(affine: Operation, bias: Run, zeros: set[int]) -> Operation | None:
    """Return the map that also adds scalars, if it has no bias yet."""
    if not zeros.issuperset(affine.bias.tolist()):
        return None
    return replace(affine, bias=np.array(bias.names(affine.rows)))


def _with_time(affine: Operation, added: Run, makers: dict[int, Operation], zeros: set[int]) -> Operation | None:
    """Return the map that also adds scalars times the time, and a bias. Time is then one more of its inputs.

    Its other inputs have to begin with the first feature of the state, which lies behind the time.
    """
    maker = _maker(added, affine.rows, makers)
    if maker is None or affine.inputs[0].first != 1:
        return None
    if maker.name == "add":
        for bias, product in (maker.inputs, maker.inputs[::-1]):
            if bias.is_scalar and (biased := _with_bias(affine, bias, zeros)) is not None:
                return _with_time(biased, product, makers, zeros)
        return None
    if maker.name != "multiply" or TIME not in maker.inputs:
        return None
    (scalars,) = [run for run in maker.inputs if run != TIME] or [TIME]
    if not scalars.is_scalar:
        return None
    weight = np.column_stack([scalars.names(affine.rows), affine.weight])
    return replace(affine, inputs=[Run(0, 1)], weight=weight)


def _maker(run: Run, rows: int, makers: dict[int, Operation]) -> Operation | None:
    """Return the binary operation whose whole result this is."""
    maker = makers.get(run.first)
    whole = maker is not None and maker.kind == "binary" and maker.rows == rows and run.step == int(rows > 1)
    return maker if whole else None
