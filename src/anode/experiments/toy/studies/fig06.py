"""Figure 6: the feature space of a NODE as training goes on."""

from __future__ import annotations

from anode.experiments.study import Drawing, Results, Study
from anode.experiments.toy.flows import moments
from anode.plots.animate import feature_frames
from anode.plots.features import strip


def draw(results: Results) -> Drawing:
    """Six moments, and a film of all of them."""
    result = results["g-d2-node"]
    chosen, titles, labels = moments(result, 6)
    every, all_titles, _ = moments(result, result.run.snapshots)
    return Drawing(
        strip([s.features for s in chosen], labels, titles, columns=6, width=11.0),
        ["moment", "NFE"],
        [[title.split(",")[0], str(int(s.nfe))] for s, title in zip(chosen, titles, strict=True)],
        {"features": feature_frames([s.features for s in every], labels, all_titles)},
    )


STUDY = Study(
    "fig06",
    "The features of a NODE during training",
    "Features of the inner disc (blue) and of the ring (red) at moments of training of the typical repeat, with the "
    "function evaluations that solving for them takes. The flow has to break the ring open, and that costs more.",
    ("g-d2-node",),
    draw,
)
