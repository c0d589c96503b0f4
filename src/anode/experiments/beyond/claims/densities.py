"""Claims about density flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from anode.data.densities import DENSITIES
from anode.experiments.beyond.densities import TABLES
from anode.experiments.beyond.runs import at_shared
from anode.experiments.certificates import shared
from anode.experiments.findings import Certified, Claim, Finding, known
from anode.experiments.study import Results, mean_std, median_mean, nfe_growth, tolerance_range
from anode.train.record import Array


def flows(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the runs of a kind of density flow."""
    return tuple(f"density-{data}-{kind}" for data in names)


def augmentation_keeps_densities_cheap(results: Results) -> Finding:
    """Claim 33."""
    grown = {kind: [nfe_growth(results[name]) for name in flows(kind, DENSITIES)] for kind in ("cnf", "augmented")}
    means = {kind: np.mean(each, axis=0) for kind, each in grown.items()}
    numbers = [("growth, mean over all, CNF and augmented", both(means))]
    for i, data in enumerate(DENSITIES):
        numbers.append((data.replace("_", " "), both({kind: each[i] for kind, each in grown.items()})))
    return Finding(means["augmented"] < means["cnf"], numbers)


def both(values: Mapping[str, Array]) -> str:
    """Return values of a plain and an augmented flow, in words."""
    return f"{mean_std(values['cnf'])} and {mean_std(values['augmented'])}"


def densities_are_cheap_certified(results: Results) -> Finding:
    """Claim 33, at a tolerance certified for both."""
    pairs = {data: [results[f"density-{data}-{kind}"] for kind in ("cnf", "augmented")] for data in DENSITIES}
    costs = {data: at_shared(each) for data, each in pairs.items()}
    plain, augmented = (np.mean([each[i] for each in costs.values()], axis=0) for i in (0, 1))
    numbers = [("NFE, mean over all, CNF and augmented", both({"cnf": plain, "augmented": augmented}))]
    for data, each in pairs.items():
        tolerance = shared([result.certificates["last"] for result in each])
        said = f"{median_mean(costs[data][0])} and {median_mean(costs[data][1])} at {tolerance_range(tolerance)}"
        numbers.append((data.replace("_", " "), said))
    return Finding(known(augmented < plain, augmented, plain), numbers)


def augmentation_raises_likelihoods(results: Results) -> Finding:
    """Claim 34."""
    return likelier(results, tuple(DENSITIES))


def augmentation_raises_likelihoods_of_tables(results: Results) -> Finding:
    """Claim 35."""
    return likelier(results, tuple(TABLES))


def likelier(results: Results, names: Sequence[str]) -> Finding:
    """Return the finding that the mean log-likelihood of test points over some data is higher with augmentation."""
    found = {
        kind: [results[name].measured["log-likelihood"] for name in flows(kind, names)] for kind in ("cnf", "augmented")
    }
    means = {kind: np.mean(each, axis=0) for kind, each in found.items()}
    numbers = [("mean over all, CNF and augmented", both(means))]
    numbers += [
        (data.replace("_", " "), both({kind: each[i] for kind, each in found.items()})) for i, data in enumerate(names)
    ]
    return Finding(means["augmented"] > means["cnf"], numbers)


CLAIMS = (
    Claim(
        33,
        "densities",
        "Augmentation mitigates the growth of evaluations in training a density flow (the paper's guess).",
        "the mean NFE of the last epoch over that of the first, averaged over six densities, is lower with "
        "augmentation",
        (*flows("cnf", DENSITIES), *flows("augmented", DENSITIES)),
        augmentation_keeps_densities_cheap,
        certified=Certified(
            "after training, a solve takes fewer evaluations with augmentation, averaged over six densities, each at "
            "the loosest tolerance certified for both flows",
            densities_are_cheap_certified,
        ),
    ),
    Claim(
        34,
        "densities",
        "Augmentation raises the likelihood that a density flow of the same size reaches (Huang et al., 2020; Chen et "
        "al., 2020).",
        "the log-likelihood of test points, averaged over six densities, is higher with augmentation. For augmented "
        "flows, it is a lower bound from 20 draws.",
        (*flows("cnf", DENSITIES), *flows("augmented", DENSITIES)),
        augmentation_raises_likelihoods,
    ),
    Claim(
        35,
        "densities",
        "Augmentation raises the likelihood on tables, too.",
        "the log-likelihood of test rows, averaged over iris and wine, is higher with augmentation. For augmented "
        "flows, it is a lower bound from 20 draws.",
        (*flows("cnf", TABLES), *flows("augmented", TABLES)),
        augmentation_raises_likelihoods_of_tables,
    ),
)
