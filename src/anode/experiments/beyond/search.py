"""Search for the best learning rate for every model, with seeds that no repeat uses.

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
from anode.models.ensemble import seeded
from anode.storage import write_json
from anode.train.fit import fit

CANDIDATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SEEDS = range(1000, 1005)
"""Seeds of the search. Those of repeats begin at 0."""


def searched() -> dict[str, StackedRun]:
    """Return one run per model and kind of data."""
    runs = protocols.all_runs()
    places = {
        "g": ("g-d2", LABELS),
        "swap": ("swap", LABELS),
        "parity": ("parity-d2", protocols.PARITY_KINDS),
        "density": ("density-rings", protocols.FLOWS),
    }
    return {f"{data}-{kind}": runs[f"{at}-{kind}"] for data, (at, kinds) in places.items() for kind in kinds}


def losses(run: Any) -> dict[float, float]:
    """Return the loss of the last epoch for each learning rate: the geometric mean over seeds, infinite if one failed.

    The losses of seeds differ by orders of magnitude. The largest alone would decide an arithmetic mean.
    """
    rates, seeds = np.repeat(CANDIDATES, len(SEEDS)).tolist(), [*SEEDS] * len(CANDIDATES)
    run = replace(run, seed=SEEDS[0], repeats=len(SEEDS))
    data = [*run.datasets()[0]] * len(CANDIDATES)
    torch.manual_seed(run.seed)
    settings = {"epochs": run.epochs, "batch_size": run.batch_size, **run.options()}
    history = fit(seeded(run.build, seeds), data, lr=rates, seed=seeds, progress=False, **settings)
    last = np.nan_to_num(history.per_epoch("loss")[-1], nan=np.inf).reshape(len(CANDIDATES), -1)
    with np.errstate(divide="ignore"):  # a loss can be 0
        return dict(zip(CANDIDATES, np.exp(np.log(last).mean(1)).tolist(), strict=True))


def best(found: dict[float, float]) -> float:
    """Return the learning rate with the lowest loss."""
    return min(found, key=lambda rate: found[rate])


def main(path: Path) -> None:
    """Run the search, and write the losses of every candidate; ``null`` if they are infinite."""
    torch.set_num_threads(1)
    written = {}
    for name, run in searched().items():
        found = losses(run)
        print(f'    "{name}": {best(found):g},', flush=True)
        written[name] = {f"{rate:g}": loss if np.isfinite(loss) else None for rate, loss in found.items()}
        write_json(path, written)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
