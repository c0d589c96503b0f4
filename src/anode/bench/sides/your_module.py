"""anode's ``odeint`` on a module of the user's, evaluated and differentiated by torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import anode
from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """A task."""
    span = torch.tensor([0.0, task.t1])

    def solve(net: nn.Module, y0: Tensor) -> Tensor:
        return anode.odeint(net, y0, span, rtol=task.tol, atol=task.tol)[-1]

    return in_torch.work(task, solve)
