"""``anode plot``: figures of saved runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anode.checks import require
from anode.experiments import kinds
from anode.experiments.single import Saved, load_saved
from anode.ode.solution import SolveError
from anode.plots import flows, series, style
from anode.train.record import Array

POINTS = 40
"""Number of points per curve, unless there are more epochs."""


SERIES = {"loss": "training loss", "nfe": "function evaluations", "accuracy": "accuracy, %"}


def draw_saved(folders: Sequence[Path], picture: Path | None, reference: float | None = None) -> Path:
    """Draw saved runs into one figure: losses, evaluations, accuracies if there are classes, and the flow of each.

    Args:
        folders: The folders of the runs.
        picture: The file to write; defaults to ``plot.png`` in the first folder.
        reference: An accuracy to compare with, in percent.
    """
    runs = [load_saved(folder) for folder in folders]
    picture = picture or folders[0] / "plot.png"
    style.check_picture(picture)
    for folder, run in zip(folders, runs, strict=True):
        require(len(run.history) > 0, str(folder), "no iterations", "a run that was trained")
    shown = [name for name in SERIES if any(getattr(run.history, name).any() for run in runs)]
    takes = "none, as these runs have no accuracies" if "accuracy" not in shown else "an accuracy in percent, 0 to 100"
    known = reference is None or ("accuracy" in shown and 0 <= reference <= 100)
    require(known, "reference", reference, takes)
    flows_of = [(run, *flow) for run in runs if (flow := _paths(run)) is not None]
    columns = max(2, len(shown), len(flows_of))
    three_d = [columns + i for i, (_, paths, _) in enumerate(flows_of) if paths.shape[2] >= 3]
    made = style.figure(4.0 * columns, 7.4 if flows_of else 3.7, 2 if flows_of else 1, columns, three_d=three_d)
    for ax, name in zip(made.axes, shown, strict=False):
        _draw_series(ax, runs, name)
    if reference is not None:
        ax = made.axes[shown.index("accuracy")]
        ax.axhline(reference, color=style.MUTED, linestyle="--", linewidth=1.2, label=f"{reference:g} %")
        style.legend(ax)
    style.legend(made.axes[0])
    for ax, (run, paths, labels) in zip(made.axes[columns:], flows_of, strict=False):
        ax.set_title(f"{_label(run)}: inputs to features")
        _draw_flow(ax, run, paths, labels)
    for ax in [*made.axes[len(shown) : columns], *made.axes[columns + len(flows_of) :]]:
        ax.remove()
    return style.save(made, picture)[0]


def _draw_series(ax: Any, runs: Sequence[Saved], name: str) -> None:
    """Draw a series of all runs that have it. For accuracies, dots show the accuracy on held-out data."""
    scale = 100.0 if name == "accuracy" else 1.0
    dots = []
    colors = _colors(runs)
    for run in runs:
        history, color = run.history, colors[run.name]
        if not getattr(history, name).any():
            continue  # a model without a solver, or data without classes
        ends, values = history.windows(name, max(history.epochs, POINTS))
        series.band(ax, ends / history.batches, scale * values.reshape(len(values), -1), _label(run), color)
        if name == "accuracy" and len(history.validation_accuracy):
            at = history.validation_at / history.batches
            tested = scale * history.validation_accuracy.reshape(len(at), -1).mean(1)
            ax.plot(at, tested, "o", color=color, markersize=5)
            tests = run.single.kind == kinds.IMAGES and not run.single.validation
            dots.append("test images" if tests else "validation")
    for label in dict.fromkeys(dots):  # one legend entry for all runs, so in a neutral colour
        ax.plot([], [], "o", color=style.MUTED, markersize=5, label=label)
    if dots:
        style.legend(ax)
    style.whole_ticks(ax.xaxis)
    if name == "nfe":
        style.whole_ticks(ax.yaxis)
    ax.set(xlabel="epoch", title=SERIES[name])


def _colors(runs: Sequence[Saved]) -> dict[str, str]:
    """Return a colour for each run. The first NODE, ANODE and ResNet have the colours that they have in all figures."""
    of_models: dict[str, str] = {}
    for run in runs:
        color = style.MODEL_COLORS.get(run.single.model_name)
        if color is not None and color not in of_models.values():
            of_models[run.name] = color
    return series.chosen_colors({run.name: run for run in runs}, of_models)


def _label(run: Saved) -> str:
    """Return the name of a run, shortened to its end if it is long."""
    return run.name if len(run.name) <= 30 else f"…{run.name[-29:]}"


@torch.no_grad()
def _paths(run: Saved) -> tuple[Array, Array] | None:
    """Return trajectories of some training points and their labels; ``None`` if there is no flow."""
    if run.single.kind != kinds.POINTS or run.single.model != "node":
        return None
    data = run.single.dataset(run.single.seed)
    if len(data) > 150:
        data, _ = data.split(150 / len(data))
    try:
        return run.model.flow.trajectory(data.x, 40).numpy(force=True), data.labels.numpy(force=True)
    except SolveError:
        return None  # training stopped for the same reason


def _draw_flow(ax: Any, run: Saved, paths: Array, labels: Array) -> None:
    if paths.shape[2] == 1:
        flows.flow_1d(ax, np.linspace(0, 1, len(paths)), paths, labels)
    elif paths.shape[2] == 2:
        flows.flow_2d(ax, paths, labels)
    else:
        inputs = min(run.model.in_features, 3)
        flows.flow_3d(ax, flows.project_3d(paths, inputs), labels)
