"""Tasks written in torch, for any solver."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.bench.sides import Work, ours
from anode.bench.sides.fields_in_torch import flat, linear, module, start
from anode.bench.tasks import Array, Task

Solve = Callable[[nn.Module, Any], Any]
Count = Callable[[Solve, list[int]], Solve]
"""Makes a solver that does the same, and appends to a list how often each solve evaluates the network."""


def by_hook(solve: Solve, counts: list[int]) -> Solve:
    """Count the calls of a module with a hook."""

    def counted(net: nn.Module, y0: Any) -> Any:
        calls: list[None] = []
        hook = net.register_forward_hook(lambda *_: calls.append(None))
        y1 = solve(net, y0)
        hook.remove()
        counts.append(len(calls))
        return y1

    return counted


def work(task: Task, solve: Solve, count: Count = by_hook, engine: Callable[[], str] = str) -> Work:
    """Prepare any task of one model, given a function that solves from y(0) to y(t1)."""
    assert task.members == 1
    net, head = module(task), linear(*task.head())
    run = {"train": by_hand, "gradient": differentiating, "solve": forward, "predict": predicting}[task.kind]
    does = run(task, net, head)

    def nfe() -> Array:
        counts: list[int] = []
        does(count(solve, counts))
        return np.array(counts)

    return Work(lambda: does(solve), nfe, engine)


def by_hand(task: Task, net: nn.Module, head: nn.Module) -> Callable[[Solve], Array]:
    """Prepare training of a right-hand side and a head, or of a member of the family."""
    if task.family:
        model = ours.model(task, 0)
        flow, train = model.flow, loop(task, model)
        return lambda solve: train(lambda x: model.head(solve(flow.field, flow.augment(x))))
    both = nn.ModuleList([net, head])

    def run(solve: Solve) -> Array:
        def predict(x: Tensor) -> Tensor:
            return head(solve(net, torch.cat([x, torch.zeros(len(x), task.zeros)], 1)))

        return train(predict)

    train = loop(task, both)
    return run


def loop(task: Task, model: nn.Module) -> Callable[[Callable[[Tensor], Tensor]], Array]:
    """Return a function that trains a model from its present weights in a training loop, and returns the losses."""
    before = deepcopy(model.state_dict())

    def train(predict: Callable[[Tensor], Tensor]) -> Array:
        data = task.data()
        model.load_state_dict(before)
        adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True if task.fused else None)
        losses = []
        for epoch in range(task.epochs):
            for batch in task.order(epoch).split(task.batch):
                loss = nn.functional.smooth_l1_loss(predict(data.x[batch]), data.y[batch])
                adam.zero_grad()
                loss.backward()
                adam.step()
                losses.append(loss.item())
        return np.array(losses)

    return train


def differentiating(task: Task, net: nn.Module, head: nn.Module) -> Callable[[Solve], Array]:
    """Prepare a solve with the gradient of the sum of its final state."""
    y0 = start(task)

    def run(solve: Solve) -> Array:
        net.zero_grad()
        y1 = flat(solve(net, y0))
        y1.sum().backward()
        return y1.detach().numpy()

    return run


def forward(task: Task, net: nn.Module, head: nn.Module) -> Callable[[Solve], Array]:
    """Prepare a solve without gradient."""
    y0 = start(task)

    @torch.no_grad()
    def run(solve: Solve) -> Array:
        return flat(solve(net, y0)).numpy()

    return run


def predicting(task: Task, net: nn.Module, head: nn.Module) -> Callable[[Solve], Array]:
    """Prepare the prediction of the classes of many rows."""

    @torch.no_grad()
    def run(solve: Solve) -> Array:
        rows = torch.from_numpy(task.rows)
        offset, scale = (torch.from_numpy(part).to(rows) for part in (task.estimator.offset_, task.estimator.scale_))
        x = torch.cat([(rows - offset) / scale, torch.zeros(len(rows), task.zeros)], 1)
        return classes(head(solve(net, x))).numpy()

    return run


def classes(scores: Tensor) -> Tensor:
    """Return the predicted classes, from one score for the second class or one score per class."""
    return (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)


def result(task: Task, ys: Any) -> Any:
    """Return the last of the stacked states, or their mean if the task wants several."""
    if isinstance(ys, tuple):
        return tuple(result(task, part) for part in ys)
    return ys.mean(0) if task.outputs > 1 else ys[-1]


def by_odeint(task: Task, odeint: Callable[..., Any]) -> Solve:
    """Return a function that solves with torchdiffeq's ``odeint``, or one with the same arguments."""
    span = torch.from_numpy(task.times)
    options = {"options": {"step_size": task.step}} if task.step else {}

    def solve(net: nn.Module, y0: Any) -> Any:
        ys = odeint(net, y0, span, rtol=task.tol, atol=task.tol, method=task.method, **options)
        return result(task, ys)

    return solve
