"""Claims about every augmentation on the paper's data and on nested spheres."""

from __future__ import annotations

from functools import partial

from anode.experiments.beyond.claims.common import CHEAP, Costs, at_the_papers, below, held_out, named
from anode.experiments.beyond.protocols import name_of
from anode.experiments.beyond.runs import LABELS, at_shared
from anode.experiments.findings import Certified, Claim, Finding, Votes, known
from anode.experiments.study import Results, mean_std, median_mean
from anode.experiments.toy.flows import FITTED


def all_fit_g(results: Results) -> Finding:
    """Claim 19."""
    return below(results, {LABELS[k]: name_of("g", 1, k) for k in LABELS}, FITTED, lambda r: r.final_loss)


def lifted(data: str, dim: int) -> tuple[str, ...]:
    """Return the runs with zeros and with a learned augmentation."""
    return named(data, dim, ("zeros", "hidden"))


def learned_is_better(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 21."""
    parts: dict[str, Votes] = {}
    numbers = []
    for title, data, dim in (("g, d = 2", "g", 2), ("nested spheres", "nested", 2)):
        zeros, learned = (held_out(results[name]) for name in lifted(data, dim))
        before, after = costs([results[name] for name in lifted(data, dim)])
        parts[f"{title}: lower loss"] = learned < zeros
        parts[f"{title}: no more evaluations"] = known(after <= before, after, before)
        numbers += [
            (f"{title}: held-out loss, zeros and learned", f"{mean_std(zeros)} and {mean_std(learned)}"),
            (f"{title}: NFE, zeros and learned", f"{median_mean(before)} and {median_mean(after)}"),
        ]
    return Finding.of_parts(parts, numbers)


def heavy_balls_are_cheap(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 22."""
    parts: dict[str, Votes] = {}
    numbers = []
    for title, data in (("g, d = 2", "g"), ("nested spheres", "nested")):
        found = dict(zip(CHEAP, costs([results[name] for name in named(data, 2, CHEAP)]), strict=True))
        ball = found["heavy-ball"]
        parts |= {f"{title}: fewer than {LABELS[k]}": known(ball < found[k], ball, found[k]) for k in CHEAP[1:]}
        numbers += [(f"{title}: NFE, {LABELS[kind]}", median_mean(each)) for kind, each in found.items()]
    return Finding.of_parts(parts, numbers)


TWO = (("g", 2), ("nested", 2))

CLAIMS = (
    Claim(
        19,
        "family",
        "Every augmentation lets a neural ODE fit g in d = 1, which a plain one cannot (as the paper says of zeros).",
        f"final loss below {FITTED:.3f} (a tenth of the best constant's) for all of the family, not for the NODE",
        named("g", 1, LABELS),
        all_fit_g,
    ),
    Claim(
        21,
        "family",
        "A learned augmentation is better than zeros, and its flow no harder to solve (Massaroli et al., 2020, and the "
        "paper's future work).",
        "with a hidden layer, lower held-out loss and no more evaluations than zeros, on g in d = 2 and nested spheres",
        tuple(name for data, dim in TWO for name in lifted(data, dim)),
        learned_is_better,
        certified=Certified(
            "the same, with the evaluations at the loosest tolerance certified for both",
            partial(learned_is_better, costs=at_shared),
        ),
    ),
    Claim(
        22,
        "family",
        "Heavy ball flows need fewer evaluations than NODEs, ANODEs and second-order flows (Xia et al., 2021).",
        "fewer evaluations at 1e-3 after training than each of the three, on g in d = 2 and nested spheres",
        tuple(name for data, dim in TWO for name in named(data, dim, CHEAP)),
        heavy_balls_are_cheap,
        certified=Certified(
            "the same at the loosest tolerance certified for all four", partial(heavy_balls_are_cheap, costs=at_shared)
        ),
    ),
)
