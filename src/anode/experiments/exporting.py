"""``anode export``: write a saved model to a file that runs without anode."""

from __future__ import annotations

from pathlib import Path

import torch

from anode.checks import number, require
from anode.experiments.checking import inputs_of
from anode.experiments.single import load_saved
from anode.exporting.export import Exported, export
from anode.exporting.formats import WRITERS


def export_saved(folder: Path, path: Path, tolerance: float, points: int, root: Path | None) -> Exported:
    """Export the model of a run; if it has several repeats, the first one.

    Args:
        folder: The folder of the run.
        path: The file to write.
        tolerance: Largest prediction error, as a fraction of the largest prediction.
        points: Maximum number of points or images to measure the error on.
        root: The folder of the datasets.
    """
    number("points", points, whole=True)
    require(path.suffix in WRITERS, "out", str(path), f"a file that ends in one of {', '.join(WRITERS)}")
    run = load_saved(folder)
    x = inputs_of(run, points, root)
    x = x if run.repeats.members is None else x[0]
    with torch.no_grad():
        return export(run.model, path, x, tolerance=tolerance)
