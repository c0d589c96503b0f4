"""Progress bars."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anode.data.waiting import Lines
from anode.extras import installed, needs
from anode.train.callbacks import Report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

BETWEEN = 0.1
"""Seconds between updates of a plain progress line."""
WIDTH = 79
"""Width of a plain progress line in characters, so that a shorter line overwrites a longer one."""
MOST_BARS = 12
"""Number of bars above which finished ones make room, because a terminal cuts off the last ones."""

Listener = Callable[[Report], None]
"""A function called with a report after every iteration; immediately, unless it is :class:`Patient`."""


@dataclass(frozen=True)
class Patient:
    """A listener that does not use the model, and may be called later than right after an iteration.

    Attributes:
        listener: The listener.
    """

    listener: Listener

    def __call__(self, report: Report) -> None:
        self.listener(report)


class Bars:
    """Progress bars on standard error, one per training run; plain lines if it is not a terminal. Requires rich."""

    def __init__(self, console: Console | None = None) -> None:
        needs("progress bars", "paper", "rich")
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[note]}"),
            TimeElapsedColumn(Column(no_wrap=True)),  # on a narrow terminal the bar shrinks and the times stay
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("left"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.lines = Lines(self.console)
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, done: float, total: float, note: str = "") -> None:
        """Show or update a bar."""
        if name not in self._tasks:
            self._make_room()
            self._tasks[name] = self.progress.add_task(name, total=total, note=note)
        self.progress.update(self._tasks[name], completed=done, total=total, note=note)
        self.lines.show(name, done, total, note)

    def _make_room(self) -> None:
        """Hide the oldest finished bar if there are many."""
        shown = [task for task in self.progress.tasks if task.visible]
        finished = [task for task in shown if task.finished]
        if len(shown) >= MOST_BARS and finished:
            self.progress.update(finished[0].id, visible=False)

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def log(self, text: str) -> None:
        """Print a line if there are no bars, for example in a log file."""
        if not self.console.is_terminal:
            self.say(text)

    def listen(self, name: str) -> Listener:
        """Return a listener that updates the bar of this name."""
        return Patient(lambda report: self.show(name, report.done, report.total, in_words(report)))

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()


def in_words(report: Report) -> str:
    """Return a short text of a report."""
    right = "" if report.accuracy is None else f"  accuracy {100 * report.accuracy:.1f}%"
    nfe = f"  NFE {report.nfe:.0f}" if report.nfe else ""
    check = "" if report.check is None else f"  check {report.check:.1%}"
    return f"loss {report.loss:.4f}{right}{nfe}{check}"


@contextmanager
def listener(progress: bool | Listener | None, name: str) -> Iterator[Listener | None]:
    """Yield the listener to call: the caller's, a progress bar, or ``None``.

    Args:
        progress: A listener, ``True`` for a bar, ``False`` for none, or ``None`` for a bar on a terminal. Without rich,
            the bar is a plain line.
        name: Name of the bar.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress: takes True, False, None or a function, got {progress!r}")
    if progress is False:
        yield None
    elif callable(progress):
        yield progress
    else:
        with (_bar if installed("rich") else _line)(name, always=progress is True) as tell:
            yield tell


@contextmanager
def _bar(name: str, always: bool) -> Iterator[Listener | None]:
    """Yield the listener of a progress bar, or ``None`` if there is no terminal and not ``always``."""
    from rich.console import Console

    bars = Bars(Console(stderr=True, force_terminal=True) if always else None)
    if not bars.console.is_terminal:
        yield None
    else:
        with bars:
            yield bars.listen(name)


@contextmanager
def _line(name: str, always: bool) -> Iterator[Listener | None]:
    """Yield the listener of a plain line on standard error that is overwritten; conditions as for :func:`_bar`."""
    if not (always or (sys.stderr and sys.stderr.isatty())):
        yield None
        return
    last = -math.inf

    def tell(report: Report) -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN or report.done == report.total:
            last = time.monotonic()
            line = f"{name} {report.done / report.total:4.0%}  {in_words(report)}"
            print(f"\r{line:<{WIDTH}}", end="", file=sys.stderr, flush=True)

    try:
        yield Patient(tell)
    finally:
        print(file=sys.stderr)
