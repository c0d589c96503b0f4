"""What a claim is, and when it counts as held.

Every claim is turned into a yes or no for each repeat. If the claim were no better than a coin, so many repeats in
agreement would be as improbable as the sign test says; below 5 % the claim counts as held, and as not held if so many
against it are that improbable. A repeat that failed to train speaks against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from anode.experiments.study import Results
from anode.train.history import Array

Votes = NDArray[np.bool_]

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Finding:
    """What a claim was found to be.

    Attributes:
        votes: For each repeat, whether it agrees.
        numbers: What was measured, as (name, value).
    """

    votes: Votes
    numbers: list[tuple[str, str]]

    @classmethod
    def of_parts(cls, parts: Mapping[str, Votes], numbers: list[tuple[str, str]]) -> Finding:
        """That all parts of a claim are true; in how many repeats each of them is comes before the other numbers."""
        counts = [(name, f"true in {int(votes.sum())} of {len(votes)} repeats") for name, votes in parts.items()]
        return cls(np.all(list(parts.values()), axis=0), [*counts, *numbers])

    @property
    def verdict(self) -> str:
        """``"held"``, ``"not held"`` or ``"inconclusive"``."""
        agreeing, repeats = int(self.votes.sum()), len(self.votes)
        if at_least(agreeing, repeats) < SIGNIFICANCE:
            return "held"
        return "not held" if at_least(repeats - agreeing, repeats) < SIGNIFICANCE else "inconclusive"

    @property
    def test(self) -> str:
        """The test in words."""
        agreeing, repeats = int(self.votes.sum()), len(self.votes)
        against = 2 * agreeing < repeats
        p = at_least(repeats - agreeing if against else agreeing, repeats)
        side = "against it, " if against else ""
        return f"true in {agreeing} of {repeats} repeats (sign test, {side}p = {p:.2g})"


def at_least(agreeing: int, repeats: int) -> float:
    """The probability that so many coins of so many, or more, show heads."""
    return sum(comb(repeats, k) for k in range(agreeing, repeats + 1)) / 2**repeats


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        number: Its number in the specification.
        figure: The figure it is about.
        statement: What the paper says.
        criterion: What a repeat has to show to count as agreeing.
        runs: The runs it needs.
        check: Measures it.
        failing_is_part_of_it: Whether a repeat that failed to train may agree.
    """

    number: int
    figure: str
    statement: str
    criterion: str
    runs: tuple[str, ...]
    check: Callable[[Results], Finding]
    failing_is_part_of_it: bool = False

    def find(self, results: Results) -> Finding:
        """What comes of it; a repeat that failed to train in any of the runs speaks against, as a rule."""
        finding = self.check(results)
        if self.failing_is_part_of_it:
            return finding
        trained = np.all([results[name].trained for name in self.runs], axis=0)
        return replace(finding, votes=finding.votes & trained)


def spread(values: Array, digits: int = 3) -> str:
    """Mean and standard deviation over repeats; if not all have a value, in how many of them."""
    values = np.asarray(values, dtype=float)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"in none of {len(values)} repeats"
    some = "" if len(finite) == len(values) else f" in {len(finite)} of {len(values)} repeats"
    return f"{finite.mean():.{digits}g} ± {finite.std():.2g}{some}"
