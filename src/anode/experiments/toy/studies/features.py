"""Figures 6, 8 and 17: features during training, and the cost of solving."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study, epochs, mean_std
from anode.experiments.toy.flows import LOSS_COLUMNS, certified_moment, loss_rows, moments
from anode.plots.animate import feature_frames
from anode.plots.features import frame, scatter, strip
from anode.plots.series import curves
from anode.plots.style import clean, figure, styled


def film(result: Result) -> Iterable[Any]:
    """Return the frames of an animation of all snapshots of a run."""
    every, titles, labels = moments(result, result.run.snapshots)
    return feature_frames([s.features for s in every], labels, titles)


def fig06(results: Results) -> Drawing:
    """Draw six snapshots, and an animation of all of them."""
    result = results["g-d2-node"]
    chosen, titles, labels = moments(result, 6)
    return Drawing(
        strip([s.features for s in chosen], labels, titles, columns=6, width=11.0),
        ["moment", "NFE"],
        [
            *([title.split(",")[0], str(int(s.nfe))] for s, title in zip(chosen, titles, strict=True)),
            list(certified_moment(result)),
        ],
        {"features": film(result)},
        remark=f"The solve takes {int(chosen[0].nfe)} evaluations before training and {int(chosen[-1].nfe)} at the "
        "end.",
    )


def fig08(results: Results) -> Drawing:
    """Draw six snapshots of features on the left, and curves of NFE on the right."""
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
    return Drawing(
        made,
        LOSS_COLUMNS,
        loss_rows({f"d = 1, {name}": each for name, each in pair.items()}),
        {"features": film(result)},
        remark=f"On the left, the solve takes {int(chosen[0].nfe)} evaluations before training and "
        f"{int(chosen[-1].nfe)} at the end. On the right, the mean NFE of the first and the last epoch are "
        f"{first_and_last(pair['NODE'])} for the NODEs, and {first_and_last(pair['ANODE'])} for the ANODEs.",
    )


def first_and_last(result: Result) -> str:
    """Return the mean evaluations of the first and the last epoch, in words."""
    nfe = result.per_epoch("nfe")
    return f"{mean_std(nfe[0], '{:.1f}')} and {mean_std(nfe[-1], '{:.1f}')}"


RUNS = {"g-d2-node": "g", "separable-d2-node": "separable"}


def fig17(results: Results) -> Drawing:
    """Draw one row of snapshots per dataset."""
    panels, titles, labels, rows, last = [], [], [], [], {}
    for name, title in RUNS.items():
        chosen, words, classes = moments(results[name], 6)
        last[title] = int(chosen[-1].nfe)
        panels += [s.features for s in chosen]
        titles += words
        labels += [classes] * len(chosen)
        rows += [[title, word.split(",")[0], str(int(s.nfe))] for s, word in zip(chosen, words, strict=True)]
        rows.append([title, *certified_moment(results[name])])
    return Drawing(
        strip(panels, labels, titles, columns=6, width=11.0),
        ["data", "moment", "NFE"],
        rows,
        {"separable": film(results["separable-d2-node"])},
        remark=costs(last),
    )


def costs(last: dict[str, int]) -> str:
    """Return the final NFE on both datasets in words, and whether the separable data take more."""
    ends = f"At the end, the solve takes {last['g']} evaluations on g and {last['separable']} on the separable data"
    if last["separable"] > last["g"]:
        return f"{ends}: more than on g, although a flow can separate these data."
    return f"{ends}."


STUDIES = (
    Study(
        "fig06",
        "The features of a NODE during training",
        "Features of the inner disc (blue) and of the ring (red) during training. This is the typical repeat, whose "
        "final loss is the median. Titles give the function evaluations (NFE) of the solve at the paper's tolerance, "
        "1e-3. To separate the classes in the plane, the flow has to move the disc out through a gap in the ring. The "
        "last row of the table gives the NFE at the certified tolerance: the loosest one at which solving forward and "
        "back returns the states to within 1 %.",
        ("g-d2-node",),
        fig06,
    ),
    Study(
        "fig08",
        "The features of an ANODE during training, and NFE",
        "Left (d = 2): features of an ANODE with one added dimension during training, for the typical repeat. Right "
        "(d = 1): function evaluations (NFE) per solve on g at the paper's tolerance, 1e-3. Curves and bands show mean "
        "and standard deviation over the repeats; these ANODEs have five added dimensions. The table also gives the "
        "NFE at the loosest tolerance at which solving forward and back returns the states of both models to within "
        "1 %.",
        ("drawn-d2-anode", "g-d1-node", "g-d1-anode"),
        fig08,
    ),
    Study(
        "fig17",
        "The features of NODEs on g and on separable data",
        "Features of the same points during training, for the typical repeats. Top: a NODE trained on g, where the "
        "disc has to leave the ring. Bottom: a NODE trained on two separable curves. Titles give the function "
        "evaluations (NFE) of the solve at the paper's tolerance, 1e-3. The table also gives the NFE at a certified "
        "tolerance, as in figure 6.",
        tuple(RUNS),
        fig17,
    ),
)
