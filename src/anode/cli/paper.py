"""Commands for the paper: ``anode reproduce``, ``anode report`` and ``anode search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from anode.cli.console import Cluster, Device, Root, fail, friendly, out, resumable
from anode.cli.solver import field_options, with_options
from anode.experiments.search.options import Search
from anode.experiments.settings import Settings

EVERY_SETTING_FAILED = "training failed with every setting; try lower learning rates"
EVERY_RUN_FAILED = "training failed in every repeat of every run; the reasons are listed above"
COLORS = {"held": "green", "not held": "red", "inconclusive": "yellow"}


@with_options(field_options(Settings))
def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            help="toy, images, beyond or beyond-images, or single figures of one of them, such as fig07, table1 or "
            "family.",
            show_default="toy",
        ),
    ] = None,
    root: Root = None,
    device: Device = Settings.device,
    cluster: Cluster = None,
    **options: Any,
) -> None:
    """Reproduce the paper: train its models, draw its figures, check its claims and write a report.

    A run that several figures need is trained once. If the command is interrupted, run it again to continue. The exit
    code is 1 if training failed in every repeat of every run.

    **Examples**

    - `anode reproduce` for all toy experiments, with as many repeats as in the paper
    - `anode reproduce fig07 fig08 --repeats 5 --out quick`
    - `anode reproduce beyond` for what the paper leaves open: other augmentations, densities, regularisers
    - `anode reproduce beyond-images` for the same on MNIST, which takes hours; `beyond` does not include it
    - `anode reproduce images --scale small`, which needs MNIST, CIFAR-10, SVHN and Tiny ImageNet: see `anode data`
    """
    import torch

    from anode.experiments.reproduce import planned, reproduce
    from anode.train.progress import Bars

    torch.set_num_threads(1)  # the networks are too small for more; runs are trained in parallel instead
    with friendly("interrupted before training started"):
        work = planned(Settings(figures or Settings.figures, root=root, device=device, cluster=cluster, **options))
    with friendly(resumable(work.out)):
        with Bars() as bars:
            content, failed = reproduce(work, bars)
        out.print(claims_table(content["claims"]))
        for failure in content["failures"]:
            where = f"{failure['run']}, repeat {failure['repeat']}"
            when = f"first in iteration {failure['first']}, {failure['times']} in total"
            out.print(Text(f"failed: {where} ({when}): {failure['reason']}"), soft_wrap=True)
        out.print(Text(f"report: {work.out / 'report.html'}"), soft_wrap=True)
    if failed:
        fail(EVERY_RUN_FAILED)


def claims_table(claims: list[dict[str, Any]]) -> Table:
    """Return a table of the claims and their verdicts."""
    table = Table("", "claim", "verdict", "test", title="Claims", show_lines=True)
    for claim in claims:
        verdict = Text(claim["verdict"], style=COLORS[claim["verdict"]])
        table.add_row(str(claim["number"]), claim["statement"], verdict, claim["test"])
        if "certified" in claim:
            again = claim["certified"]
            verdict = Text(again["verdict"], style=COLORS.get(again["verdict"], ""))
            table.add_row("", f"Claim {claim['number']} at a certified tolerance.", verdict, again["test"])
    return table


def report(
    folder: Annotated[Path, typer.Argument(help="A folder written by anode reproduce.")] = Path("results/mine/toy"),
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="First find the tolerance that each finished image model needs, if it is unknown. Needs the datasets.",
        ),
    ] = False,
    root: Root = None,
) -> None:
    """Write the report of a results folder again; for images, also while runs are unfinished."""
    from anode.experiments.runs import Place
    from anode.experiments.unfinished import certify_finished, report_again
    from anode.train.progress import Bars

    with friendly("interrupted"):
        if certify:
            with Bars() as bars:
                certify_finished(folder, bars, Place(root))
        out.print(Text(f"report: {report_again(folder)}"), soft_wrap=True)


@with_options(field_options(Search))
def search(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models: ResNet, NODE, ANODE.", show_default="all three")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Search.folder,
    cluster: Cluster = None,
    **options: Any,
) -> None:
    """Search for the best hyperparameters as the paper did: cross-validate every setting of a grid.

    Settings with the same network and batch size are trained together as one program. Writes `search.json`, `search.md`
    and one figure per dimension (with `--sampler tpe`: `tpe.json` and so on). If the command is interrupted, run it
    again to continue. With `--sampler tpe`, processes on any number of machines share the work if you give them the
    same `--storage`. The exit code is 1 if training failed with every setting.

    **Examples**

    - `anode search` for the paper's 84 settings in one and two dimensions
    - `anode search ANODE --dim 2 --epochs 10 --out quick`
    - `anode search ANODE --dim 2 --sampler tpe --trials 100 --storage sqlite:///anode.db`
    """
    import torch

    from anode.experiments.search.command import run_search
    from anode.experiments.search.grid import shown
    from anode.train.progress import Bars

    torch.set_num_threads(1)  # the networks are too small for more; runs are trained in parallel instead
    with friendly(resumable(folder)):
        with Bars() as bars:
            found = run_search(Search(models, folder, cluster, **options), bars)
        table = Table("d", "model", "best setting", "loss", title="Best settings")
        for each in found:
            table.add_row(str(each.dim), each.setting.model, str(each.setting), shown(each))
        out.print(table)
        out.print(Text(f"results: {folder}"), soft_wrap=True)
    if all(each.failed for each in found):
        fail(EVERY_SETTING_FAILED)
