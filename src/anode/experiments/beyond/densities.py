"""Runs of density flows, plain and augmented, on points in the plane and on tables, as one stack."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anode.data import densities
from anode.experiments.beyond.points import APART
from anode.experiments.beyond.runs import CERTIFIED_POINTS, TIGHTEST, condense
from anode.experiments.certificates import PAPER_TOLERANCE, Certificates, certificates
from anode.experiments.runs import HERE, SOLVER, Place, Result
from anode.experiments.stacked import StackedRun
from anode.models.density import DensityFlow
from anode.ode.solution import Status

TABLES = {"iris": 4, "wine": 13}
"""Tables of scikit-learn, and the size of their rows."""

POINTS, OTHERS = 1000, 500
"""Number of training points in the plane, and of test points."""

DRAWS = 20
"""Number of draws of the added coordinates for the bound on a log-probability."""

ACCURATE = {"rtol": 1e-5, "atol": 1e-5}
"""The tolerance at which log-probabilities are computed."""


@dataclass(frozen=True)
class DensityRun(StackedRun):
    """A run of a density flow.

    Attributes:
        data: One of ``anode.densities.DENSITIES``, or of :data:`TABLES`.
        augment: Number of normal coordinates to add; 0 for a plain continuous normalizing flow.
    """

    augment: int = 0
    epochs: int = 100
    lr: float = 3e-3
    kept: bool = True

    @property
    def label(self) -> str:
        return "augmented CNF" if self.augment else "CNF"

    @property
    def dim(self) -> int:
        """Size of a point."""
        return TABLES.get(self.data, 2)

    @property
    def cost(self) -> float:
        """These runs take longest, because the trace needs derivatives and the tolerances are tight."""
        return 1e9 * self.dim

    @property
    def trace(self) -> str:
        """How the trace is computed in training; it is estimated in many dimensions."""
        return "exact" if self.dim <= 4 else "hutchinson"

    def described(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "data": self.data.replace("_", " "),
            "model": self.label + (f", p = {self.augment}" if self.augment else ""),
            "network": f"2 x {self.hidden} hidden units, tanh",
            "trace in training": self.trace,
            "solver": SOLVER,
            **self.training(),
        }

    def build(self) -> DensityFlow:
        accuracy: dict[str, Any] = {"rtol": PAPER_TOLERANCE, "atol": PAPER_TOLERANCE}
        return DensityFlow(self.dim, self.hidden, layers=2, augment=self.augment, trace=self.trace, **accuracy)

    def datasets(self) -> tuple[list[Tensor], None]:
        return [drawn(self.data, seed)[0] for seed in self.seeds], None

    def others(self) -> Tensor:
        """Return the test points of each repeat, [repeats, points, dim]."""
        return torch.stack([drawn(self.data, seed)[1] for seed in self.seeds])

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        model = deepcopy(result.model).double()
        model.trace = "exact"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            points = self.others()[:, :CERTIFIED_POINTS].double()
            return {"last": certificates([model.flow], [points], TIGHTEST)}

    @torch.no_grad()
    def finish(self, result: Result) -> None:
        """Measure the log-likelihood of the test points; NaN for a repeat with a point that has none."""
        model = deepcopy(result.model)
        model.trace = "exact"
        draws = DRAWS if self.augment else 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            outcome = model.run(self.others().repeat(1, draws, 1), **ACCURATE)
        bounds = outcome.prediction.unflatten(-1, (draws, -1)).logsumexp(-2) - math.log(draws)
        assert outcome.solution is not None, "it is a flow"
        means = bounds.mean(1).masked_fill(outcome.solution.status != Status.SUCCESS, torch.nan)
        result.measured = {"log-likelihood": means.where(means.isfinite(), torch.nan).double().numpy(force=True)}
        condense(result)


def drawn(data: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return training and test points. Each seed has new points, or another split of a table."""
    if data not in TABLES:
        return densities.load(data, points=POINTS, seed=seed), densities.load(data, points=OTHERS, seed=seed + APART)
    rows = _table(data)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    some, rest = rows[order[: len(rows) * 2 // 3]], rows[order[len(rows) * 2 // 3 :]]
    mean, std = some.mean(0), some.std(0)
    return ((some - mean) / std).float(), ((rest - mean) / std).float()


@cache
def _table(name: str) -> Tensor:
    """Return the rows of a table."""
    from sklearn import datasets

    return torch.from_numpy({"iris": datasets.load_iris, "wine": datasets.load_wine}[name]().data)
