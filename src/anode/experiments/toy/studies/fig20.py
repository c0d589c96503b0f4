"""Figure 20: all three models on g in two dimensions."""

from __future__ import annotations

from anode.experiments.study import Drawing, Results, Study, epochs
from anode.experiments.toy.flows import LOSS_COLUMNS, loss_rows
from anode.plots.series import curves
from anode.plots.style import figure

RUNS = {"ResNet": "g-d2-resnet", "NODE": "g-d2-node", "ANODE": "g-d2-anode"}


def draw(results: Results) -> Drawing:
    """Three losses in one plot."""
    by_label = {label: results[name] for label, name in RUNS.items()}
    made = figure(6.5, 4.0)
    losses = {label: result.per_epoch("loss") for label, result in by_label.items()}
    curves(made.axes[0], epochs(by_label["NODE"]), losses, ylabel="training loss")
    made.axes[0].set_title("g, d = 2")
    return Drawing(made, LOSS_COLUMNS, loss_rows(by_label))


STUDY = Study(
    "fig20",
    "ResNet, NODE and ANODE together",
    "Training losses on g in two dimensions, mean and standard deviation over the repeats.",
    tuple(RUNS.values()),
    draw,
)
