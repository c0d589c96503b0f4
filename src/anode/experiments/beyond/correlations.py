"""Correlate measurements of flows with the number of evaluations of their solves."""

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
    """Return Spearman's rank correlation of a measure with the NFE at 1e-3, over all models of each repeat."""
    values = np.array([results[name].measured[measure] for name in EXAMINED])
    costs = np.array([cost_of(results[name]) for name in EXAMINED])
    return np.array([spearman(a, b) for a, b in zip(values.T, costs.T, strict=True)])


def spearman(a: Array, b: Array) -> float:
    """Return the rank correlation of the finite entries of two series; NaN if there are too few."""
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: Array) -> Array:
    """Return the ranks of values; equal values get the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Array = (counts.cumsum() - (counts - 1) / 2)[which]
    return found
