"""The command line: parses arguments, calls the library, prints results."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

import anode
from anode.cli.bench import bench_app
from anode.cli.console import commands, complain, friendly, out, say, show_warning
from anode.cli.data import data_app
from anode.cli.models import check, export, plot, train
from anode.cli.paper import report, reproduce, search
from anode.cli.play import play
from anode.cli.runs import predict, show

ABOUT = "Augmented neural ODEs: train models, plot what they learned, reproduce the paper."

REBUILD = (
    "to build it, install a C++17 compiler (GCC or Clang), then run this in the folder that anode was installed from: "
    "pip install --no-cache-dir --force-reinstall --no-deps ."
)
"""How to build the compiled engine. Without these options, pip reuses a cached wheel that lacks it."""

app = commands(ABOUT, pretty_exceptions_enable=False)


def show_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        out.print(f"anode {anode.__version__}", highlight=False)
        raise typer.Exit


@app.callback(help=ABOUT)
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Global options."""


def info() -> None:
    """Show the version, the platform and the engine that solves ODEs."""
    import torch

    from anode.engine import native
    from anode.experiments.environment import environment

    facts = environment()
    lines = {
        "anode": f"{facts['anode']}  {facts['revision']}".strip(),
        "with": f"torch {facts['torch']}, numpy {facts['numpy']}, Python {facts['python']}",
        "on": f"{facts['platform']}, {facts['processors']} processors, {torch.get_num_threads()} threads",
    }
    sets = native.instruction_sets()
    if sets:
        lines["engine"] = f"native, with {sets[0]} instructions, for CPU fields that it can trace; otherwise torch"
        lines["see"] = "in Python, print(anode.explain(f, y0)) shows which engine solves f, and its program"
    else:
        lines["engine"] = f"torch: {native.MISSING}; {REBUILD}"
    with friendly("interrupted"):
        for name, text in lines.items():
            say(f"{name:<8}{text}")


for command in (play, train, predict, show, plot, check, export, reproduce, report, search, info):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")


def run() -> None:
    """The command ``anode``."""
    warnings.showwarning = show_warning
    try:
        app()
    except OSError as error:  # --help writes to the standard output before a command handles errors
        complain(str(error))
        sys.exit(2)
