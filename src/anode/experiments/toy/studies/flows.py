"""Figures 1, 7 and 25: the flows that NODEs and ANODEs learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from anode.experiments.study import Drawing, Results, Study, epochs, scene
from anode.experiments.toy.flows import LOSS_COLUMNS, loss_rows, trajectories
from anode.plots.animate import trajectory_frames
from anode.plots.flows import flow_1d, flow_2d, flow_3d
from anode.plots.series import curves
from anode.plots.style import bare, figure
from anode.train.record import Array


def fig01(results: Results) -> Drawing:
    """Draw both flows side by side, and as animations."""
    plain, labels = trajectories(results["g-d2-node"])
    lifted, _ = trajectories(results["drawn-d2-anode"])
    made = figure(8.0, 4.2, columns=2, three_d=[1])
    flow_2d(made.axes[0], plain, labels)
    flow_3d(made.axes[1], lifted, labels)
    for ax, title in zip(made.axes, ("NODE", "ANODE, one added dimension"), strict=True):
        ax.set_title(title)
        bare(ax)
    return Drawing(
        made,
        animations={"node": trajectory_frames(plain, labels), "anode": trajectory_frames(lifted, labels)},
        scenes=[scene("ANODE: the vertical axis is the added dimension", lifted, labels)],
    )


def fig07(results: Results) -> Drawing:
    """Draw one row per dimension: losses, the flow of a NODE, the flow of an ANODE."""
    made = figure(10.0, 6.4, rows=2, columns=3, three_d=[5])
    for row, d in enumerate((1, 2)):
        ax = made.axes[3 * row]
        node, anode = results[f"g-d{d}-node"], results[f"g-d{d}-anode"]
        losses = {"NODE": node.per_epoch("loss"), "ANODE": anode.per_epoch("loss")}
        curves(ax, epochs(node), losses, ylabel="training loss", log=True)
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
    return Drawing(
        made,
        LOSS_COLUMNS,
        loss_rows(rows),
        scenes=[scene("ANODE, d = 2, p = 1", lifted, labels)],
        remark=bends({"NODE, d = 2": flat, "ANODE, d = 1": plane, "ANODE, d = 2": lifted}),
    )


def bends(flows: dict[str, Array]) -> str:
    """Return in words how far the paths of flows are from straight lines.

    Args:
        flows: Paths [times, points, dims], by label.
    """
    detours = []
    for name, paths in flows.items():
        lengths = np.linalg.norm(np.diff(paths, axis=0), axis=-1).sum(0)
        direct = np.linalg.norm(paths[-1] - paths[0], axis=-1)
        moved = direct > 0  # False for NaN, where a solve failed
        detours.append(f"{name} {np.median(lengths[moved] / direct[moved]):.2f}" if moved.any() else f"{name} none")
    return f"Median ratio of the length of a path to the distance between its ends: {'; '.join(detours)}."


COLUMNS = {
    "separable": ("separable-d2-node", "drawn-separable-d2-anode"),
    "g": ("g-d2-node", "drawn-d2-anode"),
}


def fig25(results: Results) -> Drawing:
    """Draw NODEs above and ANODEs below, with one column per dataset."""
    made = figure(8.0, 8.0, rows=2, columns=2, three_d=[2, 3])
    scenes: list[dict[str, Any]] = []
    drawn: dict[str, Array] = {}
    for column, (title, (node, anode)) in enumerate(COLUMNS.items()):
        plain, labels = trajectories(results[node])
        lifted, _ = trajectories(results[anode])
        flow_2d(bare(made.axes[column]), plain, labels)
        flow_3d(bare(made.axes[2 + column]), lifted, labels)
        made.axes[column].set_title(f"NODE, {title}")
        made.axes[2 + column].set_title(f"ANODE, {title}")
        scenes.append(scene(f"ANODE, {title}", lifted, labels))
        drawn |= {f"NODE, {title}": plain, f"ANODE, {title}": lifted}
    return Drawing(made, scenes=scenes, remark=bends(drawn))


STUDIES = (
    Study(
        "fig01",
        "Learned flows",
        "Trajectories from inputs (hollow) to features (filled), for a disc and the ring around it. In the plane, the "
        "flow has to squeeze the disc out through a gap in the ring. With one added dimension, it can lift one off the "
        "other.",
        ("g-d2-node", "drawn-d2-anode"),
        fig01,
    ),
    Study(
        "fig07",
        "NODEs against ANODEs",
        "Left: training losses on g, on logarithmic axes. Curves and bands show mean and standard deviation over the "
        "repeats. A band that would reach 0 ends at the lowest repeat. These ANODEs have five added dimensions. Right: "
        "the learned flows, from inputs (hollow) to features (filled). These ANODEs have one added dimension, so that "
        "the whole flow is visible.",
        ("g-d1-node", "g-d1-anode", "g-d2-node", "g-d2-anode", "drawn-d1-anode", "drawn-d2-anode"),
        fig07,
    ),
    Study(
        "fig25",
        "Flows on separable data and on g",
        "Trajectories from inputs (hollow) to features (filled), for NODEs and for ANODEs with one added dimension.",
        tuple(name for pair in COLUMNS.values() for name in pair),
        fig25,
    ),
)
