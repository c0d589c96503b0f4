"""Figure 9: generalisation to parts of the plane that were held out from training."""

from __future__ import annotations

import numpy as np
import torch

from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study, epochs, mean_std
from anode.experiments.toy.flows import validation_gap
from anode.plots.planes import colorbar, plane
from anode.plots.series import curves
from anode.plots.style import INK, MODEL_COLORS, figure
from anode.train.record import Array

RADII = (0.5, 1.0, 1.5)
GRID = np.linspace(-1.6, 1.6, 161, dtype=np.float32)


@torch.no_grad()
def outputs(result: Result) -> Array:
    """Return the predictions of the best model of a run on a grid of points."""
    x, y = np.meshgrid(GRID, GRID)
    points = torch.from_numpy(np.stack([x.ravel(), y.ravel()], axis=1))
    outcome = result.member(result.best).run(points)
    values = outcome.prediction if outcome.solution.success else torch.full_like(outcome.prediction, torch.nan)
    return values.numpy(force=True).reshape(x.shape)


def draw(results: Results) -> Drawing:
    """Draw the predictions on the plane, and the losses with slices held out."""
    made = figure(9.0, 8.0, rows=2, columns=2)
    for column, (model, label) in enumerate((("node", "NODE"), ("anode", "ANODE"))):
        result = results[f"g-d2-{model}"]
        mesh = plane(made.axes[column], GRID, GRID, outputs(result), radii=RADII)
        made.axes[column].set_title(f"{label}, training loss {result.final_loss[result.best]:.2g}")
        held = results[f"slices-d2-{model}"]
        ax = made.axes[2 + column]
        series = {"training": held.per_epoch("loss"), "validation": held.validation}
        curves(ax, epochs(held), series, {"training": INK, "validation": MODEL_COLORS[label]}, ylabel="loss")
        ax.set_title(f"{label}, slices held out")
    colorbar(mesh, made.axes[:2], "prediction")
    top = max(ax.get_ylim()[1] for ax in made.axes[2:4])
    for ax in made.axes[2:4]:
        ax.set_ylim(0, top)
    rows = []
    for model, label in (("node", "NODE"), ("anode", "ANODE")):
        held = results[f"slices-d2-{model}"]
        rows.append([label, mean_std(held.final_loss), mean_std(held.validation[-1]), mean_std(validation_gap(held))])
    return Drawing(made, ["", "training loss", "validation loss", "gap"], rows)


STUDY = Study(
    "fig09",
    "Generalisation",
    "Top: predictions of the best NODE and the best ANODE for every point of the plane. The right prediction is -1 "
    "(blue) inside the small circle, and 1 (red) between the two larger ones. Bottom: losses when three random "
    "slices of the plane, each a tenth of it, are held out for validation. Curves and bands show mean and standard "
    "deviation over the repeats.",
    ("g-d2-node", "g-d2-anode", "slices-d2-node", "slices-d2-anode"),
    draw,
)
