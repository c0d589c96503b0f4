"""A progress bar for reading files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds after which the bar appears."""


@contextmanager
def patient_bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on the standard error, if it is a terminal and the work takes long."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    task, begin = progress.add_task(name, total=total), time.monotonic()

    def advance(count: int) -> None:
        progress.advance(task, count)
        if time.monotonic() - begin > PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()
