"""Elements picked by an index that depends on time or state, such as the interval of an interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anode.engine.trace.operations import AtenOp, Handler
from anode.engine.trace.quantity import Quantity

COUNTING = frozenset(["bucketize", "searchsorted"])
"""Operations that count with floating point numbers."""
PICKS = frozenset(["index", "index_select"])
"""Operations that move elements, but choose them as the program runs if their index moves."""
MOST_CHOICES, MOST_PER_POINT = 8192, 512
"""Maximum number of elements to choose from, if they are the same for all points, and if every point has its own.

The latter are features of the state: with 64 points, 100 intervals and 5 channels an iteration of a controlled equation
takes an eighth of torchdiffeq's time, with 1,000 intervals nearly four times as much.
"""


def _bucketize(op: AtenOp, x: Quantity, boundaries: Quantity, out_int32: bool = False, right: bool = False) -> Quantity:
    """Count the boundaries below x; with ``right``, also those that equal it."""
    if len(boundaries.shape) != 1:
        raise op.missing()
    name = "less_equal" if right else "less"
    below = boundaries.binary(name, x.like(x.rows[..., None]))
    return below.sum((len(x.shape),))


def _searchsorted(
    op: AtenOp,
    boundaries: Quantity,
    x: Quantity,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Quantity | None = None,
) -> Quantity:
    if sorter is not None:
        raise op.missing()
    return _bucketize(op, x, boundaries, right=right or side == "right")


def _index(op: AtenOp, x: Quantity, indices: Sequence[Quantity | None]) -> Quantity:
    places = [place for place, index in enumerate(indices) if index is not None]
    index = indices[places[0]]
    if len(places) != 1 or index is None or index.shape != (1,):
        raise op.missing()
    return _pick(op, x, places[0], index)


def _index_select(op: AtenOp, x: Quantity, dim: int, index: Quantity) -> Quantity:
    if index.shape != (1,) or not x.shape:
        raise op.missing()
    return _pick(op, x, dim % len(x.shape), index)


def _pick(op: AtenOp, x: Quantity, dim: int, index: Quantity) -> Quantity:
    """Return the entries at one index of a dimension, which stays with length 1."""
    if x.batch == dim:
        raise op.mixes()
    count = x.shape[dim]
    if count == 0 or x.rows.size > (MOST_CHOICES if x.batch is None else MOST_PER_POINT):
        raise op.missing()
    index = index.binary("less", 0.0).choose(index + count, index)  # negative ones count from the end
    here = index.binary("equal", index.like(op.builder.numbers(np.arange(float(count)))))
    picked = op.lift(math.nan)  # for an index that does not exist
    for place in range(count):
        picked = here.like(here.rows[place]).choose(x.like(np.take(x.rows, [place], dim)), picked)
    return picked


LOOKUPS: dict[str, Handler] = {
    "bucketize": _bucketize,
    "searchsorted": _searchsorted,
    "index": _index,
    "index_select": _index_select,
}
