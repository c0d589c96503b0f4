"""``anode.solve`` on a user's module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import anode
from anode.bench.sides import Work, in_torch
from anode.bench.sides.fields_in_torch import module, start
from anode.bench.sides.in_torch import Solve, result
from anode.bench.tasks import Task


def solution(task: Task, net: nn.Module, y0: Any) -> anode.Solution:
    """Solve a task, as a user would write it."""
    steps: dict[str, Any] = {"step_size": task.step} if task.step else {"rtol": task.tol, "atol": task.tol}
    times = task.times.tolist() if task.outputs > 1 else None
    return anode.solve(net, y0, (0.0, task.t1), save_at=times, method=task.method, **steps).check()


def engine_of(task: Task) -> str:
    """Return which engine solves a task, with a gradient if the task has one."""
    with torch.set_grad_enabled(task.kind in ("train", "gradient")):
        return str(solution(task, module(task), start(task)).engine)


def work(task: Task) -> Work:
    """Prepare a task."""

    def solve(net: nn.Module, y0: Any) -> Any:
        return read(solution(task, net, y0))

    def read(solved: anode.Solution) -> Any:
        return solved.y1 if task.outputs == 1 else result(task, solved.ys)

    def by_stats(_: Solve, counts: list[int]) -> Solve:
        def counted(net: nn.Module, y0: Any) -> Any:
            solved = solution(task, net, y0)
            counts.append(solved.stats.nfe)
            return read(solved)

        return counted

    return in_torch.work(task, solve, by_stats, lambda: engine_of(task))
