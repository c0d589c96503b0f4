"""Every training run beyond the paper, as data."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from anode.data.densities import DENSITIES
from anode.experiments.beyond.densities import TABLES, DensityRun
from anode.experiments.beyond.rates import RATES
from anode.experiments.beyond.runs import ADDING, LABELS, FamilyRun
from anode.experiments.beyond.variants import NoisyRun, RegularisedRun
from anode.experiments.beyond.widths import equal_widths
from anode.experiments.stacked import StackedRun

NOTE = (
    "points and tables, no images. Each model's learning rate is the best of 1e-3, 3e-3, 1e-2, 3e-2 and 1e-1 on g in "
    "d = 2 (the swap, x to -x in d = 2, the rings) from five seeds that no repeat has. Models that are compared have "
    "equally many parameters, to 2 %."
)
"""What all of it has in common, for the report."""

G_DIMS, PARITY_DIMS = (1, 2, 5, 10), tuple(range(1, 11))
PARITY_KINDS = ("node", "zeros", "second-order", "second-order-learned")
COUNT_DIMS, COUNTS = (1, 2, 3, 5), (0, 1, 2, 3, 5, 10, 20)
"""How many dimensions are added to data of which dimensions."""

DRAWN = ("node", "zeros")
"""Whose flows are drawn in d = 1, where both can be drawn as they are."""

NOISES = (0, 0.1, 0.3, 1, 3)
"""Standard deviations of noise; 0 is Euler's method alone."""
NOISE_DIMS = (1, 2)

STRENGTHS = {
    "kinetic": (0.01, 0.1, 1.0),
    "jacobian": (0.01, 0.1, 1.0),
    "steer": (0.25, 0.5),
    "errors": (10.0, 100.0),
    "decay": (1e-4, 1e-3),
}
"""How strongly each regulariser is applied."""
REGULARISED = ("node", "zeros")

FLOWS = {"cnf": 0, "augmented": 2}
"""Normal coordinates that are added to a density flow."""


def name_of(data: str, dim: int, kind: str) -> str:
    """What a run of the family is called."""
    return f"{data}-{kind}" if data == "swap" else f"{data}-d{dim}-{kind}"


def regularised(kind: str, regulariser: str, strength: float) -> str:
    """What a run with a regulariser is called."""
    return f"regularised-{kind}-{regulariser}-{strength:g}"


def comparable(runs: Mapping[str, Any]) -> list[Any]:
    """Runs that are compared with each other, with widths that give them equally many parameters."""
    widths = equal_widths({name: partial(_of_width, run) for name, run in runs.items()})
    return [replace(run, hidden=widths[name]) for name, run in runs.items()]


def _of_width(run: Any, width: int) -> Any:
    return replace(run, hidden=width).build()


def _family(data: str, dim: int, kinds: Iterable[str], kept: Container[str] = (), **settings: Any) -> list[FamilyRun]:
    """A run for each kind; those to which dimensions are added get as many as there are, as the others have."""
    runs = {
        kind: FamilyRun(
            name_of(data, dim, kind),
            data,
            dim,
            kind,
            dim if kind in ADDING else 0,
            lr=rate(data, kind),
            kept=kind in kept,
            **settings,
        )
        for kind in kinds
    }
    return comparable(runs)


def rate(data: str, kind: str) -> float:
    """The learning rate that the search has found for a model on such data."""
    return RATES[f"{'g' if data == 'nested' else data}-{kind}"]


def _counts(dim: int) -> list[FamilyRun]:
    """The paper's augmentation with more and more dimensions."""
    runs = {
        f"count-d{dim}-p{p}": FamilyRun(f"count-d{dim}-p{p}", "g", dim, kind, p, lr=rate("g", kind), examined=True)
        for p, kind in ((p, "zeros" if p else "node") for p in COUNTS)
    }
    return comparable(runs)


def _noisy(dim: int) -> list[NoisyRun]:
    """A NODE with more and more noise: all have the same parameters."""
    lr = rate("g", "node")
    return [NoisyRun(f"noise-d{dim}-{scale:g}", "g", dim, "node", noise=scale, lr=lr) for scale in NOISES]


def _regularised(plain: FamilyRun) -> list[RegularisedRun]:
    """A run of the family with every regulariser."""
    settings = {name: getattr(plain, name) for name in ("data", "dim", "kind", "augment", "hidden", "epochs", "lr")}
    return [
        RegularisedRun(regularised(plain.kind, name, strength), **settings, regulariser=name, strength=strength)
        for name, strengths in STRENGTHS.items()
        for strength in strengths
    ]


def _densities(data: str) -> list[DensityRun]:
    settings = {"batch_size": 50} if data in TABLES else {}
    runs = {
        kind: DensityRun(
            f"density-{data}-{kind}", data, p, lr=rate("density", kind), kept=data in DENSITIES, **settings
        )
        for kind, p in FLOWS.items()
    }
    return comparable(runs)


@cache
def all_runs() -> dict[str, StackedRun]:
    """All runs by name."""
    found: list[StackedRun] = []
    for dim in G_DIMS:
        found += _family("g", dim, LABELS, examined=True, kept=DRAWN if dim == 1 else ())
    found += _family("nested", 2, LABELS, examined=True)
    found += _family("swap", 1, LABELS, epochs=500, batch_size=2)
    for dim in PARITY_DIMS:
        found += _family("parity", dim, PARITY_KINDS, epochs=600, batch_size=50)
    for dim in COUNT_DIMS:
        found += _counts(dim)
    for dim in NOISE_DIMS:
        found += _noisy(dim)
    for run in [run for run in found if run.name in [name_of("g", 2, kind) for kind in REGULARISED]]:
        found += _regularised(run)  # type: ignore[arg-type]
    for data in (*DENSITIES, *TABLES):
        found += _densities(data)
    return {run.name: run for run in found}


def protocol(name: str, repeats: int, seed: int) -> StackedRun:
    """A run with so many repeats, from this seed on."""
    return replace(all_runs()[name], repeats=repeats, seed=seed)
