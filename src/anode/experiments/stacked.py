"""Training runs whose repeats are trained together, as one stack of models."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from anode.experiments.environment import environment
from anode.experiments.runs import HERE, Place, Result, Run
from anode.models.ensemble import seeded
from anode.models.model import Model
from anode.models.randomness import with_seed
from anode.train.fit import fit
from anode.train.history import History
from anode.train.progress import Listener


@dataclass(frozen=True)
class StackedRun(Run):
    """A run whose repeats are one stack of models.

    Attributes:
        data: Name of the dataset.
        hidden: Width of the hidden layers.
    """

    name: str
    data: str
    _: KW_ONLY
    hidden: int = 32
    batch_size: int = 64
    repeats: int = 20
    seed: int = 0

    kept = True
    """Whether results keep the trained models."""

    @property
    def evaluations(self) -> int:
        return 0

    @abstractmethod
    def build(self) -> Model:
        """Return one untrained model, initialised from torch's global random numbers."""

    @abstractmethod
    def datasets(self) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return the training sets of all repeats, and their validation sets or ``None``."""

    def options(self) -> dict[str, Any]:
        """Return further arguments of :func:`anode.fit`, such as the loss."""
        return {}

    def models(self) -> Model | None:
        return self.stacked() if self.kept else None

    def stacked(self) -> Model:
        """Return the untrained models of all repeats."""
        return seeded(self.build, self.seeds)

    def train(self, tell: Listener | None, folder: Path, place: Place = HERE) -> Result:
        start = time.perf_counter()
        model, history = self.fitted(tell)
        result = Result(self, model, history, time.perf_counter() - start, environment())
        result.certificates = self.certify(result)
        self.finish(result)
        return result

    def finish(self, result: Result) -> None:
        """Add measurements of the trained models to a result, or remove what is not kept."""

    def fitted(self, tell: Listener | None) -> tuple[Model, History]:
        """Return the trained models and the history. Raise ``KeyboardInterrupt`` if training was interrupted."""
        data, validation = self.datasets()
        model = self.stacked()
        with with_seed(self.seed):  # for the random numbers of models and losses
            history = fit(
                model,
                data,
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                validation=validation,
                seed=self.seeds,
                progress=tell or False,
                **self.options(),
            )
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        return model, history
