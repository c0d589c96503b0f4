"""Figure 25: flows of NODEs and ANODEs, on separable data and on g."""

from __future__ import annotations

from typing import Any

from anode.experiments.study import Drawing, Results, Study, scene
from anode.experiments.toy.flows import trajectories
from anode.plots.flows import flow_2d, flow_3d
from anode.plots.style import bare, figure

COLUMNS = {
    "separable": ("separable-d2-node", "drawn-separable-d2-anode"),
    "g": ("g-d2-node", "drawn-d2-anode"),
}


def draw(results: Results) -> Drawing:
    """NODEs above, ANODEs below; a column for each dataset."""
    made = figure(8.0, 8.0, rows=2, columns=2, three_d=[2, 3])
    scenes: list[dict[str, Any]] = []
    for column, (title, (node, anode)) in enumerate(COLUMNS.items()):
        plain, labels = trajectories(results[node])
        lifted, _ = trajectories(results[anode])
        flow_2d(bare(made.axes[column]), plain, labels)
        flow_3d(bare(made.axes[2 + column]), lifted, labels)
        made.axes[column].set_title(f"NODE, {title}")
        made.axes[2 + column].set_title(f"ANODE, {title}")
        scenes.append(scene(f"ANODE, {title}", lifted, labels))
    return Drawing(made, scenes=scenes)


STUDY = Study(
    "fig25",
    "Flows on separable data and on g",
    "Trajectories from inputs (hollow) to features (filled). The NODEs' flows are more complicated, above all on data "
    "that are not separable; the ANODEs, here with one added dimension, stay nearly straight.",
    tuple(name for pair in COLUMNS.values() for name in pair),
    draw,
)
