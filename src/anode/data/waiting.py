"""What shows that long work makes progress: a bar for reading files, and lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE = 2.0
"""Seconds after which the bar appears."""
FIRST, LAST = 10.0, 300.0
"""The shortest and the longest time between two plain lines about the same work, in seconds."""


class Lines:
    """Plain lines in place of progress bars, if the output is not a terminal but a file, a pipe or the log of a server.

    The time between lines grows with the time that the work has taken: the log stays short, and never looks dead.

    Args:
        console: Where to print them.
        clock: Returns the time in seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self._begun: dict[str, tuple[float, float]] = {}  # when, and how much was already done
        self._due: dict[str, float] = {}

    def show(self, name: str, done: float, total: float, note: str = "") -> None:
        """Print a line if it is due and the output is not a terminal."""
        if self.console.is_terminal:
            return
        now = self.clock()
        begun, before = self._begun.setdefault(name, (now, done))
        if now < self._due.setdefault(name, begun + FIRST):
            return
        taken = now - begun
        self._due[name] = now + min(max(FIRST, taken / 10), LAST)
        times = _shown(taken)
        if done > before:
            times += f", {_shown(taken * (total - done) / (done - before))} left"
        line = f"{name} {done / total:4.0%}  {note}  {times}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _shown(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def patient_bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on the standard error if the work takes long, or plain lines if it is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    task, begin, lines, done = progress.add_task(name, total=total), time.monotonic(), Lines(console), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress.update(task, completed=done)
        lines.show(name, done, total)
        if time.monotonic() - begin > PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()
