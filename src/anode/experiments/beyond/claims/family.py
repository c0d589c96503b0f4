"""Claims about every augmentation on the paper's data and on nested spheres."""

from __future__ import annotations

from functools import partial

from anode.experiments.beyond.claims.common import (
    CHEAP,
    LIFTED,
    Costs,
    at_the_papers,
    below,
    heavy_balls_are_cheap,
    held_out,
    learned_is_better,
    named,
)
from anode.experiments.beyond.protocols import name_of
from anode.experiments.beyond.runs import LABELS, at_shared
from anode.experiments.findings import Certified, Claim, Finding, Votes
from anode.experiments.study import Results
from anode.experiments.toy.flows import FITTED


def all_fit_g(results: Results) -> Finding:
    """Claim 19."""
    return below(results, {LABELS[k]: name_of("g", 1, k) for k in LABELS}, FITTED, lambda r: r.final_loss)


TWO = {"g": "g, d = 2: ", "nested": "nested spheres: "}
"""Data in the plane, and how its parts of a finding begin."""


def learned_has_lower_losses(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 21."""
    parts: dict[str, Votes] = {}
    numbers: list[tuple[str, str]] = []
    for data, before in TWO.items():
        lifted = [results[name] for name in named(data, 2, LIFTED)]
        votes, measured = learned_is_better(lifted, costs, held_out, "held-out loss", before)
        parts, numbers = parts | votes, numbers + measured
    return Finding.of_parts(parts, numbers)


def heavy_balls_take_fewer(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 22."""
    parts: dict[str, Votes] = {}
    numbers: list[tuple[str, str]] = []
    for data, before in TWO.items():
        votes, measured = heavy_balls_are_cheap([results[name] for name in named(data, 2, CHEAP)], costs, before)
        parts, numbers = parts | votes, numbers + measured
    return Finding.of_parts(parts, numbers)


CLAIMS = (
    Claim(
        19,
        "family",
        "Every augmentation lets a neural ODE fit g in d = 1, which a plain one cannot (as the paper says of zeros).",
        f"the final loss is below {FITTED:.3f}, a tenth of the best constant's, for every augmented model, and not for "
        "the NODE",
        named("g", 1, LABELS),
        all_fit_g,
    ),
    Claim(
        21,
        "family",
        "A learned augmentation is better than zeros, and its flow is no harder to solve (Massaroli et al., 2020, and "
        "the paper's future work).",
        "on g in d = 2 and on nested spheres, a learned augmentation with a hidden layer has a lower held-out loss "
        "than zeros, and takes no more evaluations at 1e-3 after training",
        tuple(name for data in TWO for name in named(data, 2, LIFTED)),
        learned_has_lower_losses,
        certified=Certified(
            "the same, with the evaluations at the loosest tolerance certified for both",
            partial(learned_has_lower_losses, costs=at_shared),
        ),
    ),
    Claim(
        22,
        "family",
        "Heavy ball flows need fewer evaluations than NODEs, ANODEs and second-order flows (Xia et al., 2021).",
        "on g in d = 2 and on nested spheres, the heavy ball takes fewer evaluations at 1e-3 after training than each "
        "of the three",
        tuple(name for data in TWO for name in named(data, 2, CHEAP)),
        heavy_balls_take_fewer,
        certified=Certified(
            "the same at the loosest tolerance certified for all four", partial(heavy_balls_take_fewer, costs=at_shared)
        ),
    ),
)
