"""torchdiffeq's ``odeint``, backpropagated through, as the paper's authors use it."""

from __future__ import annotations

import torchdiffeq

from anode.bench.sides import Work, in_torch
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """A task."""
    return in_torch.work(task, in_torch.by_odeint(task, torchdiffeq.odeint))
