"""torchdiffeq's ``odeint``, backpropagated through, as the paper's authors use it."""

from __future__ import annotations

import torch
import torchdiffeq
from torch import Tensor, nn

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """A task."""
    span = torch.tensor([0.0, task.t1])

    def solve(net: nn.Module, y0: Tensor) -> Tensor:
        return torchdiffeq.odeint(net, y0, span, rtol=task.tol, atol=task.tol, method="dopri5")[-1]

    return in_torch.work(task, solve)
