"""``anode.fit`` of a ``NeuralODE`` with a user's field and head."""

from __future__ import annotations

import numpy as np

import anode
from anode.bench.sides import Work
from anode.bench.sides.fields_in_torch import linear, module
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """Prepare training."""
    assert task.kind == "train"
    data = task.data()

    def train() -> anode.History:
        field, head = module(task), linear(*task.head())
        model = anode.NeuralODE(field=field, head=head, augment=task.zeros, t1=task.t1, rtol=task.tol, atol=task.tol)
        return anode.fit(model, data, epochs=task.epochs, batch_size=task.batch, seed=0, progress=False)

    return Work(lambda: np.asarray(train().loss), lambda: np.asarray(train().nfe), lambda: train().engine)
