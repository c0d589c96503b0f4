"""Print the tables of ``docs/beyond.md``: ``python -m anode.experiments.beyond.printed results/beyond``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anode.experiments.beyond.protocols import name_of, protocol
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies.family import DATA, STUDY
from anode.experiments.beyond.studies.tables import median
from anode.experiments.runs import Result, load
from anode.experiments.study import Results
from anode.storage import read_json


def family(results: Results) -> Iterator[str]:
    """Yield the rows of the table of the family: a row per model, and a column per dataset."""
    yield f"| loss; NFE at 1e-3, certified | {' | '.join(DATA.values())} |"
    yield "|---" * (1 + len(DATA)) + "|"
    for kind, label in LABELS.items():
        yield f"| {label} | {' | '.join(cell(results[name_of(data, dim, kind)]) for data, dim in DATA)} |"


def cell(result: Result) -> str:
    """Return medians: the held-out loss, the NFE at 1e-3, and the NFE at each repeat's own certified tolerance."""
    own = median(result.certificates["last"].own)
    return f"{median(result.measured['held-out']):.1e}; {median(cost_of(result)):.0f}, {own:.0f}"


def claims(written: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of the table of claims, from the file of all results."""
    yield "| claim | at 1e-3 | certified |"
    yield "|---|---|---|"
    for claim in written["claims"]:
        certified = f" {verdict(claim['certified'])}" if "certified" in claim else ""
        yield f"| {claim['number']}: {claim['statement']} | {verdict(claim)} |{certified} |"


def verdict(judged: Mapping[str, Any]) -> str:
    """Return a verdict and how many repeats agree."""
    return f"{judged['verdict']}, {judged['test'].removeprefix('true in ').partition(' repeats')[0]}"


def main(folder: Path) -> None:
    """Print both tables."""
    written = read_json(folder / "anode-results.json")
    found = {name: load(protocol(name, written["repeats"], written["seed"]), folder / "runs") for name in STUDY.runs}
    missing = [name for name, result in found.items() if result is None]
    if missing:
        raise ValueError(f"{folder}: has no results of this version's {', '.join(missing)}")
    print(*family({name: result for name, result in found.items() if result}), "", *claims(written), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
