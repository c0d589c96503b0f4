"""Claims about the number of added dimensions."""

from __future__ import annotations

from functools import partial

from anode.experiments.beyond.claims.common import Costs, at_the_papers, held_out
from anode.experiments.beyond.protocols import COUNT_DIMS
from anode.experiments.beyond.runs import at_shared
from anode.experiments.findings import Certified, Claim, Finding, Votes, known
from anode.experiments.study import Results, mean_std, median_mean
from anode.experiments.toy.flows import FITTED


def counted(dim: int, *counts: int) -> tuple[str, ...]:
    """Return the runs with the given numbers of added dimensions."""
    return tuple(f"count-d{dim}-p{p}" for p in counts)


def as_many_are_enough(results: Results) -> Finding:
    """Claim 25."""
    losses = {d: results[f"count-d{d}-p{d}"].final_loss for d in COUNT_DIMS}
    parts = {f"d = {d}: fits": each < FITTED for d, each in losses.items()}
    return Finding.of_parts(parts, [(f"d = p = {d}, final loss", mean_std(each)) for d, each in losses.items()])


def many_hurt(results: Results) -> Finding:
    """Claim 26."""
    parts: dict[str, Votes] = {}
    numbers = []
    for d in COUNT_DIMS:
        few, many = (held_out(results[name]) for name in counted(d, d, 20))
        parts[f"d = {d}"] = many > few
        numbers.append((f"d = {d}: held-out loss, p = {d} and p = 20", f"{mean_std(few)} and {mean_std(many)}"))
    return Finding.of_parts(parts, numbers)


def more_are_cheaper(results: Results, costs: Costs = at_the_papers) -> Finding:
    """Claim 27."""
    parts: dict[str, Votes] = {}
    numbers = []
    for d in COUNT_DIMS:
        none, some = costs([results[name] for name in counted(d, 0, d)])
        parts[f"d = {d}"] = known(some < none, some, none)
        numbers.append((f"d = {d}: NFE, p = 0 and p = {d}", f"{median_mean(none)} and {median_mean(some)}"))
    return Finding.of_parts(parts, numbers)


CLAIMS = (
    Claim(
        25,
        "how-many",
        "As many added dimensions as the input has are enough (Zhang et al., 2019: p = d represents every "
        "homeomorphism).",
        f"the final loss on g with p = d is below {FITTED:.3f}, for d = 1, 2, 3 and 5",
        tuple(f"count-d{d}-p{d}" for d in COUNT_DIMS),
        as_many_are_enough,
    ),
    Claim(
        26,
        "how-many",
        "Too many added dimensions hurt (claim 18 says so about images).",
        "the held-out loss on g is higher with p = 20 than with p = d, for d = 1, 2, 3 and 5",
        tuple(name for d in COUNT_DIMS for name in counted(d, d, 20)),
        many_hurt,
    ),
    Claim(
        27,
        "how-many",
        "Added dimensions save evaluations.",
        "a solve at 1e-3 after training takes fewer evaluations with p = d than with p = 0, for d = 1, 2, 3 and 5",
        tuple(name for d in COUNT_DIMS for name in counted(d, 0, d)),
        more_are_cheaper,
        certified=Certified(
            "the same at the loosest tolerance certified for both", partial(more_are_cheaper, costs=at_shared)
        ),
    ),
)
