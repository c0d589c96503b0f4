"""Tables and colours shared by several studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.lines import Line2D

from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.runs import Result
from anode.experiments.study import CERTIFIED_COLUMNS, certified_cells, mean_std, median_mean
from anode.experiments.toy.flows import FITTED
from anode.plots.style import MODEL_COLORS, MUTED
from anode.train.record import Array

COLORS = {LABELS["node"]: MODEL_COLORS["NODE"], LABELS["zeros"]: MODEL_COLORS["ANODE"]}
"""The colours of the paper's models; the others are drawn in the default colour."""

COLUMNS = ["", "training loss", "held-out loss", "NFE at 1e-3", *CERTIFIED_COLUMNS, "failed"]


def rows_of(results: Mapping[str, Result]) -> list[list[str]]:
    """Return a row per result, by name; the certified tolerance is that of all results on the same data."""
    certified = certified_cells(results, lambda result: (result.run.data, result.run.dim))
    return [
        [
            name,
            mean_std(result.final_loss),
            mean_std(result.measured["held-out"]),
            median_mean(cost_of(result)),
            *certified[name],
            str(len(result.history.failures)),
        ]
        for name, result in results.items()
    ]


def fitted(line: Callable[..., Line2D]) -> None:
    """Draw the loss below which a model has fitted g, with ``ax.axhline`` or ``ax.axvline``."""
    line(
        FITTED,
        color=MUTED,
        linewidth=1.2,
        linestyle=(0, (4, 3)),
        zorder=1,
        label=f"fitted: loss below {FITTED:.3f}",
    )


def median(values: Array) -> float:
    """Return the median of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def mean(values: Array) -> float:
    """Return the mean of the finite values; NaN if there are none. Few means of NFE are equal, and most medians are."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
