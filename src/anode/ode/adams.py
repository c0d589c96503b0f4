"""Adams methods: fixed steps that combine the slopes of earlier steps, so that each needs few evaluations.

Let f_0, f_1, f_2, ... be the slopes at the start of this step and of the steps before it. A step of size h adds

    explicit (Adams-Bashforth):  h (b_0 f_0 + b_1 f_1 + ...)
    implicit (Adams-Moulton):    h (m f(t + h, y1) + m_0 f_0 + m_1 f_1 + ...)

to the state. The weights are those that integrate the polynomial through the slopes. The implicit equation for y1 is
solved by iteration, beginning with the explicit step. The rest of the solver sees a step as its mean slope, which
:data:`CARRIER` interpolates.

References:
    Hairer, Norsett and Wanner, *Solving Ordinary Differential Equations I*, 2nd edition, 1993 (section III.1).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce

import torch
from torch import Tensor

from anode.ode.field import Rate
from anode.ode.plan import Interval, Plan, as_float
from anode.ode.runge_kutta import take_step, weighted_sum
from anode.ode.tableau import Tableau
from anode.ode.tableaus import RK4

MOST_SLOPES = 12
"""The largest number of slopes that a method combines."""
FEWEST = 3
"""Number of slopes from which steps use them; the first steps are those of :data:`anode.ode.tableaus.RK4`."""
EVEN = 1e-3
"""Relative difference of step sizes that counts as rounding. The weights hold for steps of one size."""

CARRIER = Tableau(
    "adams",
    order=1,
    c=(0.0, 0.0),
    a=((), (0.0,)),
    b=(1.0, 0.0),
    polynomials=((0.0, 3.0, -2.0), (1.0, -2.0, 1.0), (0.0, -1.0, 1.0)),
    dense_order=3,
)
"""A step as the rest of the solver sees it: its slopes are the mean slope of the step and the slope at its start."""


@dataclass(frozen=True)
class Adams:
    """An Adams method.

    Attributes:
        implicit: Whether steps are implicit (Adams-Moulton) instead of explicit (Adams-Bashforth).
        max_order: One more than the number of slopes that a step combines, at most 12. The order of an implicit method
            is ``max_order``, that of an explicit one is 1 less. Below 4, all steps are those of the Runge-Kutta method.
        max_iters: Largest number of iterations of an implicit step.
    """

    implicit: bool
    max_order: int = MOST_SLOPES
    max_iters: int = 4


@cache
def adams_weights(newest: int, count: int) -> tuple[float, ...]:
    """Return the weights of slopes that integrate the polynomial through them from time 0 to 1.

    Args:
        newest: The time of the newest slope, in steps: 0 for explicit methods, 1 for implicit ones.
        count: Number of slopes, one step apart.

    Example:
        >>> adams_weights(0, 2), adams_weights(1, 2)
        ((1.5, -0.5), (0.5, 0.5))
    """
    times = [newest - i for i in range(count)]

    def times_factor(polynomial: list[Fraction], factor: tuple[int, int]) -> list[Fraction]:
        """Multiply a polynomial by (x - other) / (own - other)."""
        own, other = factor
        shifted = zip([Fraction(0), *polynomial], [*polynomial, Fraction(0)], strict=True)
        return [(higher - other * same) / (own - other) for higher, same in shifted]

    def weight(own: int) -> float:
        factors = ((own, other) for other in times if other != own)
        polynomial = reduce(times_factor, factors, [Fraction(1)])
        return float(sum((c / n for n, c in enumerate(polynomial, start=1)), Fraction(0)))

    return tuple(map(weight, times))


class AdamsSteps:
    """The steps of one solve by an Adams method, and the slopes that it remembers.

    Args:
        method: The method.
        plan: The plan of the solve.
    """

    def __init__(self, method: Adams, plan: Plan) -> None:
        self.method, self.plan = method, plan
        self._slopes: list[Tensor] = []  # at the starts of steps of one size, newest first
        self._size = 0.0

    def take(self, f: Rate, step: Interval, y: Tensor, slope: Tensor | None) -> tuple[Tensor, list[Tensor], int]:
        """Take one step.

        Args:
            f: The right-hand side.
            step: The interval of the step.
            y: The state at its start.
            slope: f there, if it has been evaluated.

        Returns:
            The new state, the slopes of :data:`CARRIER`, and the number of evaluations of f.
        """
        first = f(step.at(0.0), y) if slope is None else slope
        self._remember(first, as_float(step.h))
        if len(self._slopes) < FEWEST:
            _, slopes = take_step(f, RK4, step, y, first)
            mean, evaluations = weighted_sum([(weight, slopes[i]) for i, weight in RK4.weights]), len(slopes) - 1
        else:
            weights = adams_weights(0, len(self._slopes))
            mean, evaluations = weighted_sum(list(zip(weights, self._slopes, strict=True))), 0
            if self.method.implicit:
                mean, evaluations = self._corrected(f, step, y, mean)
        return step.move(y, mean), [mean, first], evaluations + (slope is None)

    def _remember(self, slope: Tensor, size: float) -> None:
        """Add the slope at the start of a step. If the step has another size than the one before, forget the others."""
        if abs(size - self._size) > EVEN * abs(size):
            self._slopes = []
        self._size = size
        self._slopes = [slope, *self._slopes][: self.method.max_order - 1]

    def _corrected(self, f: Rate, step: Interval, y: Tensor, mean: Tensor) -> tuple[Tensor, int]:
        """Return the mean slope of an implicit step, from that of the explicit one, and the number of evaluations."""
        newest, *weights = adams_weights(1, len(self._slopes) + 1)
        known = weighted_sum(list(zip(weights, self._slopes, strict=True)))
        for iteration in range(1, self.method.max_iters + 1):
            before, slope = mean, f(step.at(1.0), step.move(y, mean))
            mean = torch.add(known, slope, alpha=newest)
            if self._is_close(abs(as_float(step.h)), before, mean):
                return mean, iteration
        warnings.warn(
            f"an implicit Adams step did not converge in {self.method.max_iters} iterations; use smaller steps, looser "
            'tolerances, or options={"max_iters": ...}',
            stacklevel=2,
        )
        del self._slopes[-1]  # the next step is of lower order, which is more stable
        return mean, self.method.max_iters

    @torch.no_grad()
    def _is_close(self, size: float, before: Tensor, after: Tensor) -> bool:
        """Whether an iteration changed every element of the state by less than the tolerance of the step's change."""
        allowed = self.plan.atol + self.plan.rtol * size * torch.maximum(before.abs(), after.abs())
        return bool(((after - before).abs() * size < allowed).all())
