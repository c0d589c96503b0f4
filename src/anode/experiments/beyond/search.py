"""Search for the best of three learning rates for every model, with seeds that no repeat uses.

``python -m anode.experiments.beyond.search FILE`` writes the result to a file; :mod:`rates` holds it as data.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anode.experiments.beyond import protocols
from anode.experiments.beyond.runs import LABELS
from anode.experiments.stacked import StackedRun
from anode.files import write_json
from anode.models.ensemble import seeded
from anode.train.fit import fit

CANDIDATES = (1e-3, 3e-3, 1e-2)
SEEDS = range(1000, 1003)
"""Repeats begin at 0."""


def searched() -> dict[str, StackedRun]:
    """Return one run per model and kind of data."""
    runs = protocols.all_runs()
    places = {
        "g": ("g-d2", LABELS),
        "swap": ("swap", LABELS),
        "parity": ("parity-d2", protocols.PARITY_KINDS),
        "density": ("density-pinwheel", protocols.FLOWS),
    }
    return {f"{data}-{kind}": runs[f"{at}-{kind}"] for data, (at, kinds) in places.items() for kind in kinds}


def losses(run: Any) -> dict[float, float]:
    """Return the loss of the last epoch for each learning rate, averaged over seeds; infinite if training failed."""
    rates, seeds = np.repeat(CANDIDATES, len(SEEDS)).tolist(), [*SEEDS] * len(CANDIDATES)
    run = replace(run, seed=SEEDS[0], repeats=len(SEEDS))
    data = [*run.datasets()[0]] * len(CANDIDATES)
    torch.manual_seed(run.seed)
    settings = {"epochs": run.epochs, "batch_size": run.batch_size, **run.options()}
    history = fit(seeded(run.build, seeds), data, lr=rates, seed=seeds, progress=False, **settings)
    last = history.per_epoch("loss")[-1].reshape(len(CANDIDATES), -1).mean(1)
    return {rate: float(loss) if np.isfinite(loss) else np.inf for rate, loss in zip(CANDIDATES, last, strict=True)}


def best(found: dict[float, float]) -> float:
    """Return the learning rate with the lowest loss."""
    return min(found, key=lambda rate: found[rate])


def main(path: Path) -> None:
    """Run the search, and write the losses of every candidate."""
    torch.set_num_threads(1)
    found = {}
    for name, run in searched().items():
        found[name] = losses(run)
        print(f'    "{name}": {best(found[name]):g},', flush=True)
        write_json(path, {name: {f"{rate:g}": loss for rate, loss in each.items()} for name, each in found.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
