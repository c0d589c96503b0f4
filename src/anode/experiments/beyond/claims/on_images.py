"""Claims about the family on images, and about how much of the paper's table 1 is architecture, as code.

They were stated before anything was trained.
"""

from __future__ import annotations

from functools import partial

from anode.experiments.beyond.claims.common import (
    CHEAP,
    LIFTED,
    Costs,
    at_the_papers,
    heavy_balls_are_cheap,
    learned_is_better,
)
from anode.experiments.beyond.on_images import NETWORKS, accuracy, network, of_family
from anode.experiments.beyond.runs import LABELS, at_shared
from anode.experiments.findings import Certified, Claim, Finding
from anode.experiments.images.curves import percent
from anode.experiments.study import Results
from anode.train.record import Array


def all_are_better(results: Results) -> Finding:
    """Claim 36."""
    found = {kind: accuracy(results[of_family(kind)]) for kind in LABELS}
    parts = {f"{LABELS[kind]}: more accurate": each > found["node"] for kind, each in found.items() if kind != "node"}
    return Finding.of_parts(parts, [(LABELS[kind], percent(each)) for kind, each in found.items()])


def learned_has_lower_losses(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 37."""
    lifted = [results[of_family(kind)] for kind in LIFTED]
    return Finding.of_parts(*learned_is_better(lifted, costs, lambda each: each.history.validation[-1], "test loss"))


def heavy_balls_take_fewer(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 38."""
    return Finding.of_parts(*heavy_balls_are_cheap([results[of_family(kind)] for kind in CHEAP], costs))


def architecture_is_enough(results: Results) -> Finding:
    """Claim 39."""
    found = _networks(results)
    return Finding(found["pooled", "node"] > found["plain", "zeros"], _accuracies(found))


def architecture_leaves_less(results: Results) -> Finding:
    """Claim 40."""
    found = _networks(results)
    plain, pooled = (found[each, "zeros"] - found[each, "node"] for each in ("plain", "pooled"))
    gains = [("gain by augmentation, plain", percent(plain)), ("gain by augmentation, pooled", percent(pooled))]
    return Finding(pooled < plain, [*gains, *_accuracies(found)])


def _networks(results: Results) -> dict[tuple[str, str], Array]:
    return {both: accuracy(results[network(*both)]) for both in NETWORKS}


def _accuracies(found: dict[tuple[str, str], Array]) -> list[tuple[str, str]]:
    return [(NETWORKS[both], percent(each)) for both, each in found.items()]


CLAIMS = (
    Claim(
        36,
        "mnist",
        "On MNIST, every augmentation is better than a plain neural ODE of its size (as the paper says of zeros).",
        "At the end of training, all models of the family have a higher test accuracy than the NODE.",
        tuple(of_family(kind) for kind in LABELS),
        all_are_better,
    ),
    Claim(
        37,
        "mnist",
        "On MNIST, a learned augmentation is better than zeros, and its flow is no harder to solve (Massaroli et al., "
        "2020, and the paper's future work).",
        "With a hidden layer, the test loss at the end of training is lower than with zeros, and a solve at 1e-3 takes "
        "no more evaluations.",
        tuple(of_family(kind) for kind in LIFTED),
        learned_has_lower_losses,
        certified=Certified(
            "The same, with the evaluations at the loosest tolerance certified for both.",
            partial(learned_has_lower_losses, costs=at_shared),
        ),
    ),
    Claim(
        38,
        "mnist",
        "On MNIST, heavy ball flows need fewer evaluations than NODEs, ANODEs and second-order flows (Xia et al., "
        "2021).",
        "After training, a solve of the heavy ball at 1e-3 takes fewer evaluations than a solve of each of the three.",
        tuple(of_family(kind) for kind in CHEAP),
        heavy_balls_take_fewer,
        certified=Certified(
            "The same at the loosest tolerance certified for all four.",
            partial(heavy_balls_take_fewer, costs=at_shared),
        ),
    ),
    Claim(
        39,
        "architecture",
        "Normalisation and pooling do more for a NODE than augmentation does.",
        "At the end of training, the NODE with normalisation and pooling has a higher test accuracy than the plain "
        "ANODE of the same size.",
        tuple(network(*both) for both in NETWORKS),
        architecture_is_enough,
    ),
    Claim(
        40,
        "architecture",
        "With normalisation and pooling, augmentation gains less.",
        "At the end of training, the difference in test accuracy between ANODE and NODE is smaller with normalisation "
        "and pooling than without.",
        tuple(network(*both) for both in NETWORKS),
        architecture_leaves_less,
    ),
)
"""The claims; their numbers follow those about points."""
