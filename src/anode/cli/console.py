"""What all commands share: where they print, and how mistakes end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

import anode
from anode.extras import MissingPackageError

out, err = Console(), Console(stderr=True)
INTERRUPTED = 130
"""The exit code after Ctrl-C."""

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Where datasets lie, each in a folder of its name.",
        show_default="the environment variable ANODE_DATA, or else a cache folder",
    ),
]

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="The address of a Dask scheduler whose workers do the runs, such as tcp://HOST:8786.",
        show_default="processes of this machine",
    ),
]

Device = Annotated[str, typer.Option("--device", help="What computes: cpu, cuda, cuda:1, ...")]


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without the line of the program that it comes from."""
    err.print(Text(f"warning: {message}"), soft_wrap=True)


def say(line: str) -> None:
    """Print a line as it is, however long."""
    out.print(Text(line), soft_wrap=True)


def commands(about: str, **settings: Any) -> typer.Typer:
    """An empty group of commands."""
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


def fail(line: str, code: int = 1) -> NoReturn:
    """Print a line about an error and end the command with an exit code."""
    err.print(Text(f"error: {line}"), soft_wrap=True)
    raise typer.Exit(code) from None


@contextmanager
def friendly(interrupted: str) -> Iterator[None]:
    """Turn a user's mistake into one line and exit code 2, and Ctrl-C into a line that says what is left.

    A mistake in the program itself may look like one of a user. If the environment variable ``ANODE_DEBUG`` is set, to
    anything but 0 or nothing, errors pass through with their traceback.
    """
    try:
        yield
    except KeyboardInterrupt:
        err.print(Text(interrupted), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        known = explained(error)
        if known is None or os.environ.get("ANODE_DEBUG", "0") not in ("", "0"):
            raise
        fail(*known)


def explained(error: Exception) -> tuple[str, int] | None:
    """A line and an exit code for an error that a user can do something about; ``None`` for any other."""
    from anode.experiments.workers import WorkerDiedError

    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, ValueError | TypeError | OSError):
        return str(error), 2
    if isinstance(error, WorkerDiedError | anode.SolveError | FloatingPointError | MissingPackageError):
        return str(error), 1
    if isinstance(error, RuntimeError) and "alloc" in str(error):
        reason = str(error).splitlines()[0]
        return f"there is not enough memory for this ({reason}); take less of it", 1
    return None
