"""Ctrl-C, and the signals that end a process: deferred until an iteration is finished."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

ENDING = tuple(each for each in signal.Signals if each.name in ("SIGTERM", "SIGHUP"))
"""The signals that ask a process to end: of ``kill`` and of schedulers, and of a terminal that is closed."""


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defer a ``KeyboardInterrupt`` that a signal handler raises, as for Ctrl-C, so that no update is interrupted.

    Yields:
        A function that returns whether one was deferred. The second one is raised at once.
    """
    pressed = False

    def deferring(handler: Handler) -> Handler:
        def call(number: int, frame: FrameType | None) -> None:
            nonlocal pressed
            try:
                handler(number, frame)
            except KeyboardInterrupt:
                if pressed:
                    raise
                pressed = True

        return call

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    with _handled_by({number: deferring(handler) for number, handler in handlers.items() if callable(handler)}):
        yield lambda: pressed


@contextmanager
def ended_like_ctrl_c() -> Iterator[list[int]]:
    """Raise ``KeyboardInterrupt`` for the first signal that asks this process to end, unless the process ignores it.

    Further ones change nothing, because some systems send both signals, or one to several processes again and again.

    Yields:
        The signals that have arrived.
    """
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        _leave_closed_terminal()
        if len(arrived) == 1:
            raise KeyboardInterrupt

    with _handled_by({number: note for number in ENDING if signal.getsignal(number) is signal.SIG_DFL}):
        yield arrived


def _leave_closed_terminal() -> None:
    """Drop further output to a terminal that was closed; writing to it would raise an error."""
    for output in (1, 2):
        with suppress(OSError):  # the output was closed by the caller
            if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)


@contextmanager
def _handled_by(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Set signal handlers for a while, in the main thread; Python does not allow it in others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
