"""torchode's ``AutoDiffAdjoint``, in which every point of a batch has a step size of its own."""

from __future__ import annotations

from functools import lru_cache

import torch
import torchode
from torch import Tensor, nn

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """A task."""

    @lru_cache(maxsize=2)
    def solver(net: nn.Module) -> torchode.AutoDiffAdjoint:
        term = torchode.ODETerm(net)
        controller = torchode.IntegralController(atol=task.tol, rtol=task.tol, term=term)
        return torchode.AutoDiffAdjoint(torchode.Dopri5(term=term), controller)

    def solve(net: nn.Module, y0: Tensor) -> Tensor:
        ends = torch.tensor([0.0, task.t1], dtype=y0.dtype).expand(len(y0), 2)
        problem = torchode.InitialValueProblem(y0=y0, t_eval=ends)
        return solver(net).solve(problem).ys[:, -1]

    return in_torch.work(task, solve)
