"""Two models that train side by side, each in its own thread. They wait for each other after every epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from anode.data.toy import Dataset
from anode.models.ensemble import from_seed
from anode.models.nets import NeuralODE
from anode.play.settings import Settings
from anode.train.callbacks import Callback
from anode.train.fit import fit
from anode.train.history import History
from anode.train.training import Training

ITERATIONS = 200_000
"""Maximum number of training iterations, which bounds the memory of the history."""


class Side(Callback):
    """One of the models, and its training.

    Args:
        name: The name of the model.
        augment: Number of zeros appended to a point.
        settings: The settings of both models.
        meet: Called before the first epoch and after each epoch; returns whether to continue.

    Attributes:
        ended: Why training ended; empty while it continues.
    """

    def __init__(self, name: str, augment: int, settings: Settings, meet: Callable[[], bool]) -> None:
        self.name, self.augment, self.ended = name, augment, ""
        self.model = from_seed(
            lambda: NeuralODE(
                2,
                1,
                settings.width,
                augment=augment,
                activation=settings.activation,
                rtol=settings.tolerance,
                atol=settings.tolerance,
            ),
            settings.seed,
        )
        self._meet = meet
        self._training: Training | None = None

    def begin(self, training: Training) -> None:
        self._training = training
        self.epoch(training)

    def epoch(self, training: Training) -> None:
        if not self._meet():
            training.stop("closed")

    def train(self, data: Dataset, settings: Settings) -> None:
        """Train until ``meet`` says to stop, or training ends."""
        batch = min(64, len(data))
        epochs = max(ITERATIONS * batch // len(data), 1)
        history = fit(
            self.model,
            data,
            epochs=epochs,
            batch_size=batch,
            lr=settings.lr,
            seed=settings.seed,
            callbacks=[self],
            progress=False,
        )
        self.ended = history.stopped or f"reached the limit of {len(history):,} iterations"

    @property
    def history(self) -> History:
        """The training history so far."""
        assert self._training is not None
        return self._training.history

    def tune(self, settings: Settings) -> None:
        """Change the learning rate and the tolerance during training."""
        solver = self.model.flow.solver
        self.model.flow.solver = solver.but(rtol=settings.tolerance, atol=settings.tolerance)
        if self._training is not None:
            for group in self._training.optimizer.param_groups:
                group["lr"] = settings.lr


class Pair:
    """A NODE and an ANODE with the same settings, data and seed.

    Args:
        settings: Their settings.
        data: The training data.
        between: Called before the first epoch and after each epoch, by one thread while the other waits. It may read
            both models, may block, and returns whether to continue.
        failed: Called with a message if training raises an unexpected error.
    """

    def __init__(
        self, settings: Settings, data: Dataset, between: Callable[[Pair], bool], failed: Callable[[str], None]
    ) -> None:
        self.data, self._between, self._failed = data, between, failed
        self._meeting = threading.Barrier(2, action=self._decide)
        self._going = True  # set while both threads wait, so that both see the same value
        self.sides = [Side("NODE", 0, settings, self._meet), Side("ANODE", settings.p, settings, self._meet)]
        self._threads = [
            threading.Thread(target=self._train, args=(side, settings), name=f"anode play {side.name}", daemon=True)
            for side in self.sides
        ]

    def start(self) -> None:
        """Start training; ``between`` is called first."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until both threads have ended; ``between`` must have returned ``False``."""
        for thread in self._threads:
            thread.join()

    @property
    def ended(self) -> bool:
        """Whether training of both models has ended."""
        return all(side.ended for side in self.sides)

    def _decide(self) -> None:
        self._going = self._between(self)

    def _meet(self) -> bool:
        self._meeting.wait()
        return self._going

    def _train(self, side: Side, settings: Settings) -> None:
        try:
            side.train(self.data, settings)
            while self._going:  # the other model may still train
                self._meet()
        except threading.BrokenBarrierError:  # the other thread reports the error
            pass
        except Exception as error:
            self._meeting.abort()
            self._failed(f"{type(error).__name__}: {error}")
