"""The compiled engine: whole solves of perceptrons, with no Python between the steps.

It decides as the loop in :mod:`anode.ode.integrate` does, and its results differ by rounding only; that loop is what it
is tested against. Where it does not apply, the loop serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anode.engine.perceptron import Perceptron
from anode.ode.control import PID
from anode.ode.gradient import Gradient, is_last_pass, only_once, prepare
from anode.ode.integrate import Trace
from anode.ode.problem import Problem
from anode.ode.solution import Solution, Stats, Status
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

ACTIVATIONS = ("none", "relu", "tanh", "softplus", "silu", "gelu")
"""The activations that the engine has, in its order."""


def instruction_sets() -> list[str]:
    """The instruction sets of this processor for which the engine is compiled, best first; none without an engine."""
    return [] if extension is None else extension.instruction_sets().split()


def convolves(y: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the engine can convolve images y, with these parameters of convolutions."""
    if extension is None or torch.compiler.is_compiling() or is_followed(y, *parameters):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (y, *parameters))


def obstacle(problem: Problem, field: Perceptron | None, gradient: Gradient) -> str:
    """Why the engine cannot take over a solve; nothing if it can."""
    plan, y0 = problem.plan, problem.y0
    recording = torch.is_grad_enabled()
    checks = (
        (problem.engine == "torch", 'engine="torch" was asked for'),
        (extension is None, MISSING),
        (torch.compiler.is_compiling(), "torch compiles what it is called from"),
        (is_followed(y0, *(() if field is None else field.parameters)), "a transform of torch follows the computation"),
        (field is None, "f is no MLPField or nn.Sequential of Linear and activations, or one that was changed"),
        (field is not None and y0.shape[-1:] != (field.sizes[0],), "the state has not as many features as f takes"),
        (torch.is_autocast_enabled("cpu"), "autocast is on"),
        (y0.device.type != "cpu", f"the state is on {y0.device}"),
        (y0.dtype not in DTYPES, f"the state is of {y0.dtype}"),
        (problem.dense, "dense=True keeps slopes"),
        (problem.event is not None, "there is an event"),
        (problem.watch is not None, "there are callbacks"),
        (bool(plan.step_at) or plan.nudge, "there are times where a step has to end"),
        (plan.own_norm, "there is a norm"),
        (type(plan.controller) is not PID, "the controller is not a plain PID"),
        (isinstance(plan.rtol, Tensor) or isinstance(plan.atol, Tensor), "a tolerance is a tensor"),
        (plan.group_dims == y0.ndim, "every number has a step size of its own"),
        (plan.times[0] == plan.times[-1], "the span is empty"),
        (recording and problem.times is not None, "gradients for times are wanted"),
        (recording and not gradient.compiled, f'gradient="{gradient.name}" is not compiled'),
        (recording and problem.params is not None, "params are given"),
    )
    why = next((text for applies, text in checks if applies), "")
    if not why and field is not None and any(p.dtype != y0.dtype or p.device != y0.device for p in field.parameters):
        why = "the field's parameters are of another dtype or on another device than the state"
    if not why and field is not None and [p.shape for p in field.parameters] != field.shapes:
        why = "the field's parameters have other shapes than its layers"
    return why


def solve(problem: Problem, field: Perceptron) -> Solution:
    """The whole solve by the compiled engine, which :func:`obstacle` has nothing against."""
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (problem.y0, *field.parameters)):
        trace, _ = run(problem, field, keep=False)
        return problem.solution(trace, trace.outputs, trace.y, "none")
    report: list[Trace] = []
    *outputs, last = NativeSolve.apply(problem, field, report, problem.y0, *field.parameters)  # type: ignore[no-untyped-call]
    return problem.solution(report[0], outputs, last, "discrete")


class NativeSolve(torch.autograd.Function):
    """A solve by the compiled engine, with its gradient by the same."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, field: Perceptron, report: list[Trace], y0: Tensor, *params: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the solve and put its trace into ``report``; returns the wanted outputs and the last state."""
        trace, solve = run(problem, field, keep=True)
        report.append(trace)
        prepare(ctx, y0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y0, *params)  # so that autograd notices if they are changed in between
        ctx.solve, ctx.stats = solve, trace.stats
        return (*trace.outputs, trace.y)

    @staticmethod
    @only_once
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0 and the parameters."""
        y0, *params = ctx.saved_tensors
        cotangents = tuple(None if g is None else g.resolve_neg().contiguous() for g in cotangents)
        *of_outputs, of_last = (0 if g is None else g.data_ptr() for g in cotangents)
        at_y0 = y0.new_empty(y0.shape)
        gradients = [torch.zeros_like(p, memory_format=torch.contiguous_format) for p in params]
        addresses = [g.data_ptr() for g in gradients]
        ctx.stats.nfe_backward += ctx.solve.backward(of_outputs, of_last, at_y0.data_ptr(), addresses)
        if is_last_pass():
            ctx.solve = None
        return (None, None, None, at_y0, *gradients)


def run(problem: Problem, field: Perceptron, keep: bool) -> tuple[Trace, Any]:
    """A solve by the engine, and what it needs for the backward pass if that is to be kept."""
    plan = problem.plan
    assert isinstance(plan.controller, PID)
    y0 = problem.y0.detach().resolve_neg().contiguous()
    params = [p.detach().resolve_neg().contiguous() for p in field.parameters]
    dim, members = y0.shape[-1], field.members or 1
    groups = math.prod(plan.groups)
    rows = y0.numel() // dim
    solve = extension.Solve(
        is_double=y0.dtype == torch.float64,
        method=method_for(plan.tableau),
        times=plan.times,
        wanted=plan.wanted,
        knots=[t for t, _ in plan.knots or ()],
        rtol=plan.rtol,
        atol=plan.atol,
        first_step=math.nan if plan.first_step is None else plan.first_step,
        min_step=plan.min_step,
        max_step=plan.max_step,
        max_steps=min(plan.max_steps, 2**62),
        controller=plan.controller.numbers,
        grouped=plan.group_dims > 0,
        sizes=field.sizes,
        activations=[ACTIVATIONS.index(name) for name in field.activations],
        time=field.time,
        parameters=[p.data_ptr() for p in params],
        members=members,
        rows=rows,
        group_rows=rows // groups,
        keep=keep,
        threads=torch.get_num_threads(),
        instructions="",
    )
    outputs = [torch.empty_like(y0) for _ in plan.wanted]
    last = torch.empty_like(y0)
    t = y0.new_empty(plan.groups, dtype=torch.float64)
    counts = y0.new_empty((4, *plan.groups), dtype=torch.int64)
    calls = solve.run(
        y0.data_ptr(), [o.data_ptr() for o in outputs], last.data_ptr(), t.data_ptr(), [c.data_ptr() for c in counts]
    )
    if plan.group_dims:
        return Trace(outputs, last, t, counts[0], Stats(counts[1], counts[2], counts[3], calls)), solve
    code, nfe, accepted, rejected = counts.tolist()
    return Trace(outputs, last, float(t), Status(code), Stats(nfe, accepted, rejected, calls)), solve


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
