"""The compiled engine: whole solves of programs, with no Python between the steps.

It decides as the loop in :mod:`anode.ode.integrate` does, and its results differ by rounding only; that loop is what it
is tested against. Where it does not apply (:mod:`anode.engine.obstacles`), the loop serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
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
from anode.engine.program.layout import Layout
from anode.engine.program.program import Program
from anode.ode.clocks import CHECK_EVERY
from anode.ode.control import PID
from anode.ode.gradient import Gradient, is_last_pass, not_twice, recorded_gradients
from anode.ode.integrate import Trace
from anode.ode.plan import Plan
from anode.ode.problem import Problem
from anode.ode.solution import Solution, Stats, Status
from anode.ode.stiffness import is_hopeless
from anode.ode.tableau import Tableau
from anode.ode.tools import is_followed

try:
    extension: Any = importlib.import_module("anode._native")
except ImportError:
    extension = None


def _borrow_threads() -> None:
    """Let the engine use torch's threads, where torch has those of OpenMP."""
    with contextlib.suppress(OSError, AttributeError):  # where it has others, the engine has its own
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
        extension.borrow_threads(ctypes.cast(parallel, ctypes.c_void_p).value)


if extension is not None:
    _borrow_threads()

MISSING = "the engine was not compiled when anode was installed"
DTYPES = (torch.float32, torch.float64)
instructions = ""
"""The instruction set that solves use, one of :func:`instruction_sets`; the best if empty."""


def instruction_sets() -> list[str]:
    """The instruction sets of this processor for which the engine is compiled, best first; none without an engine."""
    return [] if extension is None else extension.instruction_sets().split()


def convolves(y: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the engine can convolve images y, with these parameters of convolutions."""
    if extension is None or torch.compiler.is_compiling() or is_followed(y, *parameters):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (y, *parameters))


AGREEMENT = {torch.float32: 1e-4, torch.float64: 1e-10}
"""How far a slope by the engine may be from f's own, as a fraction of the largest slope."""


class StaleError(Exception):
    """A program computes something else than the function that it was traced from."""


def _rows(problem: Problem, field: Compiled, packed: Tensor) -> Tensor:
    """A packed state with the features of each point side by side."""
    return field.joined(tuple(problem.packing.unpack(packed))) if field.components else packed


def _packed(problem: Problem, field: Compiled, rows: Tensor) -> Tensor:
    """Rows of features as the problem packs a state that is a tuple."""
    return problem.packing.pack(field.parted(rows, tuple(problem.packing.unpack(problem.y0))))


def solve(problem: Problem, field: Compiled, gradient: Gradient, slope: Tensor | None = None) -> Solution:
    """The whole solve by the compiled engine, which :mod:`anode.engine.obstacles` has nothing against.

    Args:
        problem: What to solve.
        field: What f computes.
        gradient: How to differentiate it.
        slope: f at the start, as f computes it.

    Raises:
        StaleError: The slope is another one.
    """
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (problem.y0, *field.tensors)):
        trace = integrate(problem, field, problem.y0, slope)
        return problem.solution(trace, trace.outputs, trace.y, "none")
    y0 = _rows(problem, field, problem.y0)
    slope = None if slope is None else _rows(problem, field, slope)
    report: list[Trace] = []
    function, more = (NativeSolveTwice, field.sources) if gradient.twice else (NativeSolve, field.unused)
    given = (y0, *field.tensors, *more)
    *outputs, last = function.apply(problem, field, report, slope, *given)  # type: ignore[no-untyped-call]
    if field.components:
        *outputs, last = (_packed(problem, field, y) for y in (*outputs, last))
    return problem.solution(report[0], outputs, last, gradient.name)


def integrate(problem: Problem, field: Compiled, y0: Tensor, slope: Tensor | None = None) -> Trace:
    """The loop over steps by the engine, with nothing to differentiate.

    Raises:
        StaleError: f at the start is not the slope that was given.
    """
    slope = None if slope is None else _rows(problem, field, slope)
    trace, _ = run_on(problem, field, _rows(problem, field, y0), field.tensors, slope=slope)
    if field.components:
        *trace.outputs, trace.y = (_packed(problem, field, y) for y in (*trace.outputs, trace.y))
    return trace


