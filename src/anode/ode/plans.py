"""The plans of recent solves, which solves with the same arguments use again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from anode.ode.control import AdjointNorm
from anode.ode.solution import State
from anode.ode.solver import Solver
from anode.ode.transforms import may_be_followed
from anode.recent import Recent

T = TypeVar("T")

PLANS: Recent[Any] = Recent(256)
COMPARABLE = frozenset({float, int, bool, str, type(None), Solver, AdjointNorm})
"""Types whose equal values are interchangeable, so that they can be part of a cache key."""


def planned(make: Callable[[], T], y0: State, times: tuple[Any, ...], given: tuple[Any, ...]) -> T:
    """Return the plan of a solve with everything that belongs to it, from a cache if possible.

    Args:
        make: Checks the arguments and builds the plan.
        y0: The state. The plan may depend on its shapes, dtypes and devices only.
        times: Tuples of all times that the plan depends on.
        given: Everything else that the plan depends on.
    """
    kinds = tuple(map(type, given))
    if not COMPARABLE.issuperset(kinds) or may_be_followed():
        return make()
    if isinstance(y0, tuple):
        form: Any = tuple((x.shape, x.dtype, x.device) for x in y0)
    else:
        form = y0.shape, y0.dtype, y0.device
    return PLANS.get((form, times, kinds, given), make)
