"""The exact gradient of the accepted steps, with autograd recording the whole solve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from anode.ode.gradient import Gradient
from anode.ode.solution import Solution

if TYPE_CHECKING:
    from anode.ode.problem import Problem


@dataclass(frozen=True)
class Stored(Gradient):
    """The exact gradient of the accepted steps, with autograd recording the whole solve.

    It is fast and can be differentiated again. Its memory grows with the number of steps.
    """

    compiled = True
    twice = True

    def solve(self, problem: Problem) -> Solution:
        if problem.compiled is not None:  # and gradients are not recorded, see anode.engine.dispatch
            return problem.unrecorded()
        if problem.times is not None and torch.is_grad_enabled():
            problem.plan = replace(problem.plan, moving_times=problem.times)
        trace = problem.integrate(problem.y0, slope=problem.slope, dense=problem.dense)
        recorded = any(y.requires_grad for y in (trace.y, *trace.outputs))
        return problem.solution(trace, trace.outputs, trace.y, self.name if recorded else "none")
