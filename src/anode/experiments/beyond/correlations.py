"""How what is measured of flows goes together with the evaluations that their solves take."""

from __future__ import annotations

import numpy as np

from anode.experiments.beyond.protocols import COUNT_DIMS, COUNTS, G_DIMS, name_of
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.study import Results
from anode.train.record import Array

EXAMINED = (
    *(name_of("g", dim, kind) for dim in G_DIMS for kind in LABELS),
    *(name_of("nested", 2, kind) for kind in LABELS),
    *(f"count-d{dim}-p{p}" for dim in COUNT_DIMS for p in COUNTS),
)
"""The runs whose flows are measured."""


def correlation(results: Results, measure: str) -> Array:
    """Spearman's rank correlation of a measure with the evaluations at 1e-3, over all models of each repeat."""
    values = np.array([results[name].measured[measure] for name in EXAMINED])
    costs = np.array([cost_of(results[name]) for name in EXAMINED])
    return np.array([spearman(a, b) for a, b in zip(values.T, costs.T, strict=True)])


def spearman(a: Array, b: Array) -> float:
    """The correlation of the ranks of two series, without what is not finite; NaN if too little is left."""
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: Array) -> Array:
    """The places of values in their order; of equal values, the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Array = (counts.cumsum() - (counts - 1) / 2)[which]
    return found
