"""Density flows, plain and augmented: what they learn, and the cost of their solves during training."""

from __future__ import annotations

import numpy as np
import torch

from anode.data.densities import DENSITIES
from anode.experiments.beyond.densities import DRAWS, OTHERS, TABLES, drawn
from anode.experiments.beyond.protocols import FLOWS
from anode.experiments.runs import Result, middle
from anode.experiments.study import (
    CERTIFIED_COLUMNS,
    Drawing,
    Results,
    Study,
    certified_cells,
    epochs,
    mean_std,
)
from anode.plots.densities import density, samples
from anode.plots.series import curves
from anode.plots.style import MODEL_COLORS, figure, shared_legend
from anode.train.record import Array

REACH, CELLS = 4.4, 70
"""The square that is drawn, [-reach, reach]², and how many points its grid has across."""

COLORS = {"CNF": MODEL_COLORS["NODE"], "augmented CNF": MODEL_COLORS["ANODE"]}
COLUMNS = ["", "log-likelihood", "NFE, first epoch", "NFE, last epoch", *CERTIFIED_COLUMNS, "failed"]
DATA = (*DENSITIES, *TABLES)


def pair(results: Results, data: str) -> dict[str, Result]:
    """Return the results of both flows on some data, by label."""
    return {results[name].run.label: results[name] for name in (f"density-{data}-{kind}" for kind in FLOWS)}


def draw_pictures(results: Results) -> Drawing:
    """Draw one column per density: points, and densities and samples of both flows."""
    made = figure(14.0, 11.6, rows=5, columns=len(DENSITIES))
    for column, data in enumerate(DENSITIES):
        axes = made.axes[column :: len(DENSITIES)]
        samples(axes[0], drawn(data, 0)[1].numpy(), reach=REACH)
        axes[0].set_title(data.replace("_", " "))
        for i, (label, result) in enumerate(pair(results, data).items()):
            values, points = pictured(result)
            side = np.linspace(-REACH, REACH, CELLS)
            density(axes[1 + 2 * i], side, side, values)
            samples(axes[2 + 2 * i], points, reach=REACH)
            if column == 0:
                axes[1 + 2 * i].set_ylabel(f"{label}:\ndensity")
                axes[2 + 2 * i].set_ylabel(f"{label}:\nsamples")
    made.axes[0].set_ylabel("data")
    return Drawing(made)


@torch.no_grad()
def pictured(result: Result) -> tuple[Array, Array]:
    """Return the density of the model with the median log-likelihood on a grid, and samples of it."""
    model = result.member(middle(-result.measured["log-likelihood"]))
    side = torch.linspace(-REACH, REACH, CELLS)
    grid = torch.cartesian_prod(side, side).flip(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        values = model.log_prob(grid, samples=DRAWS if model.augment else 1).exp()
        points = model.sample(OTHERS)
    return values.reshape(CELLS, CELLS).numpy(force=True), points.numpy(force=True)


def draw_costs(results: Results) -> Drawing:
    """Draw one panel per dataset: evaluations during training."""
    made = figure(12.5, 5.6, rows=2, columns=len(DATA) // 2)
    table: dict[str, Result] = {}
    for ax, data in zip(made.axes, DATA, strict=True):
        found = pair(results, data)
        title = data.replace("_", " ")
        series = {label: each.per_epoch("nfe") for label, each in found.items()}
        curves(ax, epochs(found["CNF"]), series, COLORS, "NFE" if ax in made.axes[:: len(DATA) // 2] else "")
        ax.set_title(title)
        table |= {f"{title}: {label}": each for label, each in found.items()}
    low, high = zip(*(ax.get_ylim() for ax in made.axes), strict=True)
    for ax in made.axes:
        ax.set_ylim(min(low), max(high))
    shared_legend(made)
    certified = certified_cells(table, lambda result: result.run.data)
    cells = []
    for name, each in table.items():
        course = each.per_epoch("nfe")
        cost = [mean_std(course[0]), mean_std(course[-1]), *certified[name]]
        failed = str(len(each.history.failures))
        cells.append([name, mean_std(each.measured["log-likelihood"]), *cost, failed])
    return Drawing(made, COLUMNS, cells)


STUDIES = (
    Study(
        "densities",
        "Densities, plain and augmented",
        "Continuous normalizing flows (CNF), plain and with two added normal coordinates. All have the same number "
        "of parameters, to within 2 %, and are trained for 1,600 iterations. The pictures show densities on a grid, "
        "each with its own scale, and samples, for the repeat with the median likelihood. The density of an "
        "augmented flow is a lower bound from 20 draws of the added coordinates.",
        tuple(f"density-{data}-{kind}" for data in DENSITIES for kind in FLOWS),
        draw_pictures,
    ),
    Study(
        "likelihoods",
        "What densities cost",
        "Function evaluations of a solve at 1e-3 during training. Curves and bands show mean and standard deviation "
        "over the repeats. The table has the log-likelihood of points that were not trained on, in nats per point, "
        "computed at a tolerance of 1e-5 with exact traces. For augmented flows, it is a lower bound from 20 draws. "
        "The rows of the tables iris and wine are standardised; two thirds are for training, and the others for the "
        "test.",
        tuple(f"density-{data}-{kind}" for data in DATA for kind in FLOWS),
        draw_costs,
    ),
)
