"""Training runs of a search: all settings of one shape, in all folds, as one stack of models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold

from anode.data import toy
from anode.experiments.environment import environment
from anode.experiments.runs import HERE, Place, Result, Run
from anode.experiments.search.spaces import Setting
from anode.models.ensemble import seeded
from anode.models.model import Model
from anode.models.nets import NeuralODE, ResNet
from anode.train.fit import fit
from anode.train.progress import Listener
from anode.train.record import Array

LOOKS = 5
"""Number of evaluations on the held-out fold."""
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Cross:
    """The cross-validation of a setting.

    Attributes:
        data: The dataset, and ``dim`` its dimension.
        folds: Number of folds. Each is held out once, while a model is trained on the others.
        repeats: Number of seeds. A seed sets the data, folds, weights and order of the data.
        seed: The first seed.
    """

    data: str = "g"
    dim: int = 2
    folds: int = 3
    epochs: int = 50
    repeats: int = 1
    seed: int = 0

    @property
    def trials(self) -> list[tuple[int, int]]:
        """The fold and the seed of every model of a setting."""
        seeds = range(self.seed, self.seed + self.repeats)
        return [(fold, seed) for fold in range(self.folds) for seed in seeds]

    def parts(self) -> list[tuple[Pair, Pair]]:
        """Return training and held-out data of each trial; all trials have the same sizes."""
        found = {}
        for seed in {seed for _, seed in self.trials}:
            data = toy.load(self.data, dim=self.dim, seed=seed)
            splits = KFold(self.folds, shuffle=True, random_state=seed).split(data.x)
            kept, apart = len(data) - -(-len(data) // self.folds), len(data) // self.folds
            for fold, (train, test) in enumerate(splits):
                rows, others = train[:kept], test[:apart]
                found[fold, seed] = (data.x[rows], data.y[rows]), (data.x[others], data.y[others])
        return [found[trial] for trial in self.trials]


@dataclass(frozen=True)
class SearchRun(Run):
    """Settings that differ only in the learning rate, each trained for every fold and seed.

    Weights and order of the data depend on the seed alone, so each model ends up as if trained alone.

    Attributes:
        settings: At least one.
        cross: How they are judged.
    """

    settings: tuple[Setting, ...]
    cross: Cross

    @property
    def name(self) -> str:  # type: ignore[override]
        one = self.settings[0]
        size = f"-layers{one.layers}" if one.layers else f"-p{one.augment}" if one.augment else ""
        return f"{one.model.lower()}-d{self.cross.dim}-batch{one.batch_size}-hidden{one.hidden}{size}"

    @property
    def repeats(self) -> int:  # type: ignore[override]
        """Number of models."""
        return len(self.settings) * len(self.cross.trials)

    @property
    def augment(self) -> int:  # type: ignore[override]
        return self.settings[0].augment

    @property
    def epochs(self) -> int:  # type: ignore[override]
        return self.cross.epochs

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.cross.seed

    @property
    def label(self) -> str:
        return self.settings[0].model

    @property
    def cost(self) -> float:
        """Plain NODEs need the most evaluations, ResNets few; small batches take more iterations."""
        one = self.settings[0]
        evaluations = {"ResNet": 0.04 * one.layers, "NODE": 1.0, "ANODE": 0.6}[one.model]
        return self.repeats * evaluations * (one.hidden + 50) / one.batch_size

    @property
    def evaluations(self) -> int:
        return -(-self.epochs // self.every)

    @property
    def every(self) -> int:
        """Epochs between evaluations on the held-out fold."""
        return max(1, self.epochs // LOOKS)

    def protocol(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    def described(self) -> dict[str, Any]:
        rates = [setting.lr for setting in self.settings]
        return {"run": self.name, **self.settings[0].searched, "lr": rates, **asdict(self.cross)}

    def models(self) -> Model:
        return seeded(self.build, [seed for _ in self.settings for _, seed in self.cross.trials])

    def build(self) -> Model:
        """Return a model of this shape."""
        one = self.settings[0]
        if one.model == "ResNet":
            return ResNet(self.cross.dim, 1, one.hidden, one.layers)
        return NeuralODE(self.cross.dim, 1, one.hidden, augment=one.augment)

    def train(self, tell: Listener | None, folder: Path, place: Place = HERE) -> Result:
        start = time.perf_counter()
        model, parts = self.models(), self.cross.parts()
        batches = -(-len(parts[0][0][0]) // self.settings[0].batch_size)
        history = fit(
            model,
            [train for _ in self.settings for train, _ in parts],
            epochs=self.epochs,
            batch_size=self.settings[0].batch_size,
            lr=[setting.lr for setting in self.settings for _ in parts],
            validation=[apart for _ in self.settings for _, apart in parts],
            evaluate_every=self.every * batches,
            seed=[seed for _ in self.settings for _, seed in self.cross.trials],
            progress=tell or False,
        )
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        return Result(self, model, history, time.perf_counter() - start, environment())


def groups(settings: Iterable[Setting], cross: Cross) -> list[SearchRun]:
    """Return the runs that train some settings; those of one shape and batch size are trained together."""
    found: dict[tuple[Any, ...], list[Setting]] = {}
    for one in settings:
        found.setdefault((one.model, one.batch_size, one.hidden, one.layers, one.augment), []).append(one)
    return [SearchRun(tuple(alike), cross) for alike in found.values()]


def losses(result: Result) -> dict[Setting, Array]:
    """Return the last losses on the held-out folds, per setting; NaN where training failed."""
    run: SearchRun = result.run
    last = result.validation[-1] if len(result.validation) else np.full(run.repeats, np.nan)
    return dict(zip(run.settings, last.reshape(len(run.settings), -1), strict=True))
