"""The exact gradient of the accepted steps, computed by going back over them.

The solve keeps the state at every accepted step. The backward pass computes the slopes again, one step at a time. The
slopes of the first steps are kept instead, up to a limit: :data:`anode.ode.field.BYTES_KEPT` for any f, 16 MB for
``MLPField`` in single precision, and :func:`anode.models.memory.bytes_to_keep` for ``ConvField``.

References:
    Hager, *Runge-Kutta methods in optimal control and the transformed adjoint system*, Numer. Math. 87 (2000).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.ode.control import Number
from anode.ode.field import Derivative
from anode.ode.gradient import (
    Gradient,
    dot,
    is_last_pass,
    is_plain_pass,
    only_once,
    plain_sum,
    prepare,
    recorded_gradients,
)
from anode.ode.integrate import Step, Trace, stand_in
from anode.ode.plan import Emission, Plan, to_broadcast
from anode.ode.runge_kutta import combine, dense_slope_weights, dense_weights, weighted_sum
from anode.ode.solution import Solution, Stats, Status
from anode.ode.stored import Stored
from anode.ode.tableau import Tableau
from anode.ode.tools import in_functorch

if TYPE_CHECKING:
    from anode.ode.problem import Problem


@dataclass(frozen=True)
class Discrete(Gradient):
    """The exact gradient of the accepted steps, with their slopes computed again in the backward pass. The default.

    It needs little memory. It falls back to :class:`Stored` with ``dense=True``, within ``torch.func``, and if f uses
    tensors that were computed from others that require a gradient.
    """

    compiled = True

    def solve(self, problem: Problem) -> Solution:
        if problem.dense or in_functorch():
            return Stored().solve(problem)
        found = problem.dependencies()
        hooked = any(p._backward_hooks for p in found.params)  # they would run for every step
        if (found.computed or hooked) and problem.compiled is None:
            return Stored().solve(problem)
        if not problem.is_differentiated(found):
            return problem.unrecorded()
        problem.refuse_others(found.params)
        report: list[Trace] = []
        derivative = problem.derivative(found.params)
        slope = None if problem.slope is None else problem.slope.detach()
        kept = derivative.steps_to_keep(problem.y0, len(problem.plan.tableau.stages))

        def run(y0: Tensor) -> Trace:
            rate = derivative.evaluate if kept else derivative.rate
            return problem.integrate(y0, rate=rate, slope=slope, keep_steps=True, keep_slopes=kept)

        function = DiscreteSolveTwice if self.twice else DiscreteSolve
        *outputs, last = function.apply(  # type: ignore[no-untyped-call]
            run, derivative, problem, report, problem.y0, problem.times, *derivative.parameters
        )
        return problem.solution(report[0], outputs, last, self.name)


class DiscreteTwice(Discrete):
    """Replaces :class:`Stored` if f is compiled: the same gradient with less memory."""

    twice = True
    name = "stored"


class DiscreteSolve(torch.autograd.Function):
    """A solve whose backward pass goes over its steps in reverse."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Tensor], Trace],
        derivative: Derivative,
        problem: Problem,
        report: list[Trace],
        y0: Tensor,
        times: Tensor | None,
        *params: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the solve, append its trace to ``report``, and return the wanted outputs and the last state.

        ``times`` is ``None`` if they are not differentiated.
        """
        trace = run(y0)
        report.append(trace)
        prepare(ctx, y0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y0, times, *params)  # so that autograd notices if they are changed in between
        ctx.problem, ctx.derivative, ctx.steps, ctx.stats = problem, derivative, trace.steps, trace.stats
        ctx.status = trace.status
        return (*trace.outputs, trace.y.clone())

    @staticmethod
    @only_once
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0, the times and the parameters."""
        y0, times, *_ = ctx.saved_tensors
        plan, derivative = ctx.problem.plan, ctx.derivative
        cotangents = tuple(None if g is None else _laid_out(g, y0) for g in cotangents)
        wanted = dict(zip(plan.wanted, cotangents[:-1], strict=True))
        sweep = Sweep(plan.tableau, derivative, None if times is None else torch.zeros_like(times), ctx.stats)
        adjoint = cotangents[-1]
        sweep.ignored = _ignored(plan, ctx.status, cotangents)
        for step in reversed(ctx.steps):
            arriving = [(e, _masked(g, e.groups)) for e in step.emissions if (g := wanted[e.index]) is not None]
            adjoint = sweep.back_over(step, adjoint, arriving)
        at_start = [g for i, g in wanted.items() if g is not None and plan.times[i] == plan.times[0]]
        if adjoint is not None:
            at_start.append(adjoint)
        at_y0 = plain_sum(at_start) if at_start else None
        if is_last_pass():
            ctx.steps = ctx.derivative = ctx.problem = None  # free the memory now, even if the output lives on
        return (None, None, None, None, at_y0, sweep.times, *derivative.take_gradients())


class DiscreteSolveTwice(DiscreteSolve):
    """A :class:`DiscreteSolve` whose gradient can be differentiated again, by repeating the solve under autograd."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0, the times and the parameters."""
        if is_plain_pass(cotangents):
            return DiscreteSolve.backward(ctx, *cotangents)
        problem = ctx.problem
        y0, times, *params = ctx.saved_tensors

        def solve(y0: Tensor, times: Tensor | None) -> list[Tensor]:
            plan = replace(problem.plan, moving_times=times)
            trace = replace(problem, y0=y0, times=times, plan=plan, engine="torch").integrate(y0)
            return [*trace.outputs, trace.y]

        return (None, None, None, None, *recorded_gradients(solve, [y0, times], params, cotangents))


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


def _ignored(plan: Plan, status: Any, cotangents: Sequence[Tensor | None]) -> Tensor | None:
    """Return a mask of the groups that failed and whose cotangents are all zero; ``None`` if there are none."""
    if not plan.group_dims:
        return None
    ignored = status != Status.SUCCESS
    if not ignored.any():
        return None
    for cotangent in cotangents:
        if cotangent is not None:
            ignored = ignored & (cotangent == 0).reshape(*plan.groups, -1).all(-1)
    return to_broadcast(plan, ignored) if ignored.any() else None


def _laid_out(cotangent: Tensor, y: Tensor) -> Tensor:
    """Return a cotangent in the memory layout of the state: sums of tensors with equal layouts are fastest."""
    return cotangent if cotangent.stride() == y.stride() else torch.empty_like(y).copy_(cotangent)


def _masked(cotangent: Tensor, groups: Tensor | None) -> Tensor:
    return cotangent if groups is None else cotangent.masked_fill(~groups, 0.0)


def _without(failed: Tensor | None, x: Tensor) -> Tensor:
    """Return x with zeros for the groups that failed before the step, where x may be NaN."""
    return x if failed is None else x.masked_fill(failed, 0.0)
