"""Whole solves in the compiled engine, and their gradients.

The engine makes the same decisions as the loop in :mod:`anode.ode.integrate`, against which it is tested. Results
differ by rounding only. :mod:`anode.engine.obstacles` lists what it does not support; the Python loop is used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from anode.engine.compiled import Compiled
from anode.engine.native import laid_out, run
from anode.engine.replayed import Replayed
from anode.ode.clocks import CHECK_EVERY
from anode.ode.gradient import Gradient, is_last_pass, is_plain_pass, not_twice, recorded_gradients
from anode.ode.integrate import Trace
from anode.ode.problem import Problem
from anode.ode.solution import Solution, Status
from anode.ode.stiffness import is_hopeless

R = TypeVar("R")


def _rows(problem: Problem, field: Compiled, packed: Tensor) -> Tensor:
    """Return a packed state as rows of features, one per point."""
    return field.rows(field.joined(tuple(problem.packing.unpack(packed))) if field.components else packed)


def _packed(problem: Problem, field: Compiled, rows: Tensor) -> Tensor:
    """Return rows of features as a packed state, or rows of several stacked states as stacked packed states."""
    if not field.components:
        return field.features(rows, problem.y0.shape)
    rows = field.features(rows, (rows.shape[-2], field.dim))
    return problem.packing.pack(field.parted(rows, problem.packing.whole_shapes), stacked=rows.ndim > 2)


def while_worthwhile(
    problem: Problem, attempt: Callable[[int], tuple[Trace, R]], packed: Callable[[Trace], Tensor]
) -> tuple[Trace, R]:
    """Solve with more and more steps until that succeeds or is hopeless. A stiff solve is stopped early, as in Python.

    Args:
        problem: The problem.
        attempt: Solves with at most this number of steps, and returns the trace and something else.
        packed: Returns the packed last state of a trace.
    """
    plan = problem.plan
    most = plan.max_steps if plan.stiff_steps is None else min(plan.max_steps, CHECK_EVERY)
    while True:
        trace, result = attempt(most)
        if trace.status is Status.SUCCESS or most >= plan.max_steps or trace.status != Status.MAX_STEPS:
            return trace, result
        if is_hopeless(problem.rate, plan, float(trace.t), packed(trace), trace.stats):
            return trace, result
        most = min(10 * most, plan.max_steps)


class Call:
    """One solve in the compiled engine.

    Args:
        problem: The problem.
        field: The compiled field.
        slope: The slope at the start, computed by f itself, to compare with; ``None`` to compare nothing.
        keep: Whether there will be a backward pass.

    Attributes:
        trace: The result of :meth:`run`.
        solve: The engine's object for the backward pass.
    """

    trace: Trace
    solve: Any

    def __init__(self, problem: Problem, field: Compiled, slope: Tensor | None = None, keep: bool = False) -> None:
        self.problem, self.field, self.slope, self.keep = problem, field, slope, keep

    def run(self, y0: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the solve and return the wanted output, or several of them stacked, and the last state after a failure.

        Raises:
            StaleError: If the engine computes another slope at the start.
        """
        problem, plan = self.problem, self.problem.plan
        slope = None if self.slope is None else self._slope_rows(self.slope)

        def attempt(most: int) -> tuple[Trace, Tensor]:
            states, trace, self.solve = run(plan, self.field, y0, tensors, keep=self.keep, slope=slope, most=most)
            return trace, states

        trace, states = while_worthwhile(problem, attempt, lambda trace: _packed(problem, self.field, trace.y))
        self.trace = trace
        return (states,) if trace.status is Status.SUCCESS else (states, trace.y)

    def _slope_rows(self, slope: Tensor) -> Tensor:
        """Return a packed slope as rows, in which context does not change."""
        field = self.field
        rows = field.joined(tuple(self.problem.packing.unpack(slope))) if field.components else slope
        return field.rows(rows, [torch.zeros_like(x) for x in field.context])

    def packed(self, states: Sequence[Tensor]) -> tuple[Sequence[Tensor] | Tensor, Tensor]:
        """Return the packed outputs and the packed last state, given what :meth:`run` returned."""
        first, *failed = (_packed(self.problem, self.field, each) for each in states)
        outputs: Sequence[Tensor] | Tensor = [first] if len(self.problem.plan.wanted) == 1 else first
        if failed:
            self.trace.y = failed[0].detach()
        return outputs, failed[0] if failed else outputs[-1]


