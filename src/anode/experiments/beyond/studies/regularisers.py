"""Evaluations against loss, for each regulariser at several strengths."""

from __future__ import annotations

import numpy as np

from anode.experiments.beyond.protocols import REGULARISED, STRENGTHS, name_of, regularised
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies.tables import COLUMNS, median, rows_of
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study
from anode.plots.series import make_logarithmic
from anode.plots.style import INK, figure, grid, shared_legend

WORDS = {
    "kinetic": "kinetic energy",
    "jacobian": "Jacobian",
    "steer": "STEER",
    "errors": "local errors",
    "decay": "weight decay",
}
COLORS = dict(zip(WORDS, ("#b5487d", "#3f8fd2", "#80a030", "#d9482f", "#4b4a6b"), strict=True))


def draw(results: Results) -> Drawing:
    """Draw one panel for NODE and one for ANODE, with one line per regulariser over its strengths."""
    made = figure(11.0, 4.4, columns=2)
    table: dict[str, Result] = {}
    for ax, kind in zip(made.axes, REGULARISED, strict=True):
        plain = results[name_of("g", 2, kind)]
        table[LABELS[kind]] = plain
        heights: list[float] = []
        for name, strengths in STRENGTHS.items():
            found = [results[regularised(kind, name, strength)] for strength in strengths]
            table |= {f"{LABELS[kind]}, {WORDS[name]} {each.run.strength:g}": each for each in found}
            at = [place(each) for each in (plain, *found)]
            heights += [y for _, y in at]
            ax.plot(*zip(*at, strict=True), color=COLORS[name], linewidth=1.3, zorder=3, label=WORDS[name])
            for i, (x, y) in enumerate(at[1:], 1):
                ax.plot(x, y, "o", color=COLORS[name], markersize=3 + 2.2 * i, zorder=4)
        ax.plot(*place(plain), "D", color=INK, markersize=7, zorder=5, label="none")
        make_logarithmic(ax, np.array(heights))
        ax.set(xlabel="NFE, median", ylabel="held-out loss, median", title=LABELS[kind])
        grid(ax)
    shared_legend(made)
    return Drawing(made, COLUMNS, rows_of(table))


def place(result: Result) -> tuple[float, float]:
    """Return the position of a result: the medians of evaluations and held-out loss."""
    return float(median(cost_of(result))), median(result.measured["held-out"])


STUDY = Study(
    "regularisers",
    "Regularisers: evaluations against loss",
    "NODEs and ANODEs with two added zeros, on g in d = 2. Each line leads from no regulariser (diamond) to stronger "
    "and stronger ones (larger dots). It shows the medians over the repeats of the evaluations at 1e-3 and of the "
    "loss on points that were not trained on. Low and left is better. Kinetic energy and Jacobian: Finlay et al. "
    "(2020). STEER, which draws random end times: Ghosh et al. (2020). Local errors, which are the solver's own "
    "estimates: Pal et al. (2021).",
    (
        *(name_of("g", 2, kind) for kind in REGULARISED),
        *(
            regularised(kind, name, s)
            for kind in REGULARISED
            for name, strengths in STRENGTHS.items()
            for s in strengths
        ),
    ),
    draw,
)
