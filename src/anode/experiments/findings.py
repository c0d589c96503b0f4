"""What a claim is, and when it counts as held.

Every claim is turned into a yes or no for each repeat. If the claim were no better than a coin, so many repeats in
agreement would be as improbable as the sign test says; below 5 % the claim counts as held. It counts as not held if so
many against it are that improbable; of a claim with several parts, so many against one of them, because several coins
seldom show heads together. A repeat that failed to train speaks against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import comb

import numpy as np
from numpy.typing import NDArray

from anode.experiments.study import Results

Votes = NDArray[np.bool_]

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Finding:
    """What a claim was found to be.

    Attributes:
        votes: For each repeat, whether it agrees.
        numbers: What was measured, as (name, value).
        parts: The votes on each part of the claim, if it has several.
    """

    votes: Votes
    numbers: list[tuple[str, str]]
    parts: Mapping[str, Votes] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, parts: Mapping[str, Votes], numbers: list[tuple[str, str]]) -> Finding:
        """That all parts of a claim are true; in how many repeats each of them is comes before the other numbers."""
        counts = [(name, f"true in {int(votes.sum())} of {len(votes)} repeats") for name, votes in parts.items()]
        return cls(np.all(list(parts.values()), axis=0), [*counts, *numbers], parts)

    def among(self, repeats: Votes) -> Finding:
        """The same, with all but some repeats speaking against."""
        return replace(self, votes=self.votes & repeats, parts={n: votes & repeats for n, votes in self.parts.items()})

    @property
    def weakest(self) -> tuple[str, Votes]:
        """The part that the most repeats speak against."""
        return min((self.parts or {"it": self.votes}).items(), key=lambda part: part[1].sum())

    @property
    def verdict(self) -> str:
        """``"held"``, ``"not held"`` or ``"inconclusive"``."""
        if by_chance(self.votes) < SIGNIFICANCE:
            return "held"
        return "not held" if by_chance(~self.weakest[1]) < SIGNIFICANCE else "inconclusive"

    @property
    def test(self) -> str:
        """The test in words."""
        agreeing, repeats = int(self.votes.sum()), len(self.votes)
        name, votes = self.weakest
        against = 2 * agreeing < repeats
        p = by_chance(~votes if against else self.votes)
        side = f"against {name if name == 'it' else repr(name)}, " if against else ""
        told = f"true in {agreeing} of {repeats} repeats (sign test, {side}p = {p:.2g})"
        return f"{told}; {needed(repeats)}" if self.verdict == "inconclusive" else told


def by_chance(votes: Votes) -> float:
    """The probability that of so many coins as many show heads as there are yeses, or more."""
    agreeing, repeats = int(votes.sum()), len(votes)
    return sum(comb(repeats, k) for k in range(agreeing, repeats + 1)) / 2**repeats


def needed(repeats: int) -> str:
    """How many repeats have to agree for the sign test to decide, in words."""
    enough = [k for k in range(repeats + 1) if by_chance(np.arange(repeats) < k) < SIGNIFICANCE]
    if not enough:
        least = next(n for n in count(1) if 2.0**-n < SIGNIFICANCE)
        return f"a verdict takes at least {least} repeats"
    return f"a verdict takes {enough[0]} of {repeats} repeats for the claim, or against it or one of its parts"


@dataclass(frozen=True)
class Certified:
    """How a claim about evaluations is judged at the loosest tolerance that is certified for all models compared.

    Attributes:
        criterion: What a repeat has to show to count as agreeing.
        check: Measures it, from results that have certificates.
    """

    criterion: str
    check: Callable[[Results], Finding]


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
        certified: How it is judged at a certified tolerance; ``None`` if it does not depend on the tolerance.
    """

    number: int
    figure: str
    statement: str
    criterion: str
    runs: tuple[str, ...]
    check: Callable[[Results], Finding]
    failing_is_part_of_it: bool = False
    certified: Certified | None = None

    def find(self, results: Results) -> Finding:
        """What comes of it; a repeat that failed to train in any of the runs speaks against, as a rule."""
        return self._counted(self.check(results), results)

    def find_certified(self, results: Results) -> Finding | None:
        """What comes of it at a certified tolerance; ``None`` if a run has no certificates."""
        if self.certified is None or not all(results[name].certificates for name in self.runs):
            return None
        return self._counted(self.certified.check(results), results)

    def _counted(self, finding: Finding, results: Results) -> Finding:
        if self.failing_is_part_of_it:
            return finding
        return finding.among(np.all([results[name].trained for name in self.runs], axis=0))
