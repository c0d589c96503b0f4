"""The exact gradient of the accepted steps, computed by going back over them.

The solve keeps the state at every accepted step. The backward pass computes the slopes again, one step at a time. The
slopes of the first steps are kept instead, up to a limit: :data:`anode.ode.field.BYTES_KEPT` for any f, 16 MB for
``MLPField`` in single precision, and :func:`anode.models.memory.bytes_to_keep` for ``ConvField``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.ode.field import Derivative
from anode.ode.gradient import (
    Gradient,
    is_last_pass,
    is_plain_pass,
    only_once,
    plain_sum,
    prepare,
    recorded_gradients,
)
from anode.ode.integrate import Trace
from anode.ode.plan import Plan, to_broadcast
from anode.ode.solution import Solution, Status
from anode.ode.stored import Stored
from anode.ode.sweep import Sweep
from anode.ode.transforms import in_functorch

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
        problem, derivative = ctx.problem, ctx.derivative
        y0, times, *params = ctx.saved_tensors

        def solve(y0: Tensor, times: Tensor | None) -> list[Tensor]:
            plan = replace(problem.plan, moving_times=times)
            again = replace(problem, y0=y0, times=times, plan=plan, engine="torch", watch=None)
            trace = again.integrate(y0, rate=derivative.recorded() or again.rate)
            return [*trace.outputs, trace.y]

        return (None, None, None, None, *recorded_gradients(solve, [y0, times], params, cotangents))


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
