"""Figure 1: the flows that a NODE and an ANODE learn."""

from __future__ import annotations

from anode.experiments.study import Drawing, Results, Study, scene
from anode.experiments.toy.flows import trajectories
from anode.plots.animate import trajectory_frames
from anode.plots.flows import flow_2d, flow_3d
from anode.plots.style import bare, figure


def draw(results: Results) -> Drawing:
    """Both flows side by side, and moving."""
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
        scenes=[scene("ANODE: the added dimension is the vertical one", lifted, labels)],
    )


STUDY = Study(
    "fig01",
    "Learned flows",
    "Trajectories from inputs (hollow) to features (filled), of a disc and the ring around it. In the plane the flow "
    "has to squeeze the disc out through the ring; with one dimension more it lifts one off the other.",
    ("g-d2-node", "drawn-d2-anode"),
    draw,
)
