"""What happens between two iterations: others are told, the state is kept, and there may be a reason to stop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from anode.train.callbacks import Callback, Report
from anode.train.checkpoint.folder import Folder
from anode.train.checkpoint.state import capture
from anode.train.progress import Listener, Patient

if TYPE_CHECKING:
    from anode.train.training import Training


class Between:
    """The pauses of a training run.

    Args:
        training: The run.
        minutes: How much time there is.
        tell: Told of every iteration.
        callbacks: Called on the way.
        folder: Where states are kept. Only the first process has one, and only that one tells.
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
        self.evaluated = training.evaluation.done  # iterations made at the last evaluation that was told of
        self.deadline = math.inf if minutes is None else time.perf_counter() + 60 * minutes

    def note(self) -> None:
        """An iteration has been made; others will be told when there is a pause."""
        if self.tell is not None:
            self.untold.append(self.training.report)

    @property
    def others_act(self) -> bool:
        """Whether functions of the user's are called between iterations, which may change the run."""
        return bool(self.callbacks) or not (self.tell is None or isinstance(self.tell, Patient))

    @property
    def may_wait(self) -> bool:
        """Whether several iterations may be made without a pause."""
        told = self.tell is None or isinstance(self.tell, Patient)
        told = told and all(type(each).iteration is Callback.iteration for each in self.callbacks)
        return told and (self.folder is None or self.folder.every > 0)

    def pause(self, interrupted: Callable[[], bool]) -> str:
        """After some iterations; why there should be no others, or nothing."""
        training, pressed, trouble = self.training, False, None
        try:
            if self.tell is not None:
                for report in (*self.untold[:-1], training.report):  # of the last, more is known now
                    self.tell(report)
                self.untold.clear()
            self.call_back()
            if self.folder is not None and self.folder.due:
                self.folder.write(capture(training))
        except KeyboardInterrupt:
            pressed = True
        except Exception as error:  # the other processes must hear of it, or they would wait for this one
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
            raise RuntimeError("the first process could not go on, as its own error says")
        done = len(training.record) >= training.total
        if pressed:
            return "interrupted"
        if asked and not done:
            return training.stopping or "a callback of another process stopped training"
        return "time is up" if late and not done else ""

    def call_back(self, *, iterated: bool = True) -> None:
        """Call those who want to know of an iteration, or of an evaluation after it, or of the end of an epoch."""
        training = self.training
        for callback in self.callbacks:
            if iterated:
                callback.iteration(training)
            if training.evaluation.done == len(training.record) > self.evaluated:
                callback.evaluation(training)
            if iterated and len(training.record) % training.protocol.batches == 0:
                callback.epoch(training)
        self.evaluated = training.evaluation.done

    def keep(self) -> None:
        """Keep the last state."""

        def write() -> list[bytes]:
            if self.folder is not None:
                self.folder.write(capture(self.training))
            return []

        self.training.ranks.from_first(write)


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C instead of raising ``KeyboardInterrupt`` at once, so that no update is left half done.

    Yields:
        Whether Ctrl-C was pressed. Pressed again, it raises as usual: for those who cannot wait.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    # Handlers can be set in the main thread only, and one that somebody else has set is left alone.
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