class NativeSolve(torch.autograd.Function):
    """A solve by the compiled engine, with its gradient by the same."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        field: Compiled,
        report: list[Trace],
        slope: Tensor | None,
        y0: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the solve and put its trace into ``report``; returns the wanted outputs and the last state."""
        trace, solve = run_on(problem, field, y0, tensors[: len(field.tensors)], keep=True, slope=slope)
        report.append(trace)
        ctx.lock = Lock()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y0, *tensors)  # so that autograd notices if they are changed in between
        ctx.solve, ctx.stats, ctx.problem, ctx.field = solve, trace.stats, problem, field
        return (*trace.outputs, trace.y)

    @staticmethod
    @not_twice
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0 and the tensors of the field."""
        return NativeSolve.pull(ctx, cotangents)

    @staticmethod
    def pull(ctx: Any, cotangents: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """The backward pass by the engine."""
        y0, *tensors = ctx.saved_tensors
        cotangents = tuple(None if g is None else laid_out(g) for g in cotangents)
        *of_outputs, of_last = (0 if g is None else g.data_ptr() for g in cotangents)
        at_y0 = y0.new_empty(y0.shape)
        wanted = ctx.needs_input_grad[5:]
        gradients = [x.new_zeros(x.shape) if wants else None for x, wants in zip(tensors, wanted, strict=True)]
        addresses = [0 if g is None else g.data_ptr() for g in gradients[: len(ctx.field.tensors)]]
        with ctx.lock:  # two threads may walk back over one graph
            ctx.stats.nfe_backward += ctx.solve.backward(of_outputs, of_last, at_y0.data_ptr(), addresses)
        if is_last_pass():
            ctx.solve = ctx.problem = ctx.field = None
        return (None, None, None, None, at_y0, *gradients)


class NativeSolveTwice(NativeSolve):
    """The same, with a gradient that can be differentiated again: then the solve is repeated under autograd."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0 and the tensors of the field."""
        if not torch.is_grad_enabled():
            return NativeSolve.pull(ctx, cotangents)
        y0, *tensors = ctx.saved_tensors
        problem, field = ctx.problem, ctx.field

        def solve(y0: Tensor) -> list[Tensor]:
            packed = _packed(problem, field, y0) if field.components else y0
            again = replace(problem, y0=packed, engine="torch")
            trace = again.integrate(packed)
            return [_rows(again, field, y) for y in (*trace.outputs, trace.y)]

        return (None, None, None, None, *recorded_gradients(solve, [y0], tensors, cotangents))


def run_on(problem: Problem, field: Compiled, y0: Tensor, tensors: Sequence[Tensor], **how: Any) -> tuple[Trace, Any]:
    """A solve by the engine, given up early if it is stiff and the plan says so, as the loop in Python does it."""
    plan = problem.plan
    most = plan.max_steps if plan.stiff_steps is None else min(plan.max_steps, CHECK_EVERY)
    while True:
        trace, solve = run(plan, field, y0, tensors, most=most, **how)
        if most >= plan.max_steps or trace.status != Status.MAX_STEPS:
            return trace, solve
        y = _packed(problem, field, trace.y) if field.components else trace.y
        if is_hopeless(problem.rate, plan, float(trace.t), y, trace.stats):
            return trace, solve
        most = min(10 * most, plan.max_steps)


def run(
    plan: Plan,
    field: Compiled,
    y0: Tensor,
    tensors: Sequence[Tensor],
    *,
    keep: bool = False,
    slope: Tensor | None = None,
    most: int | None = None,
) -> tuple[Trace, Any]:
    """A solve by the engine, and what it needs for the backward pass if that is to be kept."""
    y0 = laid_out(y0)
    tensors = [laid_out(x) for x in tensors]
    solve = made(plan, field, y0, tensors, keep=keep, most=plan.max_steps if most is None else most)
    if slope is not None:
        slope = laid_out(slope)
        if not solve.agrees(y0.data_ptr(), slope.data_ptr(), AGREEMENT[y0.dtype]):
            raise StaleError
    outputs = [torch.empty_like(y0, requires_grad=False) for _ in plan.wanted]
    last = torch.empty_like(y0, requires_grad=False)
    places = [o.data_ptr() for o in outputs]
    if not plan.group_dims:
        calls, t, status, nfe, accepted, rejected = solve.run_one(y0.data_ptr(), places, last.data_ptr())
        return Trace(outputs, last, t, Status(status), Stats(nfe, accepted, rejected, calls)), solve
    times = y0.new_empty(plan.groups, dtype=torch.float64)
    counts = y0.new_empty((4, *plan.groups), dtype=torch.int64)
    calls = solve.run(y0.data_ptr(), places, last.data_ptr(), times.data_ptr(), [c.data_ptr() for c in counts])
    return Trace(outputs, last, times, counts[0], Stats(counts[1], counts[2], counts[3], calls)), solve


def made(plan: Plan, field: Compiled, y0: Tensor, tensors: Sequence[Tensor], *, keep: bool, most: int) -> Any:
    """A solve as the engine has it."""
    threads = torch.get_num_threads()
    key = (field.program, field.members, field.shared, field.components, y0.shape, y0.dtype, keep, most, threads)
    task = plan.prepared.get((*key, instructions), lambda: _task(plan, field, y0, keep, most, threads))
    return extension.Solve(task, [x.data_ptr() for x in tensors])


def _task(plan: Plan, field: Compiled, y0: Tensor, keep: bool, most: int, threads: int) -> Any:
    """Everything about a solve but its tensors, as the engine has it."""
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


def laid_out(x: Tensor) -> Tensor:
    """A tensor's values, as they are and one after the other in memory."""
    return x if x.is_contiguous() and not x.is_neg() else x.detach().resolve_neg().contiguous()


HANDLES: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()


def handle(program: Program) -> Any:
    """A program as the engine has it."""
    found = HANDLES.get(program)
    if found is None:
        found = extension.Program(**vars(Layout(program, extension.UNARY, extension.BINARY).code()))
        HANDLES[program] = found
    return found


@cache
def method_for(tableau: Tableau) -> Any:
    """A method as the engine has it."""
    return extension.Method(
        tableau.order,
        tableau.fsal,
        tableau.c,
        tableau.a,
        tableau.b,
        tableau.error or (),
        tableau.polynomials,
    )
