"""Who solves: the compiled engine where it applies, else the loop in Python."""

from __future__ import annotations

import torch
from torch import Tensor

from anode.engine import native
from anode.engine.compiled import Compiled
from anode.engine.compiling import compiled, is_tried, known_of
from anode.engine.known import memory_of
from anode.engine.perceptron import Transparent
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
        problem.obstacle = "" if field is known.compiled else native.unfit(field, problem.y0)
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


def first_slope(problem: Problem) -> Tensor:
    """The slope at the start, as f computes it."""
    if problem.slope is not None:
        return problem.slope.detach()
    prepared = problem.plan.prepared
    if "now" not in prepared:
        with torch.inference_mode(False):
            prepared["now"] = problem.now.detach()
    with torch.no_grad():
        return problem.rate(prepared["now"], problem.y0)  # f was seen not to write into its arguments
