"""What a claim is, and how the repeats decide its verdict.

Each repeat votes on a claim: it agrees or it does not. A sign test gives the probability that at least as many repeats
agree by chance, as in coin flips. If this is below 5 %, the claim is held. If the same test rejects the claim, the
claim is not held. Otherwise the verdict is inconclusive.

A repeat agrees with a claim of several parts if all parts are true. By chance, this is rare. Therefore such a claim is
not held only if the test rejects one of its parts. A repeat that failed to train counts against the claim.

If evaluations could not be compared, such as at a certified tolerance that does not exist, the repeat does not vote. It
still counts as one of the coin flips, so a verdict stands whatever such repeats would have said. A loss or an accuracy
that could not be measured counts against the claim.

The level is that of one claim, or of one part. With many claims or parts, some are rejected by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anode.experiments.study import Results

Votes = NDArray[Any]
"""One value per repeat: 1 (or ``True``) if it agrees, 0 if it disagrees, NaN if it does not vote."""

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Finding:
    """The votes on a claim and the numbers behind them.

    Attributes:
        votes: The vote of each repeat.
        measured: What was measured, as (name, value).
        parts: The votes on each part of the claim, if it has several.
    """

    votes: Votes
    measured: list[tuple[str, str]]
    parts: Mapping[str, Votes] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, parts: Mapping[str, Votes], measured: list[tuple[str, str]]) -> Finding:
        """Return the finding that all parts are true."""
        return cls(all_of(list(parts.values())), measured, parts)

    def among(self, repeats: NDArray[np.bool_]) -> Finding:
        """Return the same finding, in which all repeats but the given ones count against the claim."""
        parts = {name: np.where(repeats, votes, 0) for name, votes in self.parts.items()}
        return replace(self, votes=np.where(repeats, self.votes, 0), parts=parts)

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """How many repeats agree with each part, and what was measured, as (name, value)."""
        return [*((name, agreed(votes)) for name, votes in self.parts.items()), *self.measured]

    @property
    def weakest(self) -> tuple[str, Votes]:
        """The part that the most repeats disagree with."""
        return max((self.parts or {"it": self.votes}).items(), key=lambda part: (part[1] == 0).sum())

    @property
    def verdict(self) -> str:
        """``"held"``, ``"not held"`` or ``"inconclusive"``."""
        if by_chance(self.votes == 1) < SIGNIFICANCE:
            return "held"
        return "not held" if by_chance(self.weakest[1] == 0) < SIGNIFICANCE else "inconclusive"

    @property
    def test(self) -> str:
        """The outcome of the sign test in words."""
        name, votes = self.weakest
        against = 2 * int((self.votes == 1).sum()) < len(self.votes)
        p = by_chance(votes == 0 if against else self.votes == 1)
        side = f"against {name if name == 'it' else repr(name)}, " if against else ""
        outcome = f"{agreed(self.votes)} (sign test, {side}p = {p:.2g})"
        return f"{outcome}; {needed(len(votes))}" if self.verdict == "inconclusive" else outcome


def known(holds: Votes, *values: NDArray[Any]) -> Votes:
    """Return the votes of the repeats in which all values were measured; the others, which have a NaN, do not vote."""
    return np.where(np.isnan(values).any(0), np.nan, holds)


def all_of(votes: Sequence[Votes]) -> Votes:
    """Return whether all of some votes agree; NaN if those that are unknown decide it."""
    found = np.array([np.asarray(each, dtype=float) for each in votes])
    return np.where((found == 0).any(0), 0.0, found.min(0))


def any_of(votes: Sequence[Votes]) -> Votes:
    """Return whether any of some votes agrees; NaN if those that are unknown decide it."""
    found: Votes = 1 - all_of([1 - np.asarray(each, dtype=float) for each in votes])
    return found


def agreed(votes: Votes) -> str:
    """Return in words how many repeats agree, and how many do not vote."""
    unknown = int(np.isnan(np.asarray(votes, dtype=float)).sum())
    found = f"true in {int((votes == 1).sum())} of {len(votes)} repeats"
    return f"{found}, unknown in {unknown}" if unknown else found


def by_chance(alike: NDArray[np.bool_]) -> float:
    """Return the probability that at least as many of the repeats are alike by chance."""
    agreeing, repeats = int(alike.sum()), len(alike)
    return sum(comb(repeats, k) for k in range(agreeing, repeats + 1)) / 2**repeats


def needed(repeats: int) -> str:
    """Return in words how many repeats must agree for a verdict."""
    enough = [k for k in range(repeats + 1) if by_chance(np.arange(repeats) < k) < SIGNIFICANCE]
    if not enough:
        least = next(n for n in count(1) if 2.0**-n < SIGNIFICANCE)
        return f"a verdict needs at least {least} repeats"
    return f"a verdict needs {enough[0]} of {repeats} repeats for the claim, or against it or one of its parts"


@dataclass(frozen=True)
class Certified:
    """How a claim about evaluations is judged at the loosest tolerance certified for all models compared.

    Attributes:
        criterion: When a repeat agrees.
        check: Returns the finding, from results that have certificates.
    """

    criterion: str
    check: Callable[[Results], Finding]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        number: Its number in the specification.
        figure: The id of its figure.
        statement: What the paper claims.
        criterion: When a repeat agrees.
        runs: The runs it needs.
        check: Returns the finding.
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
        """Return the finding. A repeat that failed in any run counts against it, unless the claim is about failing."""
        return self._counted(self.check(results), results)

    def find_certified(self, results: Results) -> Finding | None:
        """Return the finding at a certified tolerance; ``None`` if a run has no certificates."""
        if self.certified is None or not all(results[name].certificates for name in self.runs):
            return None
        return self._counted(self.certified.check(results), results)

    def _counted(self, finding: Finding, results: Results) -> Finding:
        if self.failing_is_part_of_it:
            return finding
        return finding.among(np.all([results[name].trained for name in self.runs], axis=0))
