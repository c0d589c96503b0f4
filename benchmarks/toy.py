"""The toy protocol side by side: many repeats at once, the same one after another, and the same on torchdiffeq.

All train the same networks on the same data in the same order with Adam, on as many threads. The torchdiffeq side is
written as the paper's authors did: ``torch.nn`` layers, time concatenated, backpropagation through the solver, one run
after another. The sides take turns, repeat by repeat, so that a slow moment of the machine hits all of them.

Run ``python benchmarks/toy.py``; it takes some minutes, nearly all of them on the other side.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
import torchdiffeq
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import anode

BATCH = 64


class TorchdiffeqODE(nn.Module):
    """A NODE or ANODE out of torch's layers, solved by torchdiffeq."""

    def __init__(self, model: anode.NeuralODE) -> None:
        super().__init__()
        field = model.flow.field
        self.augment = model.settings["augment"]
        dim, hidden = field.dim, field.hidden
        relu = nn.ReLU()
        self.net = nn.Sequential(
            nn.Linear(dim + 1, hidden), relu, nn.Linear(hidden, hidden), relu, nn.Linear(hidden, dim)
        )
        self.head = nn.Linear(dim, 1)
        first = torch.cat([field.weights[0], field.time_weight.unsqueeze(1)], 1)
        weights = [first, *field.weights[1:], model.head.weight]
        linears = [*(layer for layer in self.net if isinstance(layer, nn.Linear)), self.head]
        for linear, weight, bias in zip(linears, weights, [*field.biases, model.head.bias], strict=True):
            linear.load_state_dict({"weight": weight, "bias": bias})
        self.nfe = 0

    def field(self, t: Tensor, h: Tensor) -> Tensor:
        self.nfe += 1
        return self.net(torch.cat([h, t.expand(len(h), 1)], 1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([x, x.new_zeros(len(x), self.augment)], 1)
        times = torch.tensor([0.0, 1.0])
        return self.head(torchdiffeq.odeint(self.field, h, times, rtol=1e-3, atol=1e-3, method="dopri5")[-1])


def order(seed: int, epoch: int, size: int) -> Tensor:
    """The order of the data that :func:`anode.fit` takes."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def train_on_torchdiffeq(model: TorchdiffeqODE, data: anode.datasets.Dataset, epochs: int, seed: int) -> list[float]:
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(epochs):
        for batch in order(seed, epoch, len(data)).split(BATCH):
            loss = nn.functional.smooth_l1_loss(model(data.x[batch]), data.y[batch])
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
    return losses


def seconds(work) -> tuple[float, object]:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def compare(dim: int, augment: int, repeats: int, epochs: int) -> dict[str, float]:
    """Seconds of the three ways, for all repeats."""
    datasets = [anode.datasets.g(dim, seed=seed) for seed in range(repeats)]
    fit = {"epochs": epochs, "batch_size": BATCH, "progress": False}

    def fresh() -> anode.NeuralODE:
        return anode.seeded(lambda: anode.NeuralODE(dim, 1, augment=augment), range(repeats))

    anode.fit(fresh(), datasets, **{**fit, "epochs": 1})  # warm up
    together, alone, other, off = [], [], [], []
    members = anode.unstack(fresh())
    for seed in track(
        range(repeats), description=f"d = {dim}, p = {augment}", console=Console(stderr=True), transient=True
    ):
        rival = TorchdiffeqODE(members[seed])
        spent, theirs = seconds(lambda: train_on_torchdiffeq(rival, datasets[seed], epochs, seed))  # noqa: B023
        other.append(spent)
        spent, ours = seconds(lambda: anode.fit(members[seed], datasets[seed], seed=seed, **fit))  # noqa: B023
        alone.append(spent)
        off.append(abs(ours.loss[:20] - theirs[:20]).max())  # type: ignore[attr-defined, index]
        if seed % 4 == 0:
            together.append(seconds(lambda: anode.fit(fresh(), datasets, seed=0, **fit))[0])
    return {
        "dim": dim,
        "augment": augment,
        "together": median(together),
        "alone": sum(alone),
        "torchdiffeq": sum(other),
        "largest difference of loss in the first 20 iterations": float(max(off)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="members (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [compare(2, augment, options.repeats, options.epochs) for augment in (0, 5)]
    table = Table(
        "g, d = 2",
        "together",
        "one after another",
        "torchdiffeq",
        "together / one after another",
        "together / torchdiffeq",
        title=f"{options.repeats} repeats x {options.epochs} epochs, {options.threads} thread(s), seconds",
    )
    for row in rows:
        table.add_row(
            f"ANODE, p = {row['augment']}" if row["augment"] else "NODE",
            *(f"{row[name]:.2f}" for name in ("together", "alone", "torchdiffeq")),
            f"{row['alone'] / row['together']:.1f}x faster",
            f"{row['torchdiffeq'] / row['together']:.1f}x faster",
        )
    Console().print(table)
    worst = max(row["largest difference of loss in the first 20 iterations"] for row in rows)
    print(f"largest difference of a loss between the sides in the first 20 iterations: {worst:.1e}")
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
