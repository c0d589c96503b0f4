"""Compare the hyperparameter search with scikit-learn's GridSearchCV over skorch and torchdiffeq.

The grid is the paper's for ANODEs on g in two dimensions: 36 settings in 3 folds. anode trains settings together. The
other side works as in the paper: GridSearchCV, skorch, and a model of torch layers on torchdiffeq. It runs a random
fifth of the grid, and its total time is extrapolated from that. Both sides use two processes with one thread each.

Run ``python benchmarks/search.py``; it takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median

import joblib
import numpy as np
import torch
import torchdiffeq
from rich.console import Console
from rich.table import Table
from sklearn.model_selection import GridSearchCV, KFold
from skorch import NeuralNetRegressor
from torch import Tensor, nn

import anode
from anode.experiments.search.grid import search
from anode.experiments.search.runs import Cross
from anode.experiments.search.spaces import PAPER_GRIDS, Setting, settings
from anode.train.progress import Bars


class Module(nn.Module):
    """An ANODE in the plane out of torch's layers, solved by torchdiffeq, as skorch makes it."""

    def __init__(self, hidden: int = 32, augment: int = 5) -> None:
        torch.set_num_threads(1)
        super().__init__()
        self.augment, dim = augment, 2 + augment
        inner = (nn.Linear(dim + 1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.net, self.head = nn.Sequential(*inner), nn.Linear(dim, 1)

    def field(self, t: Tensor, h: Tensor) -> Tensor:
        return self.net(torch.cat([h, t.expand(len(h), 1)], 1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([x, x.new_zeros(len(x), self.augment)], 1)
        times = torch.tensor([0.0, 1.0])
        return self.head(torchdiffeq.odeint(self.field, h, times, rtol=1e-3, atol=1e-3, method="dopri5")[-1])


def ours(epochs: int, jobs: int) -> float:
    """Seconds for the whole grid."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        search({"ANODE": PAPER_GRIDS["ANODE"]}, [Cross(epochs=epochs)], Path(folder), jobs, Bars())
        return time.perf_counter() - start


def theirs(some: list[Setting], epochs: int, jobs: int) -> float:
    """Seconds for some settings."""
    net = NeuralNetRegressor(
        Module, criterion=nn.SmoothL1Loss, optimizer=torch.optim.Adam, max_epochs=epochs, train_split=None, verbose=0
    )
    grid = [
        {
            "batch_size": [one.batch_size],
            "lr": [one.lr],
            "module__hidden": [one.hidden],
            "module__augment": [one.augment],
        }
        for one in some
    ]
    data = anode.datasets.load("g", dim=2, seed=0)
    folds = KFold(3, shuffle=True, random_state=0)
    start = time.perf_counter()
    GridSearchCV(net, grid, cv=folds, scoring="neg_mean_squared_error", refit=False, n_jobs=jobs).fit(
        data.x.numpy().astype(np.float32), data.y.numpy().astype(np.float32)
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of each side (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="how often each side has its turn (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = list(settings("ANODE", PAPER_GRIDS["ANODE"]))
    generator, fifth = random.Random(0), len(every) // 5
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        theirs(every[:2], 1, options.jobs)  # starts the processes
        mine, other = [], []
        for _ in range(options.turns):
            mine.append(ours(options.epochs, options.jobs))
            spent = theirs(generator.sample(every, fifth), options.epochs, options.jobs)
            other.append(spent * len(every) / fifth)
    ratio = median(other) / median(mine)
    table = Table("", "seconds", title=f"36 settings x 3 folds x {options.epochs} epochs, {options.jobs} processes")
    table.add_row("anode search", f"{median(mine):.1f}")
    table.add_row(f"GridSearchCV, skorch, torchdiffeq (from {fifth} of 36 settings)", f"{median(other):.1f}")
    table.add_row("", f"{ratio:.1f}x faster")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({"anode": mine, "skorch": other, "ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
