"""Runs of the family on points, as one stack, with measurements and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.experiments.beyond.measures import measures
from anode.experiments.beyond.points import APART, MAPS, POINTS, Points
from anode.experiments.certificates import PAPER_TOLERANCE, Certificates, certificates, shared
from anode.experiments.runs import HERE, SOLVER, Place, Result
from anode.experiments.stacked import StackedRun
from anode.models import family
from anode.models.layers import First
from anode.models.model import Outcome
from anode.models.nets import NeuralODE
from anode.ode.solution import Status
from anode.train.history import History
from anode.train.losses import LOSSES
from anode.train.record import SERIES, SHARED, Array

LABELS = {
    "node": "NODE",
    "zeros": "zeros (ANODE)",
    "constant": "constant",
    "linear": "linear",
    "hidden": "hidden layer",
    "control": "data control",
    "second-order": "second order",
    "second-order-learned": "second order, learned start",
    "heavy-ball": "heavy ball",
    "heavy-ball-generalised": "generalised heavy ball",
}
"""The family in words; ``"node"`` is the plain neural ODE."""

ADDING = ("zeros", "constant", "linear", "hidden")
"""The kinds that take added dimensions. The others double the state by themselves."""

CERTIFIED_POINTS, TIGHTEST = 50, 1e-7
"""Number of points to certify a tolerance with, and the tightest tolerance to try."""


@dataclass(frozen=True)
class FamilyRun(StackedRun):
    """A run of a model of the family.

    Attributes:
        data: One of :data:`anode.experiments.beyond.points.POINTS`.
        dim: Its dimension.
        kind: One of :data:`LABELS`.
        examined: Whether to measure the trained flows, see :mod:`anode.experiments.beyond.measures`.
    """

    dim: int
    kind: str
    augment: int = 0
    epochs: int = 30
    lr: float = 3e-3
    examined: bool = False
    kept: bool = False

    @property
    def label(self) -> str:
        return LABELS[self.kind]

    @property
    def cost(self) -> float:
        """The number of iterations times the size of a state, roughly."""
        return self.repeats * self.epochs * self.iterations * (self.dim + 10) * (1 if self.kind == "zeros" else 3)

    @property
    def iterations(self) -> int:
        """Number of iterations per epoch."""
        return -(-len(self.points(self.seed)[0]) // self.batch_size)

    @property
    def loss(self) -> str:
        """The paper's loss for classes; the mean squared error for maps."""
        return "mse" if self.data in MAPS else "huber"

    def described(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "data": self.data if self.data == "swap" else f"{self.data}, d = {self.dim}",
            "model": self.label + (f", p = {self.augment}" if self.augment else ""),
            "network": f"2 x {self.hidden} hidden units",
            "solver": SOLVER,
            "loss": self.loss,
            **self.training(),
        }

    def build(self) -> NeuralODE:
        name, maps = "zeros" if self.kind == "node" else self.kind, self.data in MAPS
        model = family.build(name, self.dim, 1, augment=self.augment, hidden=self.hidden)
        if not maps:
            return model
        return NeuralODE(field=model.flow.field, augment=model.flow.augment, head=First(self.dim))

    def points(self, seed: int) -> Points:
        """Return the points of a seed."""
        return POINTS[self.data](self.dim, seed)

    def datasets(self) -> tuple[list[Points], None]:
        return [self.points(seed) for seed in self.seeds], None

    def options(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def others(self) -> tuple[Tensor, Tensor]:
        """Return as many test points as training points for each repeat, [repeats, points, ...]."""
        drawn = [self.points(seed + APART) for seed in self.seeds]
        return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        x, _ = self.others()
        points = x[:, :: max(1, x.shape[1] // CERTIFIED_POINTS)].double()
        return {"last": certificates([deepcopy(result.model).double().flow], [points], TIGHTEST)}

    def finish(self, result: Result) -> None:
        """Measure the models, and keep what the studies need: of the history, the means of every epoch."""
        x, y = self.others()
        result.measured = {"held-out": held_out(result.model.run(x), y, self.loss)}
        if self.examined:
            result.measured |= measures(deepcopy(result.model).double(), x.double(), y.double())
        condense(result)


def condense(result: Result) -> None:
    """Reduce a result to what studies need: the means of every epoch, and the models if figures draw them."""
    result.history = by_epoch(result.history)
    if not result.run.kept:
        result.model = None


@torch.no_grad()
def held_out(outcome: Outcome, targets: Tensor, loss: str) -> Array:
    """Return the mean loss of each member of a stack; NaN if its solve fails."""
    each = LOSSES[loss](outcome.prediction, targets).flatten(1).mean(1)
    assert outcome.solution is not None, "it is a neural ODE"
    return each.masked_fill(outcome.solution.status != Status.SUCCESS, torch.nan).double().numpy(force=True)


def by_epoch(history: History) -> History:
    """Return a history with the mean of every epoch in place of its iterations; counts are rounded."""
    means = {
        name: np.nan_to_num(history.per_epoch(name)).round()
        if np.issubdtype(kind, np.integer)
        else history.per_epoch(name)
        for name, kind in {**SERIES, **SHARED}.items()
    }
    kept: dict[str, Any] = {name: values.astype({**SERIES, **SHARED}[name]) for name, values in means.items()}
    return replace(history, **kept, batches=1)


def cost_of(result: Result) -> Array:
    """Return the NFE of the trained models at the paper's tolerance, [repeats]."""
    return result.certificates["last"].at(np.full(result.run.repeats, PAPER_TOLERANCE))


def at_shared(compared: Sequence[Result]) -> list[Array]:
    """Return the evaluations of some models at the loosest tolerance that is certified for all of them."""
    certificates = [each.certificates["last"] for each in compared]
    tolerance = shared(certificates)
    return [each.at(tolerance) for each in certificates]
