"""anode, used as its documentation shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import anode
from anode.bench.sides import Work
from anode.bench.sides.fields_in_torch import Network
from anode.bench.tasks import Array, Task


def work(task: Task) -> Work:
    """Prepare a task for the fastest available engine."""
    return training(task) if task.kind == "train" else predicting(task) if task.kind == "predict" else solving(task)


def solving(task: Task) -> Work:
    """Prepare ``anode.solve`` of an ``nn.Sequential``."""
    net, y0 = Network(task).net, torch.tensor(task.state())

    def solution() -> anode.Solution:
        return anode.solve(net, y0, (0.0, task.t1), rtol=task.tol, atol=task.tol)

    def gradient() -> Array:
        net.zero_grad()
        y1: Any = solution().y1
        y1.sum().backward()
        return y1.detach().numpy()

    @torch.no_grad()
    def forward() -> Array:
        y1: Any = solution().y1
        return y1.numpy()

    return Work(gradient if task.kind == "gradient" else forward, lambda: np.array([solution().stats.nfe]))


def training(task: Task) -> Work:
    """Prepare ``anode.fit`` of one model, or of a stack."""
    data = [task.data(member) for member in range(task.members)]

    def fresh() -> anode.NeuralODE:
        made = [model(task, member) for member in range(task.members)]
        return made[0] if task.members == 1 else anode.stack(made)

    def train() -> anode.History:
        sets = data[0] if task.members == 1 else data
        return anode.fit(fresh(), sets, epochs=task.epochs, batch_size=task.batch, seed=0, progress=False)

    def run() -> Array:
        losses = np.asarray(train().loss)
        return losses if task.members == 1 else losses[:, 0]

    return Work(run, lambda: np.asarray(train().nfe))


def model(task: Task, member: int) -> anode.NeuralODE:
    """Return the paper's model with given weights, or a member of the family with those of a seed."""
    hidden = task.sizes[1]
    if task.family:
        torch.manual_seed(member)
        settings = {"augment": task.zeros, "hidden": hidden, "layers": len(task.sizes) - 2}
        return anode.family.build(task.family, task.dim - task.zeros, 1, **settings)
    made = anode.NeuralODE(
        task.dim - task.zeros, 1, hidden, layers=len(task.sizes) - 2, augment=task.zeros, rtol=task.tol, atol=task.tol
    )
    field: Any = made.flow.field
    weights = task.weights(member)
    with torch.no_grad():
        for i, (matrix, bias) in enumerate(weights):
            field.weights[i].copy_(torch.tensor(matrix[:, :-1] if i == 0 else matrix))
            field.biases[i].copy_(torch.tensor(bias))
        field.time_weight.copy_(torch.tensor(weights[0][0][:, -1]))
        for parameter, values in zip((made.head.weight, made.head.bias), task.head(member), strict=True):
            parameter.copy_(torch.tensor(values))
    return made


def predicting(task: Task) -> Work:
    """Prepare the prediction of classes by a fitted estimator."""
    estimator = task.estimator

    @torch.no_grad()
    def nfe() -> Array:
        rows = torch.tensor(task.state()[:, : task.dim - task.zeros])
        solution: Any = estimator.model_.run(rows, control=1).solution
        return np.array([solution.stats.nfe.double().mean()])  # every row has its own steps

    return Work(lambda: estimator.predict(task.rows), nfe)
