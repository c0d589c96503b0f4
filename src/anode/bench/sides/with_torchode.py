"""torchode's ``AutoDiffAdjoint``, in which every point of a batch has a step size of its own."""

from __future__ import annotations

import torch
import torchode
from torch import Tensor, nn

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """A task."""

    def solve(net: nn.Module, y0: Tensor) -> Tensor:
        term = torchode.ODETerm(net)
        method = torchode.Dopri5(term=term)
        controller = torchode.IntegralController(atol=task.tol, rtol=task.tol, term=term)
        solver = torchode.AutoDiffAdjoint(method, controller)
        ends = torch.tensor([0.0, task.t1], dtype=y0.dtype).expand(len(y0), 2)
        problem = torchode.InitialValueProblem(y0=y0, t_eval=ends)
        return solver.solve(problem).ys[:, -1]

    return in_torch.work(task, solve)
