"""Who solves: the compiled engine where it applies, else the loop in Python."""

from __future__ import annotations

import torch
from torch import Tensor

from anode.engine import native
from anode.engine.compiled import Compiled
from anode.engine.compiling import Example, compiled, components, is_tried, known_of
from anode.engine.known import Known, memory_of
from anode.engine.mapped import Mapped
from anode.engine.perceptron import Transparent
from anode.engine.trace.calls import Calls, calls_of
from anode.ode.gradient import Gradient
from anode.ode.problem import Problem
from anode.ode.solution import Solution


def run(problem: Problem, gradient: Gradient) -> Solution:
    """Solve a problem so that autograd can differentiate the solution as ``gradient`` says."""
    problem.obstacle = native.obstacle(problem, gradient)
    if not problem.obstacle:
        field = described(problem)
        solution = traced(problem, gradient) if field is None else native.solve(problem, field, gradient)
        if solution is not None:
            return solution
    if problem.engine == "native":
        raise ValueError(f'engine: takes "auto" or "torch" here, got "native", and {problem.obstacle}')
    return gradient.solve(problem) if torch.is_grad_enabled() else problem.unrecorded()


def described(problem: Problem) -> Compiled | None:
    """A field that tells what it computes, if it does and fits the state."""
    f = problem.f
    perceptron = f.perceptron() if isinstance(f, Transparent) and not problem.packing.is_tuple else None
    field = None if perceptron is None else perceptron.compiled()
    if perceptron is None or field is None or problem.y0.shape[-1:] != (perceptron.sizes[0],):
        return None
    return None if native.unfit(field, problem.y0) else field


def traced(problem: Problem, gradient: Gradient) -> Solution | None:
    """The solve of a function that was traced; ``None``, and an obstacle, if it has to be called as it is."""
    problem.obstacle = "f brings a derivative of its own" if problem.own_derivative is not None else ""
    for _ in range(0 if problem.obstacle else 2):
        known = known_of(problem)
        if known.obstacle:
            problem.obstacle = known.obstacle
            return None
        field = compiled(known, problem)
        unfit = "" if field is known.compiled else native.unfit(field, problem.y0)
        problem.obstacle = unfit or number_obstacle(known, problem)
        if problem.obstacle:
            return None
        known.keep(field)
        try:
            if not is_tried(known, problem, field):
                raise native.StaleError
            solution = native.solve(problem, field, gradient, first_slope(problem))
        except native.StaleError:
            memory_of(problem.f).forget(known)
            continue
        for counter in known.counters:
            counter.advance(solution.stats.calls - 1)  # the first was f's own
        return solution
    problem.obstacle = problem.obstacle or "f does not compute what was traced of it"
    return None


def number_obstacle(known: Known, problem: Problem) -> str:
    """Say that f computes something else with as many points as there are; empty if it does not."""
    if known.traced is None or known.traced.numbers is None or known.first is not None:
        return ""
    f = problem.f
    example = Example(components(problem), problem.packing.is_tuple, problem.plan.times[0], problem.plan.group_dims)
    example, f = example.of_member(f), f.member().f if isinstance(f, Mapped) else f
    states = tuple(x.detach() for x in example.states)
    points = len(states[0])

    def call() -> Calls:
        t = torch.tensor(example.t, dtype=states[0].dtype)
        if example.group_dims:
            t = t.expand(points, *[1] * (1 if example.is_tuple else states[0].ndim - 1))
        counts = [counter.count() for counter in known.counters]
        calls = calls_of(f, t, states if example.is_tuple else states[0])
        for counter, count in zip(known.counters, counts, strict=True):
            counter.reset(count)
        return calls

    return known.traced.numbers.obstacle(points, call)


def first_slope(problem: Problem) -> Tensor:
    """The slope at the start, as f computes it."""
    if problem.slope is not None:
        return problem.slope.detach()

    def now() -> Tensor:
        with torch.inference_mode(False):
            return problem.now.detach()

    with torch.no_grad():  # f was seen not to write into its arguments
        return problem.rate(problem.plan.prepared.get("now", now), problem.y0)
