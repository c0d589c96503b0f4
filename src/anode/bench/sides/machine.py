"""Measure the peak performance of the machine with a product of large matrices."""

from __future__ import annotations

import numpy as np
import torch

from anode.bench.sides import Work
from anode.bench.tasks import Array, Task

SIZE = 1024
OPERATIONS = 2 * SIZE**3


def work(task: Task) -> Work:
    """Prepare a matrix product in the precision of the task."""
    x = torch.rand(SIZE, SIZE, dtype=getattr(torch, task.dtype))
    out = torch.empty_like(x)

    def run() -> Array:
        torch.mm(x, x, out=out)
        return np.zeros(0)

    return Work(run, lambda: np.zeros(1))
