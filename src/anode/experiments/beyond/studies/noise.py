"""Whether noise lets a NODE learn g."""

from __future__ import annotations

import numpy as np

from anode.experiments.beyond.protocols import NOISE_DIMS, NOISES, name_of
from anode.experiments.beyond.studies.tables import fitted
from anode.experiments.beyond.variants import PATHS
from anode.experiments.study import Drawing, Results, Study, mean_std
from anode.experiments.toy.flows import FITTED
from anode.plots.series import band, make_logarithmic
from anode.plots.style import MODEL_COLORS, figure, grid, shared_legend


def draw(results: Results) -> Drawing:
    """Draw one panel per dimension: losses over the noise, next to those of an ANODE."""
    made = figure(10.0, 3.9, columns=len(NOISE_DIMS))
    cells = []
    for ax, dim in zip(made.axes, NOISE_DIMS, strict=True):
        noisy = [results[f"noise-d{dim}-{scale:g}"] for scale in NOISES]
        anode = results[name_of("g", dim, "zeros")]
        at = np.arange(len(NOISES))
        trained = np.array([each.final_loss for each in noisy])
        band(ax, at, trained, "training, one path", "#e9c27d")
        held = np.array([each.measured["held-out"] for each in noisy])
        band(ax, at, held, f"held out, mean of {PATHS} paths", MODEL_COLORS["NODE"])
        level = np.repeat(anode.measured["held-out"][None], len(NOISES), 0)
        band(ax, at, level, "ANODE, held out", MODEL_COLORS["ANODE"])
        fitted(ax.axhline)
        make_logarithmic(ax, np.concatenate([each.mean(1) for each in (trained, held, level)] + [[FITTED]]))
        ax.set_xticks(at, [f"{scale:g}" for scale in NOISES])
        ax.set(xlabel="noise", ylabel="loss" if dim == NOISE_DIMS[0] else "", title=f"NODE on g, d = {dim}")
        grid(ax)
        for each in noisy:
            paths, steps = PATHS if each.run.noise else 1, each.run.steps
            loss = [mean_std(each.final_loss), mean_std(each.measured["held-out"])]
            cells.append([f"d = {dim}, noise {each.run.noise:g}", *loss, f"{paths * steps}"])
    shared_legend(made)
    columns = ["", "training loss", "held-out loss", "evaluations of a prediction"]
    return Drawing(made, columns, cells)


STUDY = Study(
    "noise",
    "Noise instead of dimensions",
    "NODEs solved by 20 steps of Euler's method, with Gaussian noise added to the state after each step. The noise "
    "has the given standard deviation per unit of time. This is no longer an ODE, so trajectories can cross. In "
    "training, every iteration takes one noisy path. A prediction is the mean of ten paths, so it takes ten times "
    "the evaluations. Curves and bands show mean and standard deviation over the repeats. A model below the dashed "
    "line has fitted g.",
    (
        *(f"noise-d{dim}-{scale:g}" for dim in NOISE_DIMS for scale in NOISES),
        *(name_of("g", dim, "zeros") for dim in NOISE_DIMS),
    ),
    draw,
)
