"""Claims about regularisers."""

from __future__ import annotations

from anode.experiments.beyond.claims.common import held_out
from anode.experiments.beyond.protocols import STRENGTHS, name_of, regularised
from anode.experiments.beyond.runs import cost_of
from anode.experiments.findings import Claim, Finding, Votes, all_of, any_of, known
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std, median_mean


def regularisers_save(results: Results) -> Finding:
    """Claim 31."""
    node = results[name_of("g", 2, "node")]
    parts: dict[str, Votes] = {}
    numbers = [("none: NFE and held-out loss", pair(node))]
    for name in ("kinetic", "jacobian"):
        runs = [results[regularised("node", name, strength)] for strength in STRENGTHS[name]]
        parts[f"{name}: some strength saves"] = any_of([saves(run, node) for run in runs])
        numbers += [(f"{name} {run.run.strength:g}: NFE and held-out loss", pair(run)) for run in runs]
    return Finding.of_parts(parts, numbers)


def saves(result: Result, plain: Result) -> Votes:
    """Return whether evaluations fall by more than a tenth and the held-out loss rises by less than a tenth."""
    cost, usual = cost_of(result), cost_of(plain)
    return all_of([known(cost < 0.9 * usual, cost, usual), held_out(result) < 1.1 * held_out(plain)])


def is_worse(result: Result, other: Result) -> Votes:
    """Return whether the held-out loss is higher than that of another result, or it takes more evaluations."""
    cost, usual = cost_of(result), cost_of(other)
    return any_of([held_out(result) > held_out(other), known(cost > usual, cost, usual)])


def pair(result: Result) -> str:
    """Return evaluations and held-out loss, in words."""
    return f"{median_mean(cost_of(result))} and {mean_std(held_out(result))}"


def augmentation_beats_regularisers(results: Results) -> Finding:
    """Claim 32."""
    anode = results[name_of("g", 2, "zeros")]
    parts: dict[str, Votes] = {}
    numbers = [("ANODE: NFE and held-out loss", pair(anode))]
    for name, strengths in STRENGTHS.items():
        runs = [results[regularised("node", name, strength)] for strength in strengths]
        parts[f"{name}: none is as good in both"] = all_of([is_worse(run, anode) for run in runs])
        numbers += [(f"NODE, {name} {run.run.strength:g}: NFE and held-out loss", pair(run)) for run in runs]
    return Finding.of_parts(parts, numbers)


CLAIMS = (
    Claim(
        31,
        "regularisers",
        "Regularising kinetic energy or the Jacobian saves evaluations, and the loss does not rise (Finlay et al., "
        "2020).",
        "for a NODE on g in d = 2, some strength of each saves more than a tenth of the evaluations at 1e-3, and "
        "raises the held-out loss by less than a tenth",
        (
            name_of("g", 2, "node"),
            *(regularised("node", name, s) for name in ("kinetic", "jacobian") for s in STRENGTHS[name]),
        ),
        regularisers_save,
    ),
    Claim(
        32,
        "regularisers",
        "No regulariser does for a NODE what augmentation does.",
        "on g in d = 2, a NODE with any regulariser at any strength has a higher held-out loss than an ANODE without "
        "one, or takes more evaluations at 1e-3",
        (
            name_of("g", 2, "zeros"),
            *(regularised("node", name, s) for name, strengths in STRENGTHS.items() for s in strengths),
        ),
        augmentation_beats_regularisers,
    ),
)
