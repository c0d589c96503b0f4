"""The picture that ``anode show`` draws of a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from anode.checks import require
from anode.estimators.drawing import draw_flow
from anode.experiments.descriptions import Description
from anode.experiments.judging import Sample, load_result
from anode.experiments.predicting import described_data
from anode.experiments.single import Saved
from anode.models.model import as_input
from anode.ode.solution import SolveError
from anode.plots import judged, style
from anode.plots.series import curves
from anode.train.history import STRETCHES
from anode.train.record import Array

MOMENTS, IMAGE_MOMENTS = 40, 10
"""Number of times at which paths are drawn; fewer for images, whose states are large."""


def draw_shown(run: Saved, picture: Path | None) -> Path:
    """Draw the loss, the evaluations, the predictions and the flow of a run in one picture.

    Args:
        run: A trained run.
        picture: The file to write. Defaults to ``show.png`` in the run's folder.
    """
    picture = picture or Path(run.name) / "show.png"
    style.check_picture(picture)
    require(len(run.history) > 0, run.name, "no iterations", "a run that was trained")
    found = described_data(run)
    result, sample = load_result(Path(run.name), found)
    paths = None if result.failure else paths_of(run, sample)
    made = style.figure(10.5, 8.0, 2, 2)
    loss, nfe, outcome, flow = made.axes
    history = run.history
    history.plot(loss)
    loss.set_title("loss")
    if history.nfe.any():
        _draw_nfe(nfe, history)
    else:
        nfe.remove()
    if not result.failure:
        _draw_outcome(outcome, found, result.confusion, sample)
    else:
        outcome.remove()
    if paths is not None:
        times = torch.linspace(0.0, run.model.flow.t1, len(paths)).tolist()
        draw_flow(flow, times, paths, sample.y.numpy(), list(found.classes))
        flow.set_title("flow from inputs (hollow) to features (full)")
    else:
        flow.remove()
    return style.save(made, picture)[0]


def _draw_nfe(ax: Any, history: Any) -> None:
    ends, nfe = history.windows("nfe", max(history.epochs, STRETCHES))
    curves(ax, ends, {"NFE": nfe}, {"NFE": style.INK}, "function evaluations", xlabel="iteration")
    style.whole_ticks(ax.yaxis)
    ax.set_title("evaluations of the field in a solve")


def _draw_outcome(ax: Any, found: Description, confusion: list[list[int]], sample: Sample) -> None:
    if found.classes:
        judged.confusion(ax, confusion, found.classes)
    else:
        assert found.target is not None
        judged.against(ax, sample.y.numpy(), sample.predicted.numpy(), found.target.name)
    ax.set_title(f"on {found.judged_by}")


@torch.no_grad()
def paths_of(run: Saved, sample: Sample) -> Array | None:
    """Return the states from inputs to features, [times, points, features]; ``None`` if there is no flow."""
    if run.single.model != "node":
        return None
    flow, like = run.model.flow, next(run.model.parameters())
    count = IMAGE_MOMENTS if sample.x.ndim == 4 else MOMENTS
    times = torch.linspace(0.0, flow.t1, count, dtype=torch.float64).tolist()
    try:
        states: Any = flow.solve(as_input(sample.x, like), save_at=times, control=1).check().ys
    except SolveError:
        return None
    return states.flatten(2).numpy(force=True)
