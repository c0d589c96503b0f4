"""torchode's ``AutoDiffAdjoint``, where every sample of a batch has its own step size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torchode
from torch import Tensor, nn

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task, compiled: bool = False) -> Work:
    """Prepare a task."""

    @cache
    def solver(net: nn.Module) -> Callable[[torchode.InitialValueProblem], torchode.Solution]:
        term = torchode.ODETerm(net)
        controller = torchode.IntegralController(atol=task.tol, rtol=task.tol, term=term)
        solve = torchode.AutoDiffAdjoint(torchode.Dopri5(term=term), controller).solve
        return torch.compile(solve) if compiled else solve

    def solve(net: nn.Module, y0: Tensor) -> Tensor:
        ends = torch.tensor([0.0, task.t1], dtype=y0.dtype).expand(len(y0), 2)
        problem = torchode.InitialValueProblem(y0=y0, t_eval=ends)
        return solver(net)(problem).ys[:, -1]

    return in_torch.work(task, solve)
