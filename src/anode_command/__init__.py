"""The first step of the command ``anode``, outside of the package, whose import takes as long as that of torch."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def run() -> None:
    """The command ``anode``. Ctrl-C while it is being imported ends it without a word: there is nothing to say yet."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and not a process that is to ignore it
        # Not by an exception, which whatever is being imported may take for a failure of its own.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from anode.cli import run as command

    signal.signal(signal.SIGINT, before)
    command()
