"""Figure 7: NODEs against ANODEs, losses and flows."""

from __future__ import annotations

import numpy as np

from anode.experiments.study import Drawing, Results, Study, epochs, scene
from anode.experiments.toy.flows import LOSS_COLUMNS, loss_rows, trajectories
from anode.plots.flows import flow_1d, flow_2d, flow_3d
from anode.plots.series import curves
from anode.plots.style import bare, figure


def draw(results: Results) -> Drawing:
    """A row for each dimension: losses, the flow of a NODE, the flow of an ANODE."""
    made = figure(10.0, 6.4, rows=2, columns=3, three_d=[5])
    for row, d in enumerate((1, 2)):
        ax = made.axes[3 * row]
        node, anode = results[f"g-d{d}-node"], results[f"g-d{d}-anode"]
        losses = {"NODE": node.per_epoch("loss"), "ANODE": anode.per_epoch("loss")}
        curves(ax, epochs(node), losses, ylabel="training loss")
        ax.set_title(f"g, d = {d}")
    line, line_labels = trajectories(results["g-d1-node"])
    flow_1d(made.axes[1], np.linspace(0, 1, len(line)), line, line_labels)
    made.axes[1].set_title("NODE, d = 1")
    plane, plane_labels = trajectories(results["drawn-d1-anode"])
    flow_2d(made.axes[2], plane, plane_labels)
    made.axes[2].set_title("ANODE, d = 1, p = 1")
    made.axes[2].set(xlabel="input dimension", ylabel="added dimension")
    flat, labels = trajectories(results["g-d2-node"])
    flow_2d(bare(made.axes[4]), flat, labels)
    made.axes[4].set_title("NODE, d = 2")
    lifted, _ = trajectories(results["drawn-d2-anode"])
    flow_3d(bare(made.axes[5]), lifted, labels)
    made.axes[5].set_title("ANODE, d = 2, p = 1")
    rows = {
        f"d = {d}, {results[f'g-d{d}-{model}'].run.label}": results[f"g-d{d}-{model}"]
        for d in (1, 2)
        for model in ("node", "anode")
    }
    return Drawing(made, LOSS_COLUMNS, loss_rows(rows), scenes=[scene("ANODE, d = 2, p = 1", lifted, labels)])


STUDY = Study(
    "fig07",
    "NODEs against ANODEs",
    "Left: training losses on g with p = 5 added dimensions, mean and standard deviation over the repeats. Right: the "
    "flows learned, from inputs (hollow) to features (filled); for the ANODEs with one added dimension, so that all of "
    "the flow can be seen. NODEs learn complicated flows, ANODEs nearly straight ones.",
    ("g-d1-node", "g-d1-anode", "g-d2-node", "g-d2-anode", "drawn-d1-anode", "drawn-d2-anode"),
    draw,
)
