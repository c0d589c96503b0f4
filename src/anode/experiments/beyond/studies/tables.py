"""What the tables and pictures of several studies share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import numpy as np

from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.runs import Result
from anode.experiments.study import CERTIFIED_COLUMNS, certified_cells, mean_std, median_mean
from anode.plots.style import MODEL_COLORS
from anode.train.record import Array

COLORS = {LABELS["node"]: MODEL_COLORS["NODE"], LABELS["zeros"]: MODEL_COLORS["ANODE"]}
"""The paper's models have their own colours."""

COLUMNS = ["", "training loss", "held-out loss", "NFE at 1e-3", *CERTIFIED_COLUMNS, "failed"]


def rows_of(results: Mapping[str, Result], data: Callable[[Result], Hashable]) -> list[list[str]]:
    """A row for each result, by its name; the certified tolerance is that of all results on the same data.

    Args:
        results: By the name of their row.
        data: Tells the data of a result from others.
    """
    certified = certified_cells(results, data)
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


def median(values: Array) -> float:
    """The median of what is finite; NaN if nothing is."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")
