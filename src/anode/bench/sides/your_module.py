"""anode's ``odeint`` on a user's module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import anode
from anode.bench.sides import Work, in_torch
from anode.bench.sides.in_torch import Solve
from anode.bench.sides.your_module_in_solve import engine_of
from anode.bench.tasks import Task


class Counter(nn.Module):
    """A right-hand side that counts its evaluations in an attribute, as published ones do.

    A hook is no alternative: Python evaluates modules with hooks, so the compiled engine would not be measured.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.nfe = net, 0

    def forward(self, t: Tensor, y: Any) -> Any:
        """Count the evaluation and return the slope."""
        self.nfe += 1
        return self.net(t, y)


def by_counter(solve: Solve, counts: list[int]) -> Solve:
    """Count the evaluations with the counter of the module."""

    def counted(net: nn.Module, y0: Any) -> Any:
        counter = Counter(net)
        y1 = solve(counter, y0)
        counts.append(counter.nfe)
        return y1

    return counted


def work(task: Task) -> Work:
    """Prepare a task."""
    return in_torch.work(task, in_torch.by_odeint(task, anode.odeint), by_counter, lambda: engine_of(task))
