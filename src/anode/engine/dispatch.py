"""Who solves: the compiled engine where it applies, else the loop in Python."""

from __future__ import annotations

import torch

from anode.engine import native
from anode.engine.perceptron import Transparent
from anode.ode.gradient import Gradient
from anode.ode.problem import Problem
from anode.ode.solution import Solution


def run(problem: Problem, gradient: Gradient) -> Solution:
    """Solve a problem so that autograd can differentiate the solution as ``gradient`` says."""
    seen = isinstance(problem.f, Transparent) and problem.engine != "torch" and not problem.packing.is_tuple
    field = problem.f.perceptron() if seen else None  # type: ignore[attr-defined]
    problem.obstacle = native.obstacle(problem, field, gradient)
    if not problem.obstacle and field is not None:
        return native.solve(problem, field)
    if problem.engine == "native":
        raise ValueError(f'engine: takes "auto" or "torch" here, got "native", and {problem.obstacle}')
    return gradient.solve(problem) if torch.is_grad_enabled() else problem.unrecorded()
