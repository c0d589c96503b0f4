"""What happens between two iterations: others are told, the state is kept, and there may be a reason to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from anode.train.folder import Folder
from anode.train.progress import Listener, Patient, Report
from anode.train.ranks import Ranks
from anode.train.state import capture

if TYPE_CHECKING:
    from anode.train.fit import Training


class Between:
    """The pauses of a training run.

    Args:
        total: How many iterations there are to be.
        minutes: How much time there is.
        tell: Told of every iteration.
        folder: Where states are kept. Only the first process has one, and only that one tells.
        ranks: The processes, which have to agree on when to stop.
    """

    def __init__(
        self, total: int, minutes: float | None, tell: Listener | None, folder: Folder | None, ranks: Ranks
    ) -> None:
        self.total, self.folder, self.ranks = total, folder, ranks
        self.tell = tell if ranks.first else None
        self.untold: list[Report] = []
        self.deadline = math.inf if minutes is None else time.perf_counter() + 60 * minutes

    def note(self, training: Training) -> None:
        """An iteration has been made; others will be told when there is a pause."""
        if self.tell is not None:
            self.untold.append(training.report(self.total))

    @property
    def may_wait(self) -> bool:
        """Whether several iterations may be made without a pause."""
        told = self.tell is None or isinstance(self.tell, Patient)
        return told and (self.folder is None or self.folder.every > 0)

    def pause(self, training: Training, interrupted: Callable[[], bool]) -> str:
        """After some iterations; why there should be no others, or nothing."""
        pressed, trouble = False, None
        try:
            if self.tell is not None:
                for report in (*self.untold[:-1], training.report(self.total)):  # of the last, more is known now
                    self.tell(report)
                self.untold.clear()
            if self.folder is not None and self.folder.due:
                self.folder.write(capture(training))
        except KeyboardInterrupt:
            pressed = True
        except Exception as error:  # the other processes must hear of it, or they would wait for this one
            trouble = error
        pressed, late, broken = self.ranks.any(
            pressed or interrupted(), time.perf_counter() >= self.deadline, trouble is not None
        )
        if trouble is not None:
            raise trouble
        if broken:
            raise RuntimeError("the first process could not go on, as its own error says")
        done = len(training.record) >= self.total
        return "interrupted" if pressed else "time is up" if late and not done else ""

    def keep(self, training: Training) -> None:
        """Keep the last state."""

        def write() -> list[bytes]:
            if self.folder is not None:
                self.folder.write(capture(training))
            return []

        self.ranks.from_first(write)
