"""What augmentation changes in a trained flow, and how this relates to the cost of a solve."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anode.data import toy
from anode.experiments.beyond.correlations import EXAMINED, correlation
from anode.experiments.beyond.measures import MEASURES
from anode.experiments.beyond.protocols import DRAWN, name_of
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies.tables import median
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study, mean_std
from anode.plots.flows import flow_1d, flow_2d
from anode.plots.rows import rows
from anode.plots.style import MODEL_COLORS, figure, legend
from anode.train.record import Array

TIMES = 41
GROUPS = {"NODE": "NODE", "augmented": "ANODE"}
"""The groups of models that are drawn separately, and the model whose colour they have."""


@torch.no_grad()
def paths(result: Result) -> tuple[Array, Array]:
    """Return paths [times, points, dims] of a few points through the typical model of a run, and their labels."""
    data = toy.g(1, inner=14, outer=28, seed=12345)
    flow = result.member(result.typical).flow
    ys = flow.solve(data.x, save_at=np.linspace(0, 1, TIMES), rtol=1e-5, atol=1e-5).ys
    assert isinstance(ys, Tensor)
    return ys.numpy(force=True), data.labels.numpy(force=True)


def draw(results: Results) -> Drawing:
    """Draw two flows on the line, the measure that best predicts the cost, and all correlations."""
    made = figure(13.5, 6.6, rows=2, columns=2, height_ratios=[1, 1.15])
    node, anode, dots, bars = made.axes
    plain, lifted = (results[name_of("g", 1, kind)] for kind in DRAWN)
    line, labels = paths(plain)
    flow_1d(node, np.linspace(0, 1, TIMES), line, labels)
    node.set_title(f"NODE, d = 1: {costs(plain)}")
    plane, labels = paths(lifted)
    flow_2d(anode, plane, labels)
    anode.set_aspect("auto")
    anode.set(xlabel="input dimension", ylabel="added dimension")
    anode.set_title(f"ANODE, d = p = 1: {costs(lifted)}")
    found = {key: correlation(results, key) for key in MEASURES}
    best = max(found, key=lambda key: abs(median(found[key])) if np.isfinite(median(found[key])) else -1.0)
    scatter(dots, results, best)
    order = sorted(found, key=lambda key: -median(found[key]))
    rows(bars, {MEASURES[key]: found[key] for key in order}, xlabel="rank correlation with NFE, a dot for each repeat")
    bars.axvline(0, color="#9aa0ad", linewidth=0.8, zorder=1)
    bars.set_xlim(-1, 1)
    bars.set_title("what goes with the cost of a solve")
    told = "; ".join(f"{MEASURES[key]} {mean_std(found[key], '{:.2f} ± {:.2f}')}" for key in order)
    return Drawing(made, *table(results), remark=f"Rank correlations with NFE: {told}.")


def costs(result: Result) -> str:
    """Return in words the median NFE at 1e-3 and at each repeat's own certified tolerance."""
    own = median(result.certificates["last"].own)
    certified = f"{own:.0f} certified" if np.isfinite(own) else "none certified"
    return f"NFE {median(cost_of(result)):.0f} at 1e-3, {certified}"


def scatter(ax, results: Results, measure: str) -> None:  # type: ignore[no-untyped-def]
    """Draw one dot per trained model: a measure and the NFE of a solve."""
    for group, color in GROUPS.items():
        chosen = [results[name] for name in EXAMINED if (results[name].run.kind == "node") == (group == "NODE")]
        values = np.concatenate([each.measured[measure] for each in chosen])
        costs = np.concatenate([cost_of(each) for each in chosen])
        jitter = np.random.default_rng(0).uniform(-1.5, 1.5, len(costs))  # counts are 2 more than multiples of 6
        front = 4 if group == "NODE" else 3
        look = {"s": 9, "alpha": 0.4, "linewidths": 0, "zorder": front, "rasterized": True}
        ax.scatter(values, costs + jitter, color=MODEL_COLORS[color], label=group, **look)
    ax.set_xscale("log")
    ax.set(xlabel=MEASURES[measure], ylabel="NFE at 1e-3")
    ax.set_title(f"{sum(len(results[name].final_loss) for name in EXAMINED):,} trained models")
    legend(ax, markerscale=2.5)


def table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return the table of measurements on g in two dimensions and on nested spheres."""
    columns = ["", *MEASURES.values(), "NFE at 1e-3"]
    cells = []
    for title, data in (("g, d = 2", "g"), ("nested spheres", "nested")):
        for kind, label in LABELS.items():
            result = results[name_of(data, 2, kind)]
            measured = [mean_std(result.measured[key]) for key in MEASURES]
            cells.append([f"{title}: {label}", *measured, mean_std(cost_of(result))])
    return columns, cells


STUDY = Study(
    "why",
    "What augmentation changes",
    "Top: flows on g in one dimension, for the typical repeats. On a line, trajectories cannot pass each other, so a "
    "NODE can only press the ball (blue) against the shell (red). An ANODE moves it off the line. Titles give "
    "medians over the repeats: evaluations at 1e-3, and at each repeat's own certified tolerance. Bottom, over all "
    "models of the family and of the study of p: the measure with the strongest correlation with the evaluations of "
    "a solve, and Spearman's rank correlation of each measure with them. Path length, straightness (the distance "
    "between the ends, divided by the length) and kinetic energy are means over 50 trajectories. The Lipschitz "
    "constant is the largest spectral norm of ∂f/∂h along them. The condition is that of ∂h(1)/∂h(0). The curvature "
    "is that of the decision boundary in input space, for d > 1.",
    EXAMINED,
    draw,
)
