"""The compiled engine: whole solves without Python between the steps.

It makes the same decisions as the loop in :mod:`anode.ode.integrate`, against which it is tested. Results differ by
rounding only. :mod:`anode.engine.obstacles` lists what it does not support; the Python loop is used instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anode.engine.compiled import Compiled
from anode.engine.extension import extension
from anode.engine.program.layout import Layout
from anode.engine.program.program import Program
from anode.ode.clocks import CHECK_EVERY
from anode.ode.control import PID
from anode.ode.gradient import Gradient, is_last_pass, is_plain_pass, not_twice, recorded_gradients
from anode.ode.integrate import Trace
from anode.ode.plan import Plan
from anode.ode.problem import Problem
from anode.ode.solution import Solution, Stats, Status
from anode.ode.stiffness import is_hopeless
from anode.ode.tableau import Tableau
from anode.ode.tools import is_followed


def _borrow_threads() -> None:
    """Let the engine use torch's threads, if torch uses OpenMP."""
    with contextlib.suppress(OSError, AttributeError):  # otherwise the engine has its own threads
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
        extension.borrow_threads(ctypes.cast(parallel, ctypes.c_void_p).value)


if extension is not None:
    _borrow_threads()

MISSING = "the engine was not compiled when anode was installed"
DTYPES = (torch.float32, torch.float64)
instructions = ""
"""The instruction set to use, one of :func:`instruction_sets`; empty for the best."""


def instruction_sets() -> list[str]:
    """Return the instruction sets of this CPU that the engine supports, best first; empty without an engine."""
    return [] if extension is None else extension.instruction_sets().split()


