"""Events: stop a solve where a function of time and state first changes sign."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anode.checks import describe
from anode.ode.plan import Interval, as_float

EPSILON = 2.0**-52


class Event:
    """A condition that ends a solve.

    Args:
        fn: A function ``fn(t, y)``. The solve ends at its first zero. If it returns several values, the first zero of
            any of them ends the solve.
        tol: Absolute tolerance of the event time.
        t, y: Time and state at the start, where the signs of ``fn`` are recorded.
        name: What errors call ``fn``.
    """

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor], tol: float, t: Tensor, y: Tensor, name: str) -> None:
        self._fn, self._tol = fn, tol
        with torch.no_grad():
            found = fn(t, y)
        if not isinstance(found, Tensor) or found.dtype == torch.bool or found.is_complex():
            takes = f"a function {name}(t, y) that returns a tensor of real numbers that are zero at the event"
            raise TypeError(f"{name}: takes {takes}, got one that returned {describe(found)}")
        self._signs = torch.sign(found)
        self.at_start = bool((self._signs == 0).any())

    def has_happened(self, t: Tensor, y: Tensor) -> bool:
        """Whether any value has changed its sign since the start."""
        with torch.no_grad():
            return bool((self._fn(t, y) * self._signs).min() <= 0)

    def locate(self, step: Interval, state_at: Callable[[float], Tensor]) -> float:
        """Return the time of the event within a step, by bisection on the dense output."""
        before, after = 0.0, 1.0
        size = abs(as_float(step.h))
        exactly = max(self._tol, size * EPSILON)
        for _ in range(max(1, math.ceil(math.log2(max(size / exactly, 2.0))))):
            middle = (before + after) / 2
            if self.has_happened(step.at_event(middle), state_at(middle)):
                after = middle
            else:
                before = middle
        return as_float(step.t + (before + after) / 2 * step.h)
