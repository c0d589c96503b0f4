"""The swap of two points, and x -> -x, which plain flows in odd dimensions cannot represent."""

from __future__ import annotations

import numpy as np

from anode.experiments.beyond.protocols import PARITY_DIMS, PARITY_KINDS, name_of
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies.tables import COLORS, COLUMNS, mean, median, rows_of
from anode.experiments.study import Drawing, Results, Study
from anode.plots.rows import rows
from anode.plots.series import curves
from anode.plots.style import figure, shared_legend

LINES = {**COLORS, LABELS["second-order"]: "#4b4a6b", LABELS["second-order-learned"]: "#b5487d"}


def draw(results: Results) -> Drawing:
    """Draw the swap on the left, and errors and evaluations of x -> -x over the dimension."""
    made = figure(13.0, 4.4, columns=3)
    swaps = {LABELS[kind]: results[name_of("swap", 1, kind)] for kind in LABELS}
    left, middle, right = made.axes
    rows(left, {label: each.final_loss for label, each in swaps.items()}, LINES, xlabel="mean squared error", log=True)
    left.set_title("swapping -1 and 1")
    flips = {kind: [results[name_of("parity", dim, kind)] for dim in PARITY_DIMS] for kind in PARITY_KINDS}
    errors = {LABELS[kind]: np.array([[median(each.final_loss)] for each in found]) for kind, found in flips.items()}
    curves(middle, PARITY_DIMS, errors, LINES, "training error, median", xlabel="d", log=True)
    middle.set_title("x to -x")
    costs = {LABELS[kind]: np.array([[mean(cost_of(each))] for each in found]) for kind, found in flips.items()}
    curves(right, PARITY_DIMS, costs, LINES, "NFE at 1e-3, mean", xlabel="d")
    right.set_title("x to -x")
    shared_legend(made)
    table = {f"swap: {label}": each for label, each in swaps.items()}
    table |= {f"-x, d = {each.run.dim}: {LABELS[kind]}": each for kind, found in flips.items() for each in found}
    learned = [label for label, each in swaps.items() if median(each.final_loss) < 0.01]
    remark = f"An error below 0.01 on the swap, in the median: {', '.join(learned) or 'none'}."
    return Drawing(made, COLUMNS, rows_of(table), remark=remark)


STUDY = Study(
    "parity",
    "Which learn the swap, and x to -x",
    "Flows without a linear layer, so each position has to end at its target. Left: mean squared error on the two "
    "points of the paper's g in one dimension. Dots are repeats, strokes are medians; mapping both points to 0 has "
    "an error of 1. Middle and right: 50 points of the cube [-1, 1]^d are mapped to their negatives (generalised "
    "parity, Norcliffe et al., 2020). In odd dimensions, this map reverses the orientation of space, which no flow "
    "on the same space does.",
    (
        *(name_of("swap", 1, kind) for kind in LABELS),
        *(name_of("parity", dim, kind) for kind in PARITY_KINDS for dim in PARITY_DIMS),
    ),
    draw,
)
