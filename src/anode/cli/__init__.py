"""The command line: parse, call, print."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

import anode
from anode.cli.bench import bench_app
from anode.cli.console import commands, out, show_warning
from anode.cli.data import data_app
from anode.cli.models import check, export, plot, train
from anode.cli.paper import report, reproduce, search
from anode.cli.play import play
from anode.cli.runs import predict, show

ABOUT = "Augmented neural ODEs: re-run the paper, train models, draw what they learned."

REBUILD = (
    "to build it, install a C++17 compiler (GCC or Clang) and run, in the folder that anode was installed from, "
    "pip install --no-cache-dir --force-reinstall --no-deps ."
)
"""How to get a compiled engine; without these options pip takes the wheel it built without one."""

app = commands(ABOUT, pretty_exceptions_enable=False)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        out.print(f"anode {anode.__version__}", highlight=False)
        raise typer.Exit


@app.callback(help=ABOUT)
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


def info() -> None:
    """Say which version this is, on what it runs, and which engine integrates."""
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
        lines["engine"] = f"native, with {sets[0]} instructions, for fields on a CPU that it can trace; else torch"
        lines["see"] = "print(anode.explain(f, y0)) in Python says which of them solves f, and shows the program"
    else:
        lines["engine"] = f"torch: {native.MISSING}; {REBUILD}"
    for name, text in lines.items():
        out.print(f"{name:<8}{text}", highlight=False, soft_wrap=True)


for command in (play, train, predict, show, plot, check, export, reproduce, report, search, info):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")


def run() -> None:
    """The command ``anode``."""
    warnings.showwarning = show_warning
    app()
