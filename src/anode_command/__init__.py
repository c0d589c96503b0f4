"""Entry point of the command ``anode``, outside of the package because importing that imports torch, which is slow."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def run() -> None:
    """Run the command ``anode``. Ctrl-C during the import exits silently, because nothing has started yet."""
    if sys.argv[1:] == ["--version"]:  # needs no torch
        try:
            os.write(
                1, f"anode {version('anode')}\n".encode()
            )  # unlike print, leaves nothing to be written at the exit
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
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
    """Make Ctrl-C exit silently until :func:`run` has imported everything."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the process ignores Ctrl-C
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    # Do not raise: a module that is being imported could take the exception for its own failure.
    os._exit(INTERRUPTED)
