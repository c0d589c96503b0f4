"""Claims about the swap of two points, and about x -> -x."""

from __future__ import annotations

from anode.experiments.beyond.claims.common import below, named
from anode.experiments.beyond.protocols import name_of
from anode.experiments.beyond.runs import LABELS
from anode.experiments.findings import Claim, Finding
from anode.experiments.study import Results, median_mean

REPORTED = {"node": 3.4e-1, "zeros": 4.5e-6, "second-order-learned": 3.8e-5}
"""Training errors on parity in d = 1 that Norcliffe et al. (2020) report."""


def all_learn_the_swap(results: Results) -> Finding:
    """Claim 20."""
    return below(results, {LABELS[k]: name_of("swap", 1, k) for k in LABELS}, 0.01, lambda r: r.final_loss)


def parity_in_one_dimension(results: Results) -> Finding:
    """Claim 23."""
    losses = {kind: results[name_of("parity", 1, kind)].final_loss for kind in REPORTED}
    parts = {f"{LABELS[kind]}: below 1e-3": losses[kind] < 1e-3 for kind in ("zeros", "second-order-learned")}
    parts["NODE: above 0.1"] = losses["node"] > 0.1
    numbers = [(f"{LABELS[kind]} (reported: {REPORTED[kind]:.1e})", median_mean(each)) for kind, each in losses.items()]
    return Finding.of_parts(parts, numbers)


def odd_dimensions_are_harder(results: Results) -> Finding:
    """Claim 24."""
    losses = {dim: results[name_of("parity", dim, "node")].final_loss for dim in range(1, 11)}
    parts = {f"d = {d} above 3 times d = {d + 1}": losses[d] > 3 * losses[d + 1] for d in (1, 3, 5, 7, 9)}
    return Finding.of_parts(parts, [(f"d = {dim}", median_mean(each)) for dim, each in losses.items()])


CLAIMS = (
    Claim(
        20,
        "parity",
        "With any augmentation, a flow without a linear layer learns to swap -1 and 1. A plain flow cannot.",
        "the mean squared error is below 0.01 for every augmented model, and not for the NODE",
        named("swap", 1, LABELS),
        all_learn_the_swap,
    ),
    Claim(
        23,
        "parity",
        "On x -> -x in d = 1, an ANODE and a second-order flow reach errors near 0, and a NODE does not (Norcliffe et "
        "al., 2020: 4.5e-6, 3.8e-5 and 3.4e-1).",
        "the final training error is below 1e-3 for zeros and for the second-order flow with a learned start, and "
        "above 0.1 for the NODE",
        named("parity", 1, REPORTED),
        parity_in_one_dimension,
    ),
    Claim(
        24,
        "parity",
        "On x -> -x, a NODE is far worse in odd dimensions, where the map reverses the orientation of space "
        "(Norcliffe et al., 2020).",
        "for each odd d up to 9, its final training error is more than 3 times that for d + 1",
        tuple(name_of("parity", dim, "node") for dim in range(1, 11)),
        odd_dimensions_are_harder,
    ),
)
