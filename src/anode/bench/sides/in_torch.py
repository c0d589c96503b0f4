"""Tasks as they are written in torch, for any solver."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from anode.bench.sides import Work
from anode.bench.tasks import Array, Task

LAYERS = {"relu": nn.ReLU, "softplus": nn.Softplus, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}
Solve = Callable[[nn.Module, Tensor], Tensor]


class Network(nn.Module):
    """The right-hand side as users write it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for (matrix, bias), activation in zip(task.weights(), task.activations, strict=True):
            layers.append(linear(matrix, bias))
            if activation != "none":
                layers.append(LAYERS[activation]())
        self.net, self.time = nn.Sequential(*layers), task.time

    def forward(self, t: Tensor, y: Tensor, args: object = None) -> Tensor:
        """Time is appended to the state as one more column; ``args`` is what torchdyn passes."""
        return self.net(torch.cat([y, t.expand(len(y)).unsqueeze(1)], dim=1) if self.time else y)


def linear(matrix: Array, bias: Array) -> nn.Linear:
    """A layer with given weights."""
    layer = nn.Linear(*reversed(matrix.shape))
    layer.weight, layer.bias = (nn.Parameter(torch.tensor(values)) for values in (matrix, bias))
    return layer


def work(task: Task, solve: Solve) -> Work:
    """Any task of one model, given how to get from y(0) to y(t1)."""
    assert task.members == 1
    y0, net = torch.tensor(task.state()), Network(task)
    head = linear(*task.head())
    model = nn.ModuleList([net, head])
    start = deepcopy(model.state_dict())

    def train(solve: Solve) -> Array:
        data = task.data()
        model.load_state_dict(start)
        adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for epoch in range(task.epochs):
            for batch in task.order(epoch).split(task.batch):
                x = torch.cat([data.x[batch], torch.zeros(len(batch), task.zeros)], 1)
                loss = nn.functional.smooth_l1_loss(head(solve(net, x)), data.y[batch])
                adam.zero_grad()
                loss.backward()
                adam.step()
                losses.append(loss.item())
        return np.array(losses)

    def gradient(solve: Solve) -> Array:
        net.zero_grad()
        y1 = solve(net, y0)
        y1.sum().backward()
        return y1.detach().numpy()

    @torch.no_grad()
    def forward(solve: Solve) -> Array:
        return solve(net, y0).numpy()

    @torch.no_grad()
    def predict(solve: Solve) -> Array:
        rows = torch.from_numpy(task.rows)
        offset, scale = (torch.from_numpy(part).to(rows) for part in (task.estimator.offset_, task.estimator.scale_))
        x = torch.cat([(rows - offset) / scale, torch.zeros(len(rows), task.zeros)], 1)
        return classes(head(solve(net, x))).numpy()

    run = {"train": train, "gradient": gradient, "solve": forward, "predict": predict}[task.kind]

    def nfe() -> Array:
        counts: list[int] = []
        run(counting(solve, counts))
        return np.array(counts)

    return Work(lambda: run(solve), nfe)


def classes(scores: Tensor) -> Tensor:
    """What is predicted, given one score of the second class or scores of all."""
    return (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)


def counting(solve: Solve, counts: list[int]) -> Solve:
    """The same solver, which appends how often each solve calls the module."""

    def counted(net: nn.Module, y0: Tensor) -> Tensor:
        calls: list[None] = []
        hook = net.register_forward_hook(lambda *_: calls.append(None))
        y1 = solve(net, y0)
        hook.remove()
        counts.append(len(calls))
        return y1

    return counted
