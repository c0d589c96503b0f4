"""The entries of the results file about claims and failures."""

from __future__ import annotations

from typing import Any

from anode.experiments.findings import Claim, Finding
from anode.experiments.runs import Result
from anode.experiments.study import Results


def failures_of(name: str, result: Result) -> list[dict[str, Any]]:
    """Return the failures of a run: for each repeat and reason, the first iteration and the count."""
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
    """Return a claim and its verdicts, for the results file."""
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
    """Return a verdict with its test and numbers; "not certified" if there is no finding."""
    if finding is None:
        return {"criterion": criterion, "verdict": "not certified", "test": "no certificates are stored", "numbers": []}
    return {
        "criterion": criterion,
        "verdict": finding.verdict,
        "test": finding.test,
        "numbers": [{"name": name, "value": value} for name, value in finding.numbers],
    }
