"""Progress bars."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anode.extras import installed, needs
from anode.train.callbacks import Report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

BETWEEN = 0.1
"""Seconds between two states of a plain line."""
WIDTH = 79
"""Characters of a plain line, so that a shorter one hides the one before it."""

Listener = Callable[[Report], None]
"""Told of the progress of training, right after every iteration unless it is :class:`Patient`."""


@dataclass(frozen=True)
class Patient:
    """A listener that does not look at the model, and need not be told at once.

    Attributes:
        listener: The listener itself.
    """

    listener: Listener

    def __call__(self, report: Report) -> None:
        self.listener(report)


class Bars:
    """A bar for each training run, on standard error; nothing at all where that is no terminal. It needs rich."""

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
            TimeElapsedColumn(Column(no_wrap=True)),  # where it is narrow, the bar gives way and times stay
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("left"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, done: float, total: float, note: str = "") -> None:
        """Draw a bar, or move it."""
        if name not in self._tasks:
            self._tasks[name] = self.progress.add_task(name, total=total, note=note)
        self.progress.update(self._tasks[name], completed=done, total=total, note=note)

    def say(self, text: str) -> None:
        """Print a line; on a terminal above the bars."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def log(self, text: str) -> None:
        """Print a line where there are no bars, in a log file for example."""
        if not self.console.is_terminal:
            self.say(text)

    def listen(self, name: str) -> Listener:
        """A listener that moves the bar of this name."""
        return Patient(lambda report: self.show(name, report.done, report.total, in_words(report)))

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()


def in_words(report: Report) -> str:
    """A report in a few words."""
    right = "" if report.accuracy is None else f"  accuracy {100 * report.accuracy:.1f}%"
    nfe = f"  NFE {report.nfe:.0f}" if report.nfe else ""
    check = "" if report.check is None else f"  check {report.check:.1%}"
    return f"loss {report.loss:.4f}{right}{nfe}{check}"


@contextmanager
def listener(progress: bool | Listener | None, name: str) -> Iterator[Listener | None]:
    """Whom to tell: the caller's own listener, a bar, or nobody.

    Args:
        progress: A listener; True for a bar, False for none, ``None`` for a bar if there is a terminal. Without rich,
            a plain line takes the place of the bar.
        name: What to call the bar.
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
    """A bar, on a terminal or always."""
    from rich.console import Console

    bars = Bars(Console(stderr=True, force_terminal=True) if always else None)
    if not bars.console.is_terminal:
        yield None
    else:
        with bars:
            yield bars.listen(name)


@contextmanager
def _line(name: str, always: bool) -> Iterator[Listener | None]:
    """A line on standard error that is written over, on a terminal or always."""
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
