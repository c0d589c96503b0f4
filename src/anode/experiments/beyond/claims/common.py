"""What the claims of several studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from anode.experiments.beyond.protocols import name_of
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.findings import Finding, Votes, known
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std, median_mean
from anode.train.record import Array

Costs = Callable[[Sequence[Result]], list[Array]]
"""Returns the evaluations of models that are compared with each other."""

CHEAP = ("heavy-ball", "node", "zeros", "second-order-learned")
"""The heavy ball, and the models whose evaluations are compared with its own."""

LIFTED = ("zeros", "hidden")
"""Augmentation by zeros, and by a learned map with a hidden layer."""

Part = tuple[dict[str, Votes], list[tuple[str, str]]]
"""Parts of a finding, and what was measured."""


def at_the_papers(compared: Sequence[Result]) -> list[Array]:
    """Return the evaluations of some models at the paper's tolerance."""
    return [cost_of(each) for each in compared]


def named(data: str, dim: int, kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the runs of some models on the same data."""
    return tuple(name_of(data, dim, kind) for kind in kinds)


def held_out(result: Result) -> Array:
    """Return the loss of each repeat on points that it was not trained on."""
    return result.measured["held-out"]


def learned_is_better(
    lifted: Sequence[Result], costs: Costs, loss: Callable[[Result], Array], name: str, before: str = ""
) -> Part:
    """Return the votes on whether :data:`LIFTED` with a hidden layer has a lower loss, and no more evaluations.

    Args:
        lifted: The results of :data:`LIFTED`.
        costs: Measures the evaluations.
        loss: Returns the loss of each repeat.
        name: The name of this loss.
        before: The data, to write before all names.
    """
    zeros, learned = map(loss, lifted)
    few, more = costs(lifted)
    parts = {f"{before}lower {name}": learned < zeros, f"{before}no more evaluations": known(more <= few, more, few)}
    numbers = [
        (f"{before}{name}, zeros and learned", f"{mean_std(zeros)} and {mean_std(learned)}"),
        (f"{before}NFE, zeros and learned", f"{median_mean(few)} and {median_mean(more)}"),
    ]
    return parts, numbers


def heavy_balls_are_cheap(cheap: Sequence[Result], costs: Costs, before: str = "") -> Part:
    """Return the votes on whether the heavy ball takes fewer evaluations than each of the others.

    Args:
        cheap: The results of :data:`CHEAP`.
        costs: Measures the evaluations.
        before: The data, to write before all names.
    """
    found = dict(zip(CHEAP, costs(cheap), strict=True))
    ball = found["heavy-ball"]
    parts = {f"{before}fewer than {LABELS[kind]}": known(ball < found[kind], ball, found[kind]) for kind in CHEAP[1:]}
    return parts, [(f"{before}NFE, {LABELS[kind]}", median_mean(each)) for kind, each in found.items()]


def below(results: Results, runs: Mapping[str, str], level: float, value: Callable[[Result], Array]) -> Finding:
    """Return the finding that a value is below a level for all runs but the first.

    Args:
        results: All results.
        runs: The names of the runs, by label.
        level: The level.
        value: Returns the value of each repeat.
    """
    values = {label: value(results[name]) for label, name in runs.items()}
    first = next(iter(values))
    parts = {f"{label}: below": each < level for label, each in values.items() if label != first}
    parts[f"{first}: not below"] = ~(values[first] < level)
    return Finding.of_parts(parts, [(label, mean_std(each)) for label, each in values.items()])
