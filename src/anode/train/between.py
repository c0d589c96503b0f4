"""What happens between iterations: progress reports, callbacks, checkpoints, and reasons to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from anode.train.callbacks import Callback, Report
from anode.train.checkpoint.folder import Folder
from anode.train.checkpoint.state import capture
from anode.train.progress import Listener, Patient

if TYPE_CHECKING:
    from anode.train.training import Training


class Between:
    """The pauses between iterations of a training run.

    Args:
        training: The training run.
        minutes: Time limit; ``None`` for none.
        tell: The listener to call with the report of every iteration. Only the first process calls it.
        callbacks: The callbacks.
        folder: The folder of checkpoints; ``None`` for none, and in all processes but the first.
    """

    def __init__(
        self,
        training: Training,
        minutes: float | None,
        tell: Listener | None,
        callbacks: Sequence[Callback],
        folder: Folder | None,
    ) -> None:
        self.training, self.callbacks, self.folder = training, callbacks, folder
        self.tell = tell if training.ranks.first else None
        self.untold: list[Report] = []
        self.evaluated = training.evaluation.done  # iterations before the last evaluation that callbacks know of
        self.deadline = math.inf if minutes is None else time.perf_counter() + 60 * minutes

    def note(self) -> None:
        """Store the report of an iteration until the next pause."""
        if self.tell is not None:
            self.untold.append(self.training.report)

    @property
    def others_act(self) -> bool:
        """Whether user functions are called between iterations, which may modify the run."""
        return bool(self.callbacks) or not (self.tell is None or isinstance(self.tell, Patient))

    @property
    def may_wait(self) -> bool:
        """Whether several iterations may run without a pause."""
        told = self.tell is None or isinstance(self.tell, Patient)
        told = told and all(type(each).iteration is Callback.iteration for each in self.callbacks)
        return told and (self.folder is None or self.folder.every > 0)

    def pause(self, interrupted: Callable[[], bool]) -> str:
        """Report, call back and save a checkpoint; return why training should stop, or an empty string."""
        training, pressed, trouble = self.training, False, None
        try:
            for act in (self.report, *self.calls(), self.save):
                try:
                    act()
                except KeyboardInterrupt:  # the others belong to the iteration too, which is not repeated
                    pressed = True
        except Exception as error:  # the other processes must be told, or they would wait for this one
            trouble = error
        pressed, late, broken, asked = training.ranks.any(
            pressed or interrupted(),
            time.perf_counter() >= self.deadline,
            trouble is not None,
            bool(training.stopping),
        )
        if trouble is not None:
            raise trouble
        if broken:
            raise RuntimeError("the first process could not go on; see its own error")
        done = len(training.record) >= training.total
        if pressed:
            return "interrupted"
        if asked and not done:
            return training.stopping or "a callback of another process stopped training"
        return "time is up" if late and not done else ""

    def report(self) -> None:
        """Call the listener with the stored reports."""
        untold, self.untold = self.untold, []
        if self.tell is not None:
            for report in (*untold[:-1], self.training.report):  # the last one may include an evaluation now
                self.tell(report)

    def calls(self, *, iterated: bool = True) -> list[Callable[[], None]]:
        """Return the calls of callbacks for an iteration, for an evaluation after it, and for the end of an epoch."""
        training = self.training
        found: list[Callable[[], None]] = []
        done = len(training.record)
        evaluated = training.evaluation.done == done > self.evaluated
        for callback in self.callbacks:
            moments = (
                (iterated, callback.iteration),
                (evaluated, callback.evaluation),
                (iterated and done % training.protocol.batches == 0, callback.epoch),
            )
            found += [partial(method, training) for is_due, method in moments if is_due]
        self.evaluated = training.evaluation.done
        return found

    def save(self) -> None:
        """Save a checkpoint if it is due."""
        if self.folder is not None and self.folder.due:
            self.folder.write(capture(self.training))

    def keep(self) -> None:
        """Save a checkpoint of the last state."""

        def write() -> list[bytes]:
            if self.folder is not None:
                self.folder.write(capture(self.training))
            return []

        self.training.ranks.from_first(write)
