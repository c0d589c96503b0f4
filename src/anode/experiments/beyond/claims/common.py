"""What the claims of several studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from anode.experiments.beyond.protocols import name_of
from anode.experiments.beyond.runs import cost_of
from anode.experiments.findings import Finding
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std
from anode.train.record import Array

Costs = Callable[[Sequence[Result]], list[Array]]
"""Returns the evaluations of some models that are compared with each other."""

CHEAP = ("heavy-ball", "node", "zeros", "second-order-learned")
"""The heavy ball, and the models whose evaluations are compared with its own."""


def at_the_papers(compared: Sequence[Result]) -> list[Array]:
    """Return the evaluations of some models at the paper's tolerance."""
    return [cost_of(each) for each in compared]


def named(data: str, dim: int, kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the runs of some models on the same data."""
    return tuple(name_of(data, dim, kind) for kind in kinds)


def held_out(result: Result) -> Array:
    """Return the loss of each repeat on points that it was not trained on."""
    return result.measured["held-out"]


def below(results: Results, runs: Mapping[str, str], level: float, value: Callable[[Result], Array]) -> Finding:
    """That a value of all runs but the first, by what they are called, is below a level, and that of the first not."""
    values = {label: value(results[name]) for label, name in runs.items()}
    first = next(iter(values))
    parts = {f"{label}: below": each < level for label, each in values.items() if label != first}
    parts[f"{first}: not below"] = ~(values[first] < level)
    return Finding.of_parts(parts, [(label, mean_std(each)) for label, each in values.items()])