def convolves(y: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the engine can compute convolutions of images y with these parameters."""
    if extension is None or torch.compiler.is_compiling() or is_followed(y, *parameters):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (y, *parameters))


AGREEMENT = {torch.float32: 1e-4, torch.float64: 1e-10}
"""Largest difference between the slopes of the engine and of f, relative to the largest slope."""


STATUSES = tuple(Status)


class StaleError(Exception):
    """A program no longer computes the same as the function from which it was traced."""


def _rows(problem: Problem, field: Compiled, packed: Tensor) -> Tensor:
    """Return a packed state as rows of features, one per point."""
    return field.joined(tuple(problem.packing.unpack(packed))) if field.components else packed


def _packed(problem: Problem, field: Compiled, rows: Tensor) -> Tensor:
    """Return rows of features as a packed state, or rows of several stacked states as stacked packed states."""
    if not field.components:
        return rows
    return problem.packing.pack(field.parted(rows, problem.packing.whole_shapes), stacked=rows.ndim > 2)


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
        slope = None if self.slope is None else _rows(problem, self.field, self.slope)
        most = plan.max_steps if plan.stiff_steps is None else min(plan.max_steps, CHECK_EVERY)
        while True:
            states, trace, self.solve = run(plan, self.field, y0, tensors, keep=self.keep, slope=slope, most=most)
            if trace.status is Status.SUCCESS or most >= plan.max_steps or trace.status != Status.MAX_STEPS:
                break
            y = _packed(problem, self.field, trace.y)  # a stiff solve is stopped early, as in the loop
            if is_hopeless(problem.rate, plan, float(trace.t), y, trace.stats):
                break
            most = min(10 * most, plan.max_steps)
        self.trace = trace
        return (states,) if trace.status is Status.SUCCESS else (states, trace.y)

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
    y0 = problem.y0
    records = torch.is_grad_enabled() and (y0.requires_grad or any(x.requires_grad for x in field.tensors))
    call, y0 = Call(problem, field, slope, keep=records), _rows(problem, field, y0)
    if records:
        function, more = (NativeSolveTwice, field.sources) if gradient.twice else (NativeSolve, field.unused)
        states = function.run(call, y0, *field.tensors, *more)
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

    @classmethod
    def run(cls, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Do what ``apply`` does, without looking for transforms of ``torch.func``, which are not active here."""
        found: tuple[Tensor, ...] = super(torch.autograd.Function, cls).apply(call, *tensors)  # type: ignore[misc]
        return found

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
    """A :class:`NativeSolve` whose gradient can be differentiated again, by repeating the solve under autograd."""

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
            trace = again.integrate(packed)
            *outputs, last = [_rows(again, field, y) for y in (*trace.outputs, trace.y)]
            return [outputs[0] if len(outputs) == 1 else torch.stack(outputs), last][: len(cotangents)]

        return (None, *recorded_gradients(solve, [y0], tensors, cotangents))


def run(
    plan: Plan,
    field: Compiled,
    y0: Tensor,
    tensors: Sequence[Tensor],
    *,
    keep: bool = False,
    slope: Tensor | None = None,
    most: int | None = None,
) -> tuple[Tensor, Trace, Any]:
    """Run a solve in the engine.

    Returns:
        A tuple of the output, or several outputs stacked; a trace without outputs; and the engine's object for the
        backward pass.

    Raises:
        StaleError: If the engine computes another slope at the start than ``slope``.
    """
    y0 = laid_out(y0)
    start, tensors = y0.data_ptr(), [laid_out(x) for x in tensors]
    solve = made(plan, field, y0, tensors, keep=keep, most=plan.max_steps if most is None else most)
    if slope is not None:
        slope = laid_out(slope)
        if not solve.agrees(start, slope.data_ptr(), AGREEMENT[y0.dtype]):
            raise StaleError
    count, last = len(plan.wanted), torch.empty_like(y0)
    outputs = torch.empty_like(y0) if count == 1 else y0.new_empty((count, *y0.shape))
    places = list(range(outputs.data_ptr(), outputs.data_ptr() + outputs.nbytes, y0.nbytes))
    if not plan.group_dims:
        calls, t, status, nfe, accepted, rejected = solve.run_one(start, places, last.data_ptr())
        return outputs, Trace([], last, t, STATUSES[status], Stats(nfe, accepted, rejected, calls)), solve
    times = y0.new_empty(plan.groups, dtype=torch.float64)
    counts = y0.new_empty((4, *plan.groups), dtype=torch.int64)
    calls = solve.run(start, places, last.data_ptr(), times.data_ptr(), [c.data_ptr() for c in counts])
    return outputs, Trace([], last, times, counts[0], Stats(counts[1], counts[2], counts[3], calls)), solve


def made(plan: Plan, field: Compiled, y0: Tensor, tensors: Sequence[Tensor], *, keep: bool, most: int) -> Any:
    """Return the engine's object for a solve."""
    threads = torch.get_num_threads()
    key = (field.program, field.members, field.shared, field.components, keep, most, threads, instructions)
    task = plan.prepared.get(key, lambda: _task(plan, field, y0, keep, most, threads))
    return extension.Solve(task, [x.data_ptr() for x in tensors])


def _task(plan: Plan, field: Compiled, y0: Tensor, keep: bool, most: int, threads: int) -> Any:
    """Return the engine's object for everything about a solve except its tensors."""
    assert isinstance(plan.controller, PID)
    rows = y0.numel() // field.program.dim
    return extension.Task(
        is_double=y0.dtype == torch.float64,
        method=method_for(plan.tableau),
        program=handle(field.program),
        shared=field.shared,
        times=plan.times,
        wanted=plan.wanted,
        knots=[t for t, _ in plan.knots or ()],
        rtol=plan.rtol,
        atol=plan.atol,
        first_step=math.nan if plan.first_step is None else plan.first_step,
        min_step=plan.min_step,
        max_step=plan.max_step,
        max_steps=min(most, 2**62),
        controller=plan.controller.numbers,
        grouped=plan.group_dims > 0,
        keeps_non_finite=plan.keeps_non_finite,
        components=field.components,
        members=field.members or 1,
        rows=rows,
        group_rows=rows // math.prod(plan.groups),
        keep=keep,
        threads=threads,
        instructions=instructions,
    )


def field_of(field: Compiled, y: Tensor) -> Any:
    """Return the engine's object that evaluates a compiled field on states like y. It copies the field's tensors."""
    tensors = [laid_out(x) for x in field.tensors]
    return extension.Field(
        is_double=y.dtype == torch.float64,
        program=handle(field.program),
        shared=field.shared,
        members=field.members or 1,
        rows=y.numel() // field.program.dim,
        instructions=instructions,
        parameters=[x.data_ptr() for x in tensors],
    )


def evaluated(field: Compiled, y: Tensor) -> Tensor:
    """Return what a compiled field computes at time 0, without a gradient."""
    y, t = laid_out(y.detach()), y.new_zeros(())
    result = y.new_empty(*y.shape[:-1], len(field.program.slope))
    field_of(field, y).evaluate(t.data_ptr(), 1, y.data_ptr(), result.data_ptr(), 0, torch.get_num_threads())
    return result


def agree(own: Tensor, slope: Tensor) -> bool:
    """Whether the engine and f compute the same slope, up to rounding."""
    tolerance = AGREEMENT[slope.dtype]
    if bool((own - slope).abs().max() <= tolerance * slope.abs().max()):
        return True
    same = (own == slope) | (own.isnan() & slope.isnan())
    off = (own - slope).masked_fill(same, 0.0).abs().max()
    return bool(off <= tolerance * slope.nan_to_num(0.0, 0.0, 0.0).abs().max())


def _room(x: Tensor) -> Tensor:
    """Return an uninitialized contiguous tensor of the same shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def laid_out(x: Tensor) -> Tensor:
    """Return a contiguous tensor with the same values, without a lazy negation."""
    return x if x.is_contiguous() and not x.is_neg() else x.detach().resolve_neg().contiguous()


HANDLES: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()


def handle(program: Program) -> Any:
    """Return the engine's object for a program."""
    found = HANDLES.get(program)
    if found is None:
        found = extension.Program(**vars(Layout(program, extension.UNARY, extension.BINARY).code()))
        HANDLES[program] = found
    return found


@cache
def method_for(tableau: Tableau) -> Any:
    """Return the engine's object for a method."""
    return extension.Method(
        tableau.order,
        tableau.fsal,
        tableau.c,
        tableau.a,
        tableau.b,
        tableau.error or (),
        tableau.polynomials,
    )
