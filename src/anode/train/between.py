"""What happens between two iterations: others are told, the state is kept, and there may be a reason to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anode.train.callbacks import Callback, Report
from anode.train.checkpoint.folder import Folder
from anode.train.checkpoint.state import capture
from anode.train.progress import Listener, Patient
from anode.train.ranks import Ranks

if TYPE_CHECKING:
    from anode.train.fit import Training


class Between:
    """The pauses of a training run.

    Args:
        total: How many iterations there are to be.
        minutes: How much time there is.
        tell: Told of every iteration.
        callbacks: Called on the way.
        folder: Where states are kept. Only the first process has one, and only that one tells.
        ranks: The processes, which have to agree on when to stop.
    """

    def __init__(
        self,
        total: int,
        minutes: float | None,
        tell: Listener | None,
        callbacks: Sequence[Callback],
        folder: Folder | None,
        ranks: Ranks,
    ) -> None:
        self.callbacks = callbacks
        self.total, self.folder, self.ranks = total, folder, ranks
        self.tell = tell if ranks.first else None
        self.untold: list[Report] = []
        self.evaluated = 0  # how many iterations had been made at the last evaluation that was told of
        self.deadline = math.inf if minutes is None else time.perf_counter() + 60 * minutes

    def note(self, training: Training) -> None:
        """An iteration has been made; others will be told when there is a pause."""
        if self.tell is not None:
            self.untold.append(training.report)

    @property
    def may_wait(self) -> bool:
        """Whether several iterations may be made without a pause."""
        told = self.tell is None or isinstance(self.tell, Patient)
        told = told and all(type(each).iteration is Callback.iteration for each in self.callbacks)
        return told and (self.folder is None or self.folder.every > 0)

    def pause(self, training: Training, interrupted: Callable[[], bool]) -> str:
        """After some iterations; why there should be no others, or nothing."""
        pressed, trouble = False, None
        try:
            if self.tell is not None:
                for report in (*self.untold[:-1], training.report):  # of the last, more is known now
                    self.tell(report)
                self.untold.clear()
            self.call_back(training)
            if self.folder is not None and self.folder.due:
                self.folder.write(capture(training))
        except KeyboardInterrupt:
            pressed = True
        except Exception as error:  # the other processes must hear of it, or they would wait for this one
            trouble = error
        pressed, late, broken, asked = self.ranks.any(
            pressed or interrupted(),
            time.perf_counter() >= self.deadline,
            trouble is not None,
            bool(training.stopping),
        )
        if trouble is not None:
            raise trouble
        if broken:
            raise RuntimeError("the first process could not go on, as its own error says")
        done = len(training.record) >= self.total
        if pressed:
            return "interrupted"
        if asked and not done:
            return training.stopping or "a callback of another process stopped training"
        return "time is up" if late and not done else ""

    def call_back(self, training: Training, *, iterated: bool = True) -> None:
        """Call those who want to know of an iteration, or of an evaluation after it."""
        for callback in self.callbacks:
            if iterated:
                callback.iteration(training)
            if training.evaluation.done == len(training.record) > self.evaluated:
                callback.evaluation(training)
        self.evaluated = training.evaluation.done

    def keep(self, training: Training) -> None:
        """Keep the last state."""

        def write() -> list[bytes]:
            if self.folder is not None:
                self.folder.write(capture(training))
            return []

        self.ranks.from_first(write)
