"""Figures 5 and 20: training losses."""

from __future__ import annotations

from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study, epochs, mean_std
from anode.experiments.toy.flows import LOSS_COLUMNS, loss_rows, mean_gap
from anode.plots.series import curves
from anode.plots.style import figure

PANELS = {"g-d1": "g, d = 1", "g-d2": "g, d = 2", "separable-d2": "separable, d = 2"}


BANDS = "A band that would reach 0 ends at the lowest repeat."


def fig05(results: Results) -> Drawing:
    """Draw one panel per dataset."""
    made = figure(10.0, 3.3, columns=3)
    for ax, (data, title) in zip(made.axes, PANELS.items(), strict=True):
        resnet, node = results[f"{data}-resnet"], results[f"{data}-node"]
        losses = {"ResNet": resnet.per_epoch("loss"), "NODE": node.per_epoch("loss")}
        curves(ax, epochs(node), losses, ylabel="training loss" if ax is made.axes[0] else "", log=True)
        ax.set_title(title)
    by_row = {
        f"{title}, {results[f'{data}-{model}'].run.label}": results[f"{data}-{model}"]
        for data, title in PANELS.items()
        for model in ("resnet", "node")
    }
    gaps = {data: mean_gap(results, data) for data in ("g-d2", "separable-d2")}
    remark = (
        f"{final_losses(by_row)} In d = 2, the NODEs' loss minus the ResNets', averaged over all epochs, is "
        f"{mean_std(gaps['g-d2'])} on g and {mean_std(gaps['separable-d2'])} on the separable data."
    )
    return Drawing(made, LOSS_COLUMNS, loss_rows(by_row), remark=remark)


def final_losses(by_label: dict[str, Result]) -> str:
    """Return the mean losses of the last epoch, in words."""
    ends = [f"{label} {mean_std(result.final_loss, '{:.2g}')}" for label, result in by_label.items()]
    return f"Mean loss of the last epoch: {'; '.join(ends)}."


RUNS = {"ResNet": "g-d2-resnet", "NODE": "g-d2-node", "ANODE": "g-d2-anode"}


def fig20(results: Results) -> Drawing:
    """Draw three losses in one plot."""
    by_label = {label: results[name] for label, name in RUNS.items()}
    made = figure(6.5, 4.0)
    losses = {label: result.per_epoch("loss") for label, result in by_label.items()}
    curves(made.axes[0], epochs(by_label["NODE"]), losses, ylabel="training loss", log=True)
    made.axes[0].set_title("g, d = 2")
    return Drawing(made, LOSS_COLUMNS, loss_rows(by_label), remark=final_losses(by_label))


STUDIES = (
    Study(
        "fig05",
        "Training losses of NODEs and ResNets",
        f"Curves and bands show mean and standard deviation over the repeats, on logarithmic axes. {BANDS}",
        tuple(f"{data}-{model}" for data in PANELS for model in ("resnet", "node")),
        fig05,
    ),
    Study(
        "fig20",
        "ResNet, NODE and ANODE together",
        "Training losses on g in d = 2, on a logarithmic axis. Curves and bands show mean and standard deviation "
        f"over the repeats. {BANDS}",
        tuple(RUNS.values()),
        fig20,
    ),
)
