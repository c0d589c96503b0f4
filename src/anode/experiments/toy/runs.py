"""Training runs of the toy half. All repeats are trained at once, as one stack of models."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from anode.data import toy
from anode.data.toy import Dataset
from anode.experiments.certificates import Certificates, certificates
from anode.experiments.runs import HERE, SOLVER, Place, Result
from anode.experiments.stacked import StackedRun
from anode.models.fields import MLPField
from anode.models.flow import Flow
from anode.models.model import Model
from anode.models.nets import NeuralODE, ResNet
from anode.train.fit import Snapshots

MODELS: dict[str, Callable[[ToyRun], Model]] = {
    "ResNet": lambda run: ResNet(run.dim, 1, run.hidden, run.layers),
    "NODE": lambda run: NeuralODE(run.dim, 1, run.hidden, augment=run.augment),
    "flow": lambda run: Flow(MLPField(run.dim, run.hidden)),
}
SNAPSHOT_POINTS = 400
CERTIFIED_POINTS = 100
TIGHTEST = 1e-9
"""The tightest tolerance to certify; tighter ones take long, even in float64."""
TRAIN_POINTS, VALIDATION_POINTS = 2000, 800
"""Points used with slices held out: a little fewer than the expected 2100 outside and 900 inside of three slices."""


@dataclass(frozen=True)
class ToyRun(StackedRun):
    """A run on toy data. The defaults are the paper's best settings.

    Attributes:
        data: One of the toy datasets.
        dim: Its dimension.
        model: ``"NODE"`` (augmented if ``augment`` is above 0), ``"ResNet"``, or ``"flow"``, which has no linear layer.
        layers: Number of layers of a ResNet.
        slices: Number of random slices of the plane, each a tenth of it, that are held out for validation.
        snapshots: How often the features are recorded; more often at the start, where they change most.
    """

    dim: int
    model: str
    augment: int = 0
    layers: int = 5
    epochs: int = 50
    lr: float = 1e-3
    loss: str = "huber"
    slices: int = 0
    snapshots: int = 0

    @property
    def label(self) -> str:
        return "ANODE" if self.augment else "NODE" if self.model == "flow" else self.model

    @property
    def cost(self) -> float:
        """Plain NODEs need the most evaluations; ResNets are fast."""
        return self.repeats * {"ResNet": 0.1, "flow": 0.5}.get(self.model, 0.5 if self.augment else 1.0)

    @property
    def evaluations(self) -> int:
        return self.epochs if self.slices else 0

    def described(self) -> dict[str, Any]:
        network = f"{self.hidden} hidden units"
        if self.model == "ResNet":
            network += f", {self.layers} layers"
        data = self.data if self.data.endswith("1d") else f"{self.data}, d = {self.dim}"
        return {
            "run": self.name,
            "data": data + (f", {self.slices} slices held out" if self.slices else ""),
            "model": self.label + (f", p = {self.augment}" if self.augment else ""),
            "network": network,
            "solver": "none" if self.model == "ResNet" else SOLVER,
            "loss": self.loss,
            **self.training(),
        }

    def datasets(self) -> tuple[list[Dataset], list[Dataset] | None]:
        """Return the training sets of all repeats, and the validation sets if slices are held out."""
        options = {"dim": self.dim} if self.data in ("g", "separable") else {}
        whole = [toy.load(self.data, **options, seed=seed) for seed in self.seeds]
        if not self.slices:
            return whole, None
        parts = [each.holdout(toy.slices(self.slices, seed=seed)) for each, seed in zip(whole, self.seeds, strict=True)]
        train, validation = TRAIN_POINTS, VALIDATION_POINTS
        return [_some(part[0], train) for part in parts], [_some(part[1], validation) for part in parts]

    def build(self) -> Model:
        return MODELS[self.model](self)

    def options(self) -> dict[str, Any]:
        if not self.snapshots:
            return {"loss": self.loss}
        iterations = self.epochs * -(-len(self.datasets()[0][0]) // self.batch_size)
        at = (iterations * np.linspace(0, 1, self.snapshots) ** 2).round().astype(int).tolist()
        return {"loss": self.loss, "snapshots": Snapshots(snapshot_points(self)[0], at)}

    def finish(self, result: Result) -> None:
        """Keep the snapshots of the typical repeat alone."""
        one, history = result.typical, result.history
        history.snapshots = [replace(s, features=s.features[one], nfe=s.nfe[one]) for s in history.snapshots]

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        """Certify the models after the first epoch, which is trained again for this, and after the last."""
        if self.model != "NODE":  # a ResNet has no tolerance, and no claim is about the NFE of a flow alone
            return {}
        first, _ = replace(self, epochs=1, snapshots=0).fitted(None)
        return {"first": self._certified(first), "last": self._certified(result.model)}

    def _certified(self, model: Model) -> Certificates:
        """Certify models in double precision, which allows tighter tolerances than training."""
        assert isinstance(model, NeuralODE)
        x = torch.stack([each.x[:: max(1, len(each) // CERTIFIED_POINTS)] for each in self.datasets()[0]])
        return certificates([deepcopy(model).double().flow], [x.double()], TIGHTEST)


def _some(data: Dataset, size: int) -> Dataset:
    """Return ``size`` random points. Repeats can be trained together only if their datasets have the same size."""
    return data.split(size / len(data))[0]


def snapshot_points(run: ToyRun) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points whose features are recorded during a run, and their labels."""
    data, _ = toy.load(run.data, dim=run.dim, seed=run.seed).split(SNAPSHOT_POINTS / 3000, seed=run.seed)
    return data.x, data.labels
