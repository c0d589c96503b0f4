"""Every augmentation on the paper's data and on nested spheres."""

from __future__ import annotations

from anode.experiments.beyond.protocols import G_DIMS, name_of
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies.tables import COLORS, COLUMNS, fitted, median, rows_of
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study
from anode.plots.rows import rows
from anode.plots.style import figure, shared_legend

DATA = {**{("g", dim): f"g, d = {dim}" for dim in G_DIMS}, ("nested", 2): "nested spheres"}


def draw(results: Results) -> Drawing:
    """Draw one column per dataset: held-out losses above, evaluations below."""
    made = figure(13.5, 7.6, rows=2, columns=len(DATA), width_ratios=[1] * len(DATA))
    table: dict[str, Result] = {}
    best = []
    for column, ((data, dim), title) in enumerate(DATA.items()):
        found = {LABELS[kind]: results[name_of(data, dim, kind)] for kind in LABELS}
        losses = {label: each.measured["held-out"] for label, each in found.items()}
        upper, lower = made.axes[column], made.axes[len(DATA) + column]
        rows(upper, losses, COLORS, xlabel="held-out loss", log=True, named=column == 0)
        fitted(upper.axvline)
        upper.set_title(title)
        costs = {label: cost_of(each) for label, each in found.items()}
        rows(lower, costs, COLORS, xlabel="NFE at 1e-3", named=column == 0)
        table |= {f"{title}: {label}": each for label, each in found.items()}
        lowest = min(losses, key=lambda label: median(losses[label]))
        best.append(f"{title}: {lowest} ({median(losses[lowest]):.2g})")
    shared_legend(made)
    remark = f"Lowest median of the held-out loss: {'; '.join(best)}."
    return Drawing(made, COLUMNS, rows_of(table), remark=remark)


STUDY = Study(
    "family",
    "The family side by side",
    "Huber loss on points that were not trained on, and evaluations of a solve at a tolerance of 1e-3 after "
    "training. Dots are repeats, strokes are medians. All models of a column have the same number of parameters, to "
    "within 2 %. Each augmented model has as many added numbers as inputs: zeros, a learned constant, a linear map "
    "of the input, a network of the input with a hidden layer, the input itself (data control), or a velocity "
    "(second order, heavy balls). The dashed line is a tenth of the loss of the best constant: a model with a lower "
    "loss has fitted g.",
    tuple(name_of(data, dim, kind) for data, dim in DATA for kind in LABELS),
    draw,
)
