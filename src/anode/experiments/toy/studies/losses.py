"""Figures 5 and 20: training losses."""

from __future__ import annotations

from anode.experiments.study import Drawing, Results, Study, epochs
from anode.experiments.toy.flows import LOSS_COLUMNS, loss_rows
from anode.plots.series import curves
from anode.plots.style import figure

PANELS = {"g-d1": "g, d = 1", "g-d2": "g, d = 2", "separable-d2": "separable, d = 2"}


def fig05(results: Results) -> Drawing:
    """A panel for each dataset."""
    made = figure(10.0, 3.3, columns=3)
    for ax, (data, title) in zip(made.axes, PANELS.items(), strict=True):
        resnet, node = results[f"{data}-resnet"], results[f"{data}-node"]
        losses = {"ResNet": resnet.per_epoch("loss"), "NODE": node.per_epoch("loss")}
        curves(ax, epochs(node), losses, ylabel="training loss" if ax is made.axes[0] else "")
        ax.set_title(title)
    by_row = {
        f"{title}, {results[f'{data}-{model}'].run.label}": results[f"{data}-{model}"]
        for data, title in PANELS.items()
        for model in ("resnet", "node")
    }
    return Drawing(made, LOSS_COLUMNS, loss_rows(by_row))


RUNS = {"ResNet": "g-d2-resnet", "NODE": "g-d2-node", "ANODE": "g-d2-anode"}


def fig20(results: Results) -> Drawing:
    """Three losses in one plot."""
    by_label = {label: results[name] for label, name in RUNS.items()}
    made = figure(6.5, 4.0)
    losses = {label: result.per_epoch("loss") for label, result in by_label.items()}
    curves(made.axes[0], epochs(by_label["NODE"]), losses, ylabel="training loss")
    made.axes[0].set_title("g, d = 2")
    return Drawing(made, LOSS_COLUMNS, loss_rows(by_label))


STUDIES = (
    Study(
        "fig05",
        "Training losses of NODEs and ResNets",
        "Mean and standard deviation over the repeats. NODEs struggle to fit g, in one dimension and in two; on data "
        "that can be separated the difference is smaller.",
        tuple(f"{data}-{model}" for data in PANELS for model in ("resnet", "node")),
        fig05,
    ),
    Study(
        "fig20",
        "ResNet, NODE and ANODE together",
        "Training losses on g in two dimensions, mean and standard deviation over the repeats.",
        tuple(RUNS.values()),
        fig20,
    ),
)
