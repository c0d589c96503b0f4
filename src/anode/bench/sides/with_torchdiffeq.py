"""torchdiffeq's ``odeint`` with backpropagation through the solver, as the paper's authors use it."""

from __future__ import annotations

import torchdiffeq

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """Prepare a task."""
    return in_torch.work(task, in_torch.by_odeint(task, torchdiffeq.odeint))
