"""torchdyn's ``NeuralODE``."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torchdyn.core import NeuralODE

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """Prepare a task."""
    span = torch.tensor([0.0, task.t1])

    @cache
    def flow(net: nn.Module) -> NeuralODE:
        return NeuralODE(net, sensitivity="autograd", solver="dopri5", rtol=task.tol, atol=task.tol)

    def solve(net: nn.Module, y0: Tensor) -> Tensor:
        return flow(net)(y0, span)[1][-1]

    return in_torch.work(task, solve)
