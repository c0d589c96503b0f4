"""Choose what solves: the compiled engine, or the Python loop, for which the engine may still evaluate f."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from anode.engine import native, obstacles, solving
from anode.engine.compiled import Compiled
from anode.engine.compiling import compiled, example_of, is_tried, known_of, unlike
from anode.engine.derivative import CompiledDerivative
from anode.engine.known import Known
from anode.engine.memory import forget
from anode.engine.transparent import Transparent
from anode.ode.continuous import Continuous
from anode.ode.discrete import DiscreteTwice
from anode.ode.field import Derivative, always_recorded
from anode.ode.gradient import Gradient
from anode.ode.integrate import Trace
from anode.ode.problem import Problem
from anode.ode.solution import Solution
from anode.ode.transforms import is_followed, may_be_followed, saves_are_hooked

R = TypeVar("R")


def run(problem: Problem, gradient: Gradient) -> Solution:
    """Solve a problem and return a solution that autograd can differentiate by ``gradient``."""
    outside = obstacles.of_field(problem)
    inside = obstacles.of_loop(problem) or obstacles.of_gradient(problem, gradient)
    problem.obstacle = outside or inside
    if not problem.obstacle:
        solution, problem.obstacle = with_field(problem, lambda field, known: _solved(problem, gradient, field, known))
        if solution is not None:
            return solution
    if problem.engine == "native":
        raise ValueError(f'engine: takes "auto" or "torch" for this solve, got "native", but {problem.obstacle}')
    # Only autograd can differentiate what callbacks write into the state.
    if inside and not outside and not (problem.watch_writes and torch.is_grad_enabled()):
        compile_field(problem, gradient)
        if problem.compiled is not None and gradient.compiled and gradient.twice and not problem.dense:
            gradient = DiscreteTwice()
    if not torch.is_grad_enabled():
        return problem.unrecorded()
    if problem.compiled is None:
        problem.rate = always_recorded(problem.rate)
    solution = gradient.solve(problem)
    if gradient.compiled and isinstance(problem.compiled, CompiledDerivative):
        problem.compiled.counters.clear()  # the backward pass does not call f
    return solution


def compile_field(problem: Problem, gradient: Gradient) -> None:
    """Let the engine evaluate f for the Python loop, and take the steps itself if gradients are not recorded."""
    problem.compiled, _ = with_field(problem, lambda field, known: _prepared(problem, gradient, field, known))
    problem.found = None  # autograd's graph did not show the tensors that were computed before, the program has them


def compiled_again(problem: Problem, params: Sequence[Tensor]) -> Derivative | None:
    """Return the compiled derivative of f for a backward solve, or ``None``. f may have changed since the solve."""
    problem.slope = None
    with torch.enable_grad():
        derivative, _ = with_field(problem, lambda field, known: _prepared(problem, Continuous(), field, known))
    if derivative is None:
        return None
    derivative.count(-1)  # f was evaluated to see whether it has changed
    return derivative.wanted(params, False)


def with_field(problem: Problem, use: Callable[[Compiled, Known | None], R | None]) -> tuple[R | None, str]:
    """Call ``use`` with the compiled field and what is known of it, and return its result and an empty text.

    If f cannot be compiled, return ``None`` and why. What is known is ``None`` for a field that describes itself.
    """
    field = described(problem)
    return traced(problem, use) if field is None else (use(field, None), "")


def described(problem: Problem) -> Compiled | None:
    """Return the compiled field if f describes itself and fits the state, otherwise ``None``."""
    f = problem.f
    field = f.compiled() if isinstance(f, Transparent) and not problem.packing.is_tuple else None
    if field is None or problem.y0.shape[-1:] != (field.program.dim,):
        return None
    return None if obstacles.unfit(field, problem.y0) else field


def traced(problem: Problem, use: Callable[[Compiled, Known], R | None]) -> tuple[R | None, str]:
    """Trace f and call ``use`` with it, see :func:`with_field`."""
    if saves_are_hooked():
        return None, "torch.utils.checkpoint, or another hook, replaces the tensors that autograd saves"
    if problem.own_derivative is not None:
        return None, "f brings a derivative of its own"
    for _ in range(2):
        known = known_of(problem)
        if known.obstacle:
            return None, known.obstacle
        if known.traced is not None and known.traced.differentiates and torch.is_grad_enabled():
            problem.rate = always_recorded(problem.rate)
        field = compiled(known, problem)
        unfit = "" if field is known.compiled else obstacles.unfit(field, problem.y0)
        if may_be_followed() and is_followed(*field.tensors, *field.sources, *field.context):
            unfit = obstacles.FOLLOWED
        if unfit := unfit or number_obstacle(known, problem):
            return None, unfit
        known.keep(field)
        try:
            if not is_tried(known, problem, field):
                raise native.StaleError
            return use(field, known), ""
        except native.StaleError:
            forget(problem.f, known)
            problem.slope = problem.found = None  # so that f is called, and observed, once more
    return None, "f does not compute what was traced of it"


def _solved(problem: Problem, gradient: Gradient, field: Compiled, known: Known | None) -> Solution:
    """Run the whole solve in the engine."""
    if known is None or is_sure(known, problem):
        return solving.solve(problem, field, gradient)
    solution = solving.solve(problem, field, gradient, first_slope(problem))
    known.count(solution.stats.calls - 1)  # f made the first call itself
    return solution


def _prepared(problem: Problem, gradient: Gradient, field: Compiled, known: Known | None) -> CompiledDerivative | None:
    """Return the compiled derivative of f; ``None`` if it does not provide what is needed."""
    if torch.is_grad_enabled() and gradient.compiled:
        if problem.times is not None and field.program.uses_time:
            return None  # the derivative with respect to time is not compiled
        records = problem.dense or problem.plan.adams is not None
        if records and any(x.requires_grad for x in (problem.y0, *field.tensors, *field.context)):
            return None  # autograd has to record the slopes
    derivative = CompiledDerivative(problem, field, [] if known is None else list(known.counters))
    if known is not None and not is_sure(known, problem):
        if problem.slope is None:
            problem.slope = problem.rate(problem.now, problem.y0)
        if not derivative.agrees(problem.now, problem.y0, problem.slope.detach()):
            problem.slope = None
            raise native.StaleError

    def integrate(y0: Tensor, slope: Tensor | None) -> Trace:
        trace = solving.integrate(problem, field, y0)
        if known is not None:
            known.count(trace.stats.calls - (slope is not None))  # f evaluated this slope itself
        return trace

    if not obstacles.of_loop(problem):
        problem.loop = integrate
    return derivative


def number_obstacle(known: Known, problem: Problem) -> str:
    """Return an obstacle if f computes something else for this number of points; empty if it does not."""
    if known.traced is None or known.traced.numbers is None or known.first is not None:
        return ""
    if problem.y0.shape in known.tried:  # then the number of points was checked before
        return ""
    return unlike(known, problem.f, example_of(problem))


def is_sure(known: Known, problem: Problem) -> bool:
    """Whether a solve need not call f to see that its program still holds: only code of torch and anode ran in it."""
    return not known.guard.codes and problem.slope is None


def first_slope(problem: Problem) -> Tensor:
    """Return the slope at the start, computed by f itself."""
    if problem.slope is not None:
        return problem.slope.detach()

    def now() -> Tensor:
        with torch.inference_mode(False):
            return problem.now.detach()

    with torch.no_grad():  # f is known not to write into its arguments
        return problem.rate(problem.plan.prepared.get("now", now), problem.y0)
