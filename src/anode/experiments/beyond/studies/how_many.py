"""How many added dimensions a model needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anode.experiments.beyond.protocols import COUNT_DIMS, COUNTS
from anode.experiments.beyond.runs import cost_of
from anode.experiments.beyond.studies.tables import COLUMNS, fitted, mean, median, rows_of
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study
from anode.plots.series import curves
from anode.plots.style import figure, shades, shared_legend


def draw(results: Results) -> Drawing:
    """Draw loss, held-out loss and NFE over the number of added dimensions, one line per dimension of g."""
    made = figure(12.5, 4.0, columns=3)
    found = {f"d = {d}": [results[f"count-d{d}-p{p}"] for p in COUNTS] for d in COUNT_DIMS}
    colors = dict(zip(found, shades(len(found)), strict=True))
    panels: dict[str, Callable[[Result], float]] = {
        "training loss, median": lambda result: median(result.final_loss),
        "held-out loss, median": lambda result: median(result.measured["held-out"]),
        "NFE at 1e-3, mean": lambda result: mean(cost_of(result)),
    }
    for ax, (title, value) in zip(made.axes, panels.items(), strict=True):
        series = {label: np.array([value(each) for each in line]) for label, line in found.items()}
        curves(ax, range(len(COUNTS)), series, colors, title, xlabel="added dimensions p", log=ax is not made.axes[2])
        ax.set_xticks(range(len(COUNTS)), [str(p) for p in COUNTS])
        for line in ax.lines:
            line.set_marker("o")
        if ax is not made.axes[2]:
            fitted(ax.axhline)
    shared_legend(made)
    table = {f"{label}, p = {each.run.augment}": each for label, line in found.items() for each in line}
    lowest = {
        label: COUNTS[int(np.nanargmin([median(each.measured["held-out"]) for each in line]))]
        for label, line in found.items()
        if any(np.isfinite(median(each.measured["held-out"])) for each in line)
    }
    told = "; ".join(f"{label}: p = {p}" for label, p in lowest.items())
    remark = f"Lowest median of the held-out loss: {told}."
    return Drawing(made, COLUMNS, rows_of(table), remark=remark)


STUDY = Study(
    "how-many",
    "How many added dimensions",
    "ANODEs on g in d = 1, 2, 3 and 5 with p added zeros, over all repeats. Models of the same d have the same "
    "number of parameters, to within 2 %: the larger p is, the narrower are their layers. p = 0 is the NODE. A model "
    "below the dashed line has fitted g. The table has means, which single repeats that do not fit g dominate.",
    tuple(f"count-d{d}-p{p}" for d in COUNT_DIMS for p in COUNTS),
    draw,
)
