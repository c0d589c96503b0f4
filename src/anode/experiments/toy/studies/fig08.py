"""Figure 8: the feature space of an ANODE during training, and the cost of solving."""

from __future__ import annotations

from anode.experiments.study import Drawing, Results, Study, epochs
from anode.experiments.toy.flows import LOSS_COLUMNS, loss_rows, moments
from anode.plots.animate import feature_frames
from anode.plots.features import frame, scatter
from anode.plots.series import curves
from anode.plots.style import clean, figure, styled


def draw(results: Results) -> Drawing:
    """Six tiles of features on the left, the curves of NFE on the right."""
    result = results["drawn-d2-anode"]
    chosen, titles, labels = moments(result, 6)
    made = figure(11.0, 4.6, rows=0)
    grid = made.add_gridspec(2, 5, width_ratios=[1, 1, 1, 0.15, 2])
    for i, (snapshot, title) in enumerate(zip(chosen, titles, strict=True)):
        with styled():
            ax = clean(made.add_subplot(grid[i // 3, i % 3], projection="3d"))
        scatter(ax, snapshot.features, labels, size=5)
        frame(ax, snapshot.features)
        ax.set_title(title, fontsize=9)
    with styled():
        ax = clean(made.add_subplot(grid[:, 4]))
    pair = {"NODE": results["g-d1-node"], "ANODE": results["g-d1-anode"]}
    curves(ax, epochs(pair["NODE"]), {name: each.per_epoch("nfe") for name, each in pair.items()}, ylabel="NFE")
    ax.set_title("function evaluations, g, d = 1")
    every, all_titles, _ = moments(result, result.run.snapshots)
    return Drawing(
        made,
        LOSS_COLUMNS,
        loss_rows({f"d = 1, {name}": each for name, each in pair.items()}),
        {"features": feature_frames([s.features for s in every], labels, all_titles)},
    )


STUDY = Study(
    "fig08",
    "The features of an ANODE during training, and NFE",
    "Left: features of an ANODE with one added dimension at moments of training; the disc is lifted off the ring and "
    "solving stays cheap. Right: function evaluations of a solve, mean and standard deviation over the repeats.",
    ("drawn-d2-anode", "g-d1-node", "g-d1-anode"),
    draw,
)
