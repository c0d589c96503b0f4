"""Calls into the extension module of the compiled engine: with tensors, by their addresses."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anode.engine.compiled import Compiled
from anode.engine.extension import extension
from anode.engine.program.layout import Layout
from anode.engine.program.program import Program
from anode.ode.control import PID
from anode.ode.integrate import Trace
from anode.ode.plan import Plan
from anode.ode.solution import Stats, Status
from anode.ode.tableau import Tableau
from anode.ode.transforms import is_followed


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
AGREEMENT = {torch.float32: 1e-4, torch.float64: 1e-10}
"""Largest difference between the slopes of the engine and of f, relative to the largest slope."""
STATUSES = tuple(Status)
HANDLES: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()
"""The engine's objects for programs."""


def instruction_sets() -> list[str]:
    """Return the instruction sets of this CPU that the engine supports, best first; empty without an engine."""
    return [] if extension is None else extension.instruction_sets().split()


def convolves(y: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the engine can compute convolutions of images y with these parameters."""
    if extension is None or torch.compiler.is_compiling() or is_followed(y, *parameters):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (y, *parameters))


class StaleError(Exception):
    """A program no longer computes the same as the function from which it was traced."""


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
        return outputs, trace_of(solve.run_one(start, places, last.data_ptr()), last), solve
    times = y0.new_empty(plan.groups, dtype=torch.float64)
    counts = y0.new_empty((4, *plan.groups), dtype=torch.int64)
    calls = solve.run(start, places, last.data_ptr(), times.data_ptr(), [c.data_ptr() for c in counts])
    return outputs, Trace([], last, times, counts[0], Stats(counts[1], counts[2], counts[3], calls)), solve


def made(plan: Plan, field: Compiled, y0: Tensor, tensors: Sequence[Tensor], *, keep: bool, most: int) -> Any:
    """Return the engine's object for a solve."""
    return extension.Solve(task_of(plan, field, y0, keep, most), [x.data_ptr() for x in tensors])


def task_of(plan: Plan, field: Compiled, y0: Tensor, keep: bool, most: int) -> Any:
    """Return the engine's object for everything about a solve except its tensors, from the plan's cache if possible."""
    threads = torch.get_num_threads()
    key = (field.program, field.members, field.shared, field.components, keep, most, threads, instructions)
    return plan.prepared.get(key, lambda: _task(plan, field, y0, keep, most, threads))


def _task(plan: Plan, field: Compiled, y0: Tensor, keep: bool, most: int, threads: int) -> Any:
    """Build the engine's object for :func:`task_of`."""
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
        components=field.components or ((field.dim,) if field.context else ()),
        members=field.members or 1,
        rows=rows,
        group_rows=rows // math.prod(plan.groups),
        keep=keep,
        threads=threads,
        instructions=instructions,
    )


def trace_of(ends: tuple[Any, ...], last: Tensor) -> Trace:
    """Return a trace without outputs, given how the engine says that a solve ended, and its last state."""
    calls, t, status, nfe, accepted, rejected = ends
    return Trace([], last, t, STATUSES[status], Stats(nfe, accepted, rejected, calls))


def field_of(field: Compiled, y: Tensor) -> Any:
    """Return the engine's object that evaluates a compiled field on states like y. It copies the field's tensors."""
    tensors = [laid_out(x) for x in field.tensors]
    return extension.Field(
        is_double=y.dtype == torch.float64,
        program=handle(field.program),
        shared=field.shared,
        members=field.members or 1,
        rows=y.numel() // field.dim,
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


def laid_out(x: Tensor) -> Tensor:
    """Return a contiguous tensor with the same values, without a lazy negation."""
    return x if x.is_contiguous() and not x.is_neg() else x.detach().resolve_neg().contiguous()


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
