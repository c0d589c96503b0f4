"""Claims about what augmentation changes in a trained flow."""

from __future__ import annotations

from anode.experiments.beyond.claims.common import named
from anode.experiments.beyond.correlations import EXAMINED, correlation
from anode.experiments.beyond.measures import MEASURES
from anode.experiments.findings import Claim, Finding, Votes
from anode.experiments.study import Results, mean_std, median_mean


def augmented_flows_are_simpler(results: Results) -> Finding:
    """Claim 28."""
    parts: dict[str, Votes] = {}
    numbers = []
    for d in (1, 2):
        node, anode = (results[name].measured for name in named("g", d, ("node", "zeros")))
        parts |= {
            f"d = {d}: straighter": anode["straightness"] > node["straightness"],
            f"d = {d}: less kinetic energy": anode["energy"] < node["energy"],
            f"d = {d}: smaller Lipschitz constant": anode["lipschitz"] < node["lipschitz"],
        }
        if d > 1:  # every flow on a line has a condition number of 1
            parts[f"d = {d}: better conditioned"] = anode["condition"] < node["condition"]
        numbers += [
            (f"d = {d}: {words}, NODE and ANODE", f"{median_mean(node[key])} and {median_mean(anode[key])}")
            for key, words in MEASURES.items()
            if d > 1 or key not in ("curvature", "condition")
        ]
    return Finding.of_parts(parts, numbers)


def energy_and_slope_tell_the_cost(results: Results) -> Finding:
    """Claim 29."""
    found = {key: correlation(results, key) for key in MEASURES}
    parts = {f"{MEASURES[key]}: above 0.5": found[key] > 0.5 for key in ("energy", "lipschitz")}
    return Finding.of_parts(parts, [(MEASURES[key], mean_std(each)) for key, each in found.items()])


CLAIMS = (
    Claim(
        28,
        "why",
        "The flows of ANODEs are simpler than those of NODEs.",
        "on g in d = 1 and 2, they are straighter and have less kinetic energy and a smaller Lipschitz constant; in "
        "d = 2, their inverse is better conditioned",
        tuple(name for d in (1, 2) for name in named("g", d, ("node", "zeros"))),
        augmented_flows_are_simpler,
    ),
    Claim(
        29,
        "why",
        "Kinetic energy and the slope of f decide how many evaluations a solve takes (Finlay et al., 2020).",
        "over all models that were measured, the rank correlation of both with the evaluations at 1e-3 is above 0.5",
        EXAMINED,
        energy_and_slope_tell_the_cost,
    ),
)
