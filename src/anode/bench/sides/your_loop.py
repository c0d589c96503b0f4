"""anode's ``NeuralODE`` in a user's training loop."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anode.bench.sides import Work
from anode.bench.sides.in_torch import loop
from anode.bench.sides.ours import model
from anode.bench.tasks import Array, Task


def work(task: Task) -> Work:
    """Prepare training."""
    assert task.kind == "train"
    net = model(task, 0)
    train = loop(task, net)

    def nfe() -> Array:
        counts: list[int] = []

        def predict(x: Tensor) -> Tensor:
            outcome = net.run(x)
            assert outcome.solution is not None
            counts.append(outcome.solution.stats.nfe)
            return outcome.prediction

        train(predict)
        return np.array(counts)

    def engine() -> str:
        solved = net.run(torch.tensor(task.state()[:, : task.dim - task.zeros])).solution
        assert solved is not None
        return str(solved.engine)

    return Work(lambda: train(net), nfe, engine)
