"""The adjoint of a Runge-Kutta method: gradients go back over one accepted step at a time.

References:
    Hager, *Runge-Kutta methods in optimal control and the transformed adjoint system*, Numer. Math. 87 (2000).
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from anode.ode.control import Number
from anode.ode.field import Derivative
from anode.ode.gradient import dot, plain_sum
from anode.ode.integrate import Step, stand_in
from anode.ode.plan import Emission
from anode.ode.runge_kutta import combine, dense_slope_weights, dense_weights, weighted_sum
from anode.ode.solution import Stats
from anode.ode.tableau import Tableau


class Sweep:
    """The adjoint of a Runge-Kutta method, applied step by step.

    A step is ``x_i = y + h sum_j a_ij k_j``, ``k_i = f(t_i, x_i)``, ``y1 = y + h sum_i b_i k_i``. With ``v`` the
    cotangent of y1, the chain rule gives, from the last stage to the first,

        cotangent of k_i  =  h (b_i v + sum_{j > i} a_ji u_j),      u_i = (df/dy)^T (cotangent of k_i),

    and ``v + sum_i u_i`` is the cotangent of y. Outputs inside the step enter like y1, with the weights of the dense
    output in place of b.

    Attributes:
        times: Gradients of the plan's times.
        ignored: Mask of the groups that failed and whose cotangents are all zero, shaped to broadcast against the
            state. They are skipped because f may have had infinite derivatives there, and zero times infinity is NaN.
    """

    ignored: Tensor | None = None

    def __init__(self, tableau: Tableau, derivative: Derivative, times: Tensor | None, stats: Stats) -> None:
        self.tableau, self.derivative, self.times, self.stats = tableau, derivative, times, stats

    def back_over(self, step: Step, adjoint: Tensor | None, arriving: list[tuple[Emission, Tensor]]) -> Tensor | None:
        """Return the cotangent of the state at the start of a step; ``None`` for zero.

        Args:
            step: The step.
            adjoint: The cotangent of the state at its end; ``None`` for zero.
            arriving: The outputs inside the step, each with its cotangent.
        """
        tableau = self.tableau
        if self.ignored is not None:
            step = replace(
                step,
                y=stand_in(self.ignored, step.y),
                slopes=None,
                failed=self.ignored if step.failed is None else self.ignored | step.failed,
            )
        # All results of the step: the weights of the slopes in each, and its cotangent.
        made: list[tuple[dict[int, Number], Tensor]] = []
        if adjoint is not None:
            made.append((tableau.weights_by_slope, adjoint))
        made += [(dict(dense_weights(tableau, e.fraction)), cotangent) for e, cotangent in arriving]
        if not made:
            return None

        slopes = self._slopes(step, 1 + max(max(weights) for weights, _ in made))
        h = step.interval.h
        pulled: dict[int, Tensor] = {}
        for i in reversed(range(len(slopes))):
            parts = [(weights[i], cotangent) for weights, cotangent in made if i in weights]
            parts += [(a, pulled[j]) for j, a in tableau.feeds[i] if j in pulled]
            if not parts:
                continue
            at_state, at_time = self.derivative.pull(slopes[i], weighted_sum(parts, h))
            if at_state is not None:
                pulled[i] = _without(step.failed, at_state)
            if self.times is not None:
                self._times_of_stage(step, i, at_time, weighted_sum(parts), slopes[i])
        if self.times is not None:
            for emission, cotangent in arriving:
                self._times_of_output(step, emission, cotangent, slopes)
        return plain_sum([*(cotangent for _, cotangent in made), *pulled.values()])

    def _slopes(self, step: Step, count: int) -> list[Tensor]:
        """Return the slopes that were kept, or compute the first ``count`` again."""
        interval, evaluate = step.interval, self.derivative.evaluate
        if step.slopes is not None:
            if step.pieced:
                step.slopes[0] = evaluate(interval.at(0.0), step.y)
                self.stats.nfe_backward += 1
            return step.slopes
        slopes = [evaluate(interval.at(0.0), step.y)]
        usable = [_without(step.failed, slopes[0])]
        for c, row in self.tableau.stages[: count - 1]:
            slopes.append(evaluate(interval.at(c), interval.move(step.y, combine(row, usable), row.scale)))
            usable.append(_without(step.failed, slopes[-1]))
        self.stats.nfe_backward += count
        return slopes

    def _times_of_stage(self, step: Step, i: int, at_time: Tensor | None, part: Tensor, slope: Tensor) -> None:
        """Add a stage's share to the gradients of the times: its slope is evaluated at ``t + c h`` and scaled by h."""
        interval, c = step.interval, (*self.tableau.c, 1.0)[i]
        when = 0.0 if at_time is None else at_time.sum()
        self._add(interval.start, when)
        if interval.start != interval.end:
            moved = part.masked_fill(interval.h == 0, 0.0) if isinstance(interval.h, Tensor) else part
            size = c * when + dot(moved, slope)
            self._add(interval.end, size)
            self._add(interval.start, -size)

    def _times_of_output(self, step: Step, emission: Emission, cotangent: Tensor, slopes: list[Tensor]) -> None:
        """Add an output's share to the gradients of the times: it lies at the fraction ``(T - t) / h`` of its step."""
        interval, fraction = step.interval, emission.fraction
        if fraction is None:
            return  # the output is the end of a fixed step, whatever its size
        slope = weighted_sum([(weight, slopes[i]) for i, weight in dense_slope_weights(self.tableau, fraction)])
        self._add(emission.index if emission.given else None, dot(slope, cotangent))
        if interval.start == interval.end:
            self._add(interval.start, -dot(slope, cotangent))
        else:
            self._add(interval.start, -dot(slope * (1 - fraction), cotangent))
            self._add(interval.end, -dot(slope * fraction, cotangent))

    def _add(self, index: int | None, gradient: Number) -> None:
        """Add to the gradient of a time; ``None`` for a time that is a constant."""
        if index is not None:
            assert self.times is not None
            self.times[index] += gradient


def _without(failed: Tensor | None, x: Tensor) -> Tensor:
    """Return x with zeros for the groups that failed before the step, where x may be NaN."""
    return x if failed is None else x.masked_fill(failed, 0.0)