def solve(problem: Problem, field: Compiled, gradient: Gradient, slope: Tensor | None = None) -> Solution:
    """Run a whole solve in the compiled engine. :mod:`anode.engine.obstacles` must have found no obstacle.

    Args:
        problem: The problem.
        field: The compiled field.
        gradient: The gradient method.
        slope: The slope at the start, computed by f itself, to compare with.

    Raises:
        StaleError: If the engine computes another slope.
    """
    y0 = _rows(problem, field, problem.y0)
    records = torch.is_grad_enabled() and (y0.requires_grad or any(x.requires_grad for x in field.tensors))
    call = Call(problem, field, slope, keep=records)
    if records:
        function, more = (NativeSolveTwice, ()) if gradient.twice else (NativeSolve, field.unused)
        states = function.apply(call, y0, *field.tensors, *more)  # type: ignore[no-untyped-call]
    else:
        states = call.run(y0, field.tensors)
    return problem.solution(call.trace, *call.packed(states), gradient.name if records else "none")


def integrate(problem: Problem, field: Compiled, y0: Tensor) -> Trace:
    """Run the loop over steps in the engine, without recording gradients."""
    call = Call(problem, field)
    outputs, call.trace.y = call.packed(call.run(_rows(problem, field, y0), field.tensors))
    call.trace.outputs = list(outputs)
    return call.trace


class NativeSolve(torch.autograd.Function):
    """A solve and its gradient by the compiled engine."""

    @staticmethod
    def forward(ctx: Any, call: Call, y0: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the solve, and return what :meth:`Call.run` does."""
        states = call.run(y0, tensors[: len(call.field.tensors)])
        ctx.lock = Lock()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y0, *tensors)  # so that autograd notices if they are changed in between
        ctx.solve, ctx.stats, ctx.problem, ctx.field = call.solve, call.trace.stats, call.problem, call.field
        return states

    @staticmethod
    @not_twice
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0 and the tensors of the field."""
        return NativeSolve.pull(ctx, cotangents)

    @staticmethod
    def pull(ctx: Any, cotangents: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Run the backward pass in the engine."""
        y0, *tensors = ctx.saved_tensors
        given = [None if g is None else laid_out(g) for g in cotangents]
        of_outputs, of_last, *_ = [0 if g is None else g.data_ptr() for g in given] + [0]  # there may be no last state
        count = len(ctx.problem.plan.wanted)
        places = [of_outputs and of_outputs + i * y0.nbytes for i in range(count)]
        wanted = ctx.needs_input_grad[2:]
        at_y0, gradients = _room(y0), [_room(x) if w else None for x, w in zip(tensors, wanted, strict=True)]
        used = len(ctx.field.tensors)
        for unused in gradients[used:]:
            if unused is not None:
                unused.zero_()
        addresses = [0 if g is None else g.data_ptr() for g in gradients[:used]]
        with ctx.lock:  # two threads may go back over the same graph
            calls = ctx.solve.backward(places, of_last, at_y0.data_ptr(), addresses)
            ctx.stats.nfe_backward += calls
        if is_last_pass():
            ctx.solve = ctx.problem = ctx.field = None
        return (None, at_y0, *gradients)


class NativeSolveTwice(NativeSolve):
    """A :class:`NativeSolve` whose gradient can be differentiated again: torch operations repeat the solve."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0 and the tensors of the field."""
        if is_plain_pass(cotangents):
            return NativeSolve.pull(ctx, cotangents)
        y0, *tensors = ctx.saved_tensors
        problem, field = ctx.problem, ctx.field

        def solve(y0: Tensor) -> list[Tensor]:
            packed = _packed(problem, field, y0)
            again = replace(problem, y0=packed, engine="torch")
            context = y0[:, field.dim :] if field.context else None
            trace = again.integrate(packed, rate=Replayed(field, tensors, problem.packing, context))
            *outputs, last = [_rows(again, field, y) for y in (*trace.outputs, trace.y)]
            return [outputs[0] if len(outputs) == 1 else torch.stack(outputs), last][: len(cotangents)]

        return (None, *recorded_gradients(solve, [y0], tensors, cotangents))


def _room(x: Tensor) -> Tensor:
    """Return an uninitialized contiguous tensor of the same shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
