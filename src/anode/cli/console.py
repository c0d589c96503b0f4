"""Shared by all commands: consoles, common options and error handling."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

import anode
from anode.extras import MissingPackageError
from anode.train.interrupts import ended_like_ctrl_c

out, err = Console(), Console(stderr=True)
SIGNALLED = 128
"""The exit code after Ctrl-C and other signals is this plus the number of the signal."""

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Folder with the datasets, each in a subfolder of its own name.",
        show_default="the environment variable ANODE_DATA, or a cache folder",
    ),
]

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Address of a Dask scheduler whose workers train the runs, such as tcp://HOST:8786.",
        show_default="train on this machine",
    ),
]

Device = Annotated[str, typer.Option("--device", help="Torch device to train on: cpu, cuda, cuda:1, ...")]


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without the source line that raised it."""
    err.print(Text(f"warning: {message}"), soft_wrap=True)


def say(line: str) -> None:
    """Print a line without wrapping it."""
    out.print(Text(line), soft_wrap=True)


def write_out(text: str) -> None:
    """Write a text to the standard output as it is. Exit silently if its reader has read enough, as ``head`` does."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()  # an error, such as that of a full disk, is raised here and not at the exit of the process
    except BrokenPipeError:
        drop_unwritten()
        raise typer.Exit(1) from None


def drop_unwritten() -> None:
    """Drop output that cannot be written; otherwise Python tries again when it exits, and prints a traceback."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def commands(about: str, **settings: Any) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


def fail(line: str, code: int = 1) -> NoReturn:
    """Print an error and exit with a code."""
    complain(line)
    raise typer.Exit(code) from None


def complain(line: str) -> None:
    """Print an error, after which nothing is written to the standard output."""
    err.print(Text(f"error: {line}"), soft_wrap=True)
    drop_unwritten()


def resumable(folder: Path) -> str:
    """Return the line to print after Ctrl-C, for a command that saves its results as it goes."""
    return f"interrupted; finished work is saved in {folder}; run the same command again to continue"


@contextmanager
def friendly(interrupted: str) -> Iterator[None]:
    """Turn errors, Ctrl-C and signals that end a process into one line and an exit code.

    The exit code after such a signal is 128 plus its number, also if the commands within have kept what they had and
    finished early.

    A bug in anode may raise the same exception as a user's mistake. To see the traceback, set the environment variable
    ``ANODE_DEBUG`` to anything but 0 or the empty string.

    Args:
        interrupted: The line to print after Ctrl-C; it says what was saved.
    """
    with ended_like_ctrl_c() as signals:
        try:
            yield
        except KeyboardInterrupt:
            err.print(Text(interrupted), soft_wrap=True)
            raise typer.Exit(SIGNALLED + (signals or [signal.SIGINT])[0]) from None
        except Exception as error:
            known = explained(error)
            if known is None or os.environ.get("ANODE_DEBUG", "0") not in ("", "0"):
                raise
            fail(*known)
    if signals:
        raise typer.Exit(SIGNALLED + signals[0])


def explained(error: Exception) -> tuple[str, int] | None:
    """Return a line and an exit code for an error that the user can fix; ``None`` for any other error."""
    from anode.experiments.workers import WorkerDiedError

    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, ValueError | TypeError | OSError):
        return str(error), 2
    if isinstance(error, WorkerDiedError | anode.SolveError | FloatingPointError | MissingPackageError):
        return str(error), 1
    if isinstance(error, RuntimeError) and "alloc" in str(error):
        reason = str(error).splitlines()[0]
        return f"not enough memory ({reason}); use a smaller model, batch size or dataset", 1
    return None
