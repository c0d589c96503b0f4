"""What all commands share: where they print, and how mistakes end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import anode

out, err = Console(), Console(stderr=True)

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Where datasets lie, each in a folder of its name.",
        show_default="the environment variable ANODE_DATA, or else a cache folder",
    ),
]


def commands(about: str, **settings: Any) -> typer.Typer:
    """An empty group of commands."""
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


@contextmanager
def friendly(interrupted: str) -> Iterator[None]:
    """Turn a user's mistake into one line and exit code 2, and Ctrl-C into a line that says what is left."""
    from anode.experiments.workers import WorkerDiedError

    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        err.print(Text(f"error: {message}"), soft_wrap=True)
        raise typer.Exit(2) from None
    except (WorkerDiedError, anode.SolveError, FloatingPointError) as error:
        err.print(Text(f"error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from None
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        err.print(Text(f"error: there is not enough memory for this ({reason}); take less of it"), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print(Text(interrupted), soft_wrap=True)
        raise typer.Exit(130) from None
