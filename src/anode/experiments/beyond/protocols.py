"""Every training run beyond the paper, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from anode.data.densities import DENSITIES
from anode.experiments.beyond.densities import TABLES, DensityRun
from anode.experiments.beyond.rates import RATES
from anode.experiments.beyond.runs import ADDING, LABELS, FamilyRun
from anode.experiments.beyond.widths import equal_widths
from anode.experiments.stacked import StackedRun

G_DIMS, PARITY_DIMS = (1, 2, 5, 10), tuple(range(1, 11))
PARITY_KINDS = ("node", "zeros", "second-order", "second-order-learned")
COUNT_DIMS, COUNTS = (1, 2, 3, 5), (0, 1, 2, 3, 5, 10, 20)
"""How many dimensions are added to data of which dimensions."""

FLOWS = {"cnf": 0, "augmented": 2}
"""Normal coordinates that are added to a density flow."""


def name_of(data: str, dim: int, kind: str) -> str:
    """What a run of the family is called."""
    return f"{data}-{kind}" if data == "swap" else f"{data}-d{dim}-{kind}"


def comparable(runs: Mapping[str, Any]) -> list[Any]:
    """Runs that are compared with each other, with widths that give them equally many parameters."""
    widths = equal_widths({name: partial(_of_width, run) for name, run in runs.items()})
    return [replace(run, hidden=widths[name]) for name, run in runs.items()]


def _of_width(run: Any, width: int) -> Any:
    return replace(run, hidden=width).build()


def _family(data: str, dim: int, kinds: Mapping[str, Any], **settings: Any) -> list[FamilyRun]:
    """A run for each kind; those to which dimensions are added get as many as there are, as the others have."""
    runs = {
        kind: FamilyRun(
            name_of(data, dim, kind), data, dim, kind, dim if kind in ADDING else 0, lr=rate(data, kind), **settings
        )
        for kind in kinds
    }
    return comparable(runs)


def rate(data: str, kind: str) -> float:
    """The learning rate that the search has found for a model on such data."""
    return RATES.get(f"{'g' if data == 'nested' else data}-{kind}", 3e-3)


def _counts(dim: int) -> list[FamilyRun]:
    """The paper's augmentation with more and more dimensions."""
    runs = {
        f"count-d{dim}-p{p}": FamilyRun(
            f"count-d{dim}-p{p}", "g", dim, "zeros" if p else "node", p, lr=rate("g", "zeros"), examined=True
        )
        for p in COUNTS
    }
    return comparable(runs)


def _densities(data: str) -> list[DensityRun]:
    settings = {"epochs": 100, "batch_size": 64} if data in TABLES else {}
    runs = {
        kind: DensityRun(f"density-{data}-{kind}", data, p, lr=rate("density", kind), **settings)
        for kind, p in FLOWS.items()
    }
    return comparable(runs)


@cache
def all_runs() -> dict[str, StackedRun]:
    """All runs by name."""
    maps = {"epochs": 600, "batch_size": 50}
    found: list[StackedRun] = []
    for dim in G_DIMS:
        found += _family("g", dim, LABELS, examined=True, kept=dim == 1)
    found += _family("nested", 2, LABELS, examined=True)
    found += _family("swap", 1, LABELS, epochs=500, batch_size=2)
    for dim in PARITY_DIMS:
        found += _family("parity", dim, dict.fromkeys(PARITY_KINDS), **maps)
    for dim in COUNT_DIMS:
        found += _counts(dim)
    for data in (*DENSITIES, *TABLES):
        found += _densities(data)
    return {run.name: run for run in found}


def protocol(name: str, repeats: int, seed: int) -> StackedRun:
    """A run with so many repeats, from this seed on."""
    return replace(all_runs()[name], repeats=repeats, seed=seed)  # type: ignore[type-var]
