"""What the results file says of claims and failures."""

from __future__ import annotations

from typing import Any

from anode.experiments.findings import Claim, Finding
from anode.experiments.runs import Result
from anode.experiments.study import Results


def failures_of(name: str, result: Result) -> list[dict[str, Any]]:
    """What failed in a run, once for each repeat and reason: when it first did, and how often."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for failure in result.history.failures:
        first = {
            "run": name,
            "repeat": failure.member,
            "reason": failure.reason,
            "first": failure.iteration,
            "times": 0,
        }
        found.setdefault((failure.member, failure.reason), first)["times"] += 1
    return list(found.values())


def checked_claim(claim: Claim, results: Results) -> dict[str, Any]:
    """A claim with what was found, for the results file."""
    content = {
        "number": claim.number,
        "figure": claim.figure,
        "statement": claim.statement,
        **judged(claim.find(results), claim.criterion),
    }
    if claim.certified is not None:
        content["certified"] = judged(claim.find_certified(results), claim.certified.criterion)
    return content


def judged(finding: Finding | None, criterion: str) -> dict[str, Any]:
    """A verdict and what it rests on; without a finding, that there are no certificates."""
    if finding is None:
        return {"criterion": criterion, "verdict": "not certified", "test": "no certificates are stored", "numbers": []}
    return {
        "criterion": criterion,
        "verdict": finding.verdict,
        "test": finding.test,
        "numbers": [{"name": name, "value": value} for name, value in finding.numbers],
    }
