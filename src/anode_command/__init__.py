"""The first step of the command ``anode``, outside of the package, whose import takes as long as that of torch."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def run() -> None:
    """The command ``anode``. Ctrl-C while it is being imported ends it without a word: there is nothing to say yet."""
    if sys.argv[1:] == ["--version"]:  # which does not need torch
        print(f"anode {version('anode')}")
        return
    interrupt_quietly()
    from anode.extras import MissingPackageError, needs

    try:
        needs("the command anode", "paper")
    except MissingPackageError as error:
        sys.exit(f"error: {error}")
    from anode.cli import run as command

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def interrupt_quietly() -> None:
    """Let Ctrl-C end the process without a word, until :func:`run` has imported everything."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not a process that is to ignore it
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    # Not by an exception, which whatever is being imported may take for a failure of its own.
    os._exit(INTERRUPTED)
