"""Figure 17: the feature space of NODEs on g and on separable data."""

from __future__ import annotations

from anode.experiments.study import Drawing, Results, Study
from anode.experiments.toy.flows import moments
from anode.plots.animate import feature_frames
from anode.plots.features import strip

RUNS = {"g-d2-node": "g", "separable-d2-node": "separable"}


def draw(results: Results) -> Drawing:
    """A row of moments for each dataset."""
    panels, titles, labels, rows = [], [], [], []
    for name, title in RUNS.items():
        chosen, words, classes = moments(results[name], 6)
        panels += [s.features for s in chosen]
        titles += words
        labels += [classes] * len(chosen)
        rows += [[title, word.split(",")[0], str(int(s.nfe))] for s, word in zip(chosen, words, strict=True)]
    separable = results["separable-d2-node"]
    every, words, classes = moments(separable, separable.run.snapshots)
    return Drawing(
        strip(panels, labels, titles, columns=6, width=11.0),
        ["data", "moment", "NFE"],
        rows,
        {"separable": feature_frames([s.features for s in every], classes, words)},
    )


STUDY = Study(
    "fig17",
    "The features of NODEs on g and on separable data",
    "Features of the same points in the course of training, with the evaluations that their solve takes. Top: a NODE "
    "trained on g, where the disc has to leave the ring. Bottom: one trained on two curves that can be separated.",
    tuple(RUNS),
    draw,
)
