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
    "The data are points and tables, no images. The learning rate of each model is the best of 1e-3, 3e-3, 1e-2, 3e-2 "
    "and 1e-1 with five seeds that no repeat uses: on g in d = 2, or for maps and densities on the swap, on x to -x "
    "in d = 2 or on the rings. Models that are compared have the same number of parameters, to within 2 %."
)
"""What all runs have in common, for the report."""

G_DIMS, PARITY_DIMS = (1, 2, 5, 10), tuple(range(1, 11))
PARITY_KINDS = ("node", "zeros", "second-order", "second-order-learned")
COUNT_DIMS, COUNTS = (1, 2, 3, 5), (0, 1, 2, 3, 5, 10, 20)
"""The dimensions of g in the study of p, and the numbers of dimensions that are added to each."""

DRAWN = ("node", "zeros")
"""The models whose flows are drawn, in d = 1, where no projection is needed."""

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
"""The strengths at which each regulariser is applied."""
REGULARISED = ("node", "zeros")

FLOWS = {"cnf": 0, "augmented": 2}
"""The kinds of density flow, and how many normal coordinates each adds."""


def name_of(data: str, dim: int, kind: str) -> str:
    """Return the name of a run of the family."""
    return f"{data}-{kind}" if data == "swap" else f"{data}-d{dim}-{kind}"


def regularised(kind: str, regulariser: str, strength: float) -> str:
    """Return the name of a run with a regulariser."""
    return f"regularised-{kind}-{regulariser}-{strength:g}"


def comparable(runs: Mapping[str, Any]) -> list[Any]:
    """Return runs with widths that give all of them the same number of parameters."""
    widths = equal_widths({name: partial(_of_width, run) for name, run in runs.items()})
    return [replace(run, hidden=widths[name]) for name, run in runs.items()]


def _of_width(run: Any, width: int) -> Any:
    return replace(run, hidden=width).build()


def _family(data: str, dim: int, kinds: Iterable[str], kept: Container[str] = (), **settings: Any) -> list[FamilyRun]:
    """Return one run per kind. Kinds that take added dimensions get as many as the data has."""
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
    """Return the learning rate that the search found for a model on some data."""
    return RATES[f"{'g' if data == 'nested' else data}-{kind}"]


def _counts(dim: int) -> list[FamilyRun]:
    """Return runs of the paper's augmentation with more and more dimensions."""
    runs = {
        f"count-d{dim}-p{p}": FamilyRun(f"count-d{dim}-p{p}", "g", dim, kind, p, lr=rate("g", kind), examined=True)
        for p, kind in ((p, "zeros" if p else "node") for p in COUNTS)
    }
    return comparable(runs)


def _noisy(dim: int) -> list[NoisyRun]:
    """Return runs of a NODE with more and more noise."""
    lr = rate("g", "node")
    return [NoisyRun(f"noise-d{dim}-{scale:g}", "g", dim, "node", noise=scale, lr=lr) for scale in NOISES]


def _regularised(plain: FamilyRun) -> list[RegularisedRun]:
    """Return runs of a member of the family with every regulariser."""
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
    """Return all runs by name."""
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
    """Return a run with the given number of repeats and first seed."""
    return replace(all_runs()[name], repeats=repeats, seed=seed)
