"""The paper again: ``anode reproduce``, ``anode report`` and ``anode search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from anode.cli.console import Cluster, Device, Root, fail, friendly, out

EVERY_SETTING_FAILED = "training failed with every setting; try lower learning rates"
EVERY_RUN_FAILED = "training failed in every repeat of every run, for the reasons listed above"
COLORS = {"held": "green", "not held": "red", "inconclusive": "yellow"}


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(help="toy, images or beyond, for all of it; or figures such as fig07, table1 or family."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Of images: smoke (a minute), small (hours) or paper.", show_default="small")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="How often every run is done, from different seeds; a claim takes at least 5.",
            show_default="20, and 5 for images",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where the results go.", show_default="results/mine/ and toy, images or beyond"),
    ] = None,
    root: Root = None,
    seed: Annotated[int, typer.Option(help="The first seed; the repeats take those that follow.")] = 0,
    resume: Annotated[bool, typer.Option(help="Use runs that are in the folder; or do them again.")] = True,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time.", show_default="one a processor, or one on a GPU")
    ] = None,
    device: Device = "cpu",
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Of images: passes over every dataset; not of the models that are to overfit.",
            show_default="as the scale says",
        ),
    ] = None,
    cluster: Cluster = None,
) -> None:
    """Re-run the paper: train, draw its figures, check its claims, write a report.

    Runs that several figures need are trained once. Started again, it goes on where it was interrupted. The exit code
    is 1 if training failed in every repeat of every run.

    **Examples**

    - `anode reproduce` for all toy experiments, as often as the paper did them
    - `anode reproduce fig07 fig08 --repeats 5 --out quick`
    - `anode reproduce beyond` for what the paper leaves open: other augmentations, densities, regularisers
    - `anode reproduce images --scale small`, which needs MNIST, CIFAR-10, SVHN and Tiny ImageNet: see `anode data`
    """
    import torch

    from anode.experiments.reproduce import Settings, planned, reproduce
    from anode.train.progress import Bars

    torch.set_num_threads(1)  # the networks are too small to gain from more; runs are done side by side instead
    with friendly("interrupted; nothing was begun"):
        chosen = figures or ("toy",)
        work = planned(Settings(chosen, folder, repeats, scale, seed, resume, jobs, root, device, epochs, cluster))
    with friendly(f"interrupted; what was finished is kept in {work.out}, and the same command goes on from there"):
        with Bars() as bars:
            content, failed = reproduce(work, bars)
        out.print(claims_table(content["claims"]))
        for failure in content["failures"]:
            where = f"{failure['run']}, repeat {failure['repeat']}, from iteration {failure['first']} on"
            out.print(Text(f"failed: {where}, {failure['times']} times: {failure['reason']}"), soft_wrap=True)
        out.print(Text(f"report: {work.out / 'report.html'}"), soft_wrap=True)
    if failed:
        fail(EVERY_RUN_FAILED)


def claims_table(claims: list[dict[str, Any]]) -> Table:
    """The claims and what was found."""
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
    folder: Annotated[Path, typer.Argument(help="A folder that anode reproduce wrote.")] = Path("results/mine/toy"),
) -> None:
    """Write the report of results again; of the image half, also while they are not finished."""
    from anode.experiments.unfinished import report_again

    with friendly("interrupted"):
        out.print(Text(f"report: {report_again(folder)}"), soft_wrap=True)


def search(
    models: Annotated[list[str] | None, typer.Argument(help="ResNet, NODE, ANODE.", show_default="all three")] = None,
    dims: Annotated[list[int], typer.Option("--dim", help="Dimensions of the data; may be given again.")] = [1, 2],  # noqa: B006
    data: Annotated[str, typer.Option(help="g or separable.")] = "g",
    grid: Annotated[
        Path | None, typer.Option(help="A JSON file of other values to try.", show_default="the paper's grids")
    ] = None,
    folds: Annotated[int, typer.Option(help="Of the cross-validation.")] = 3,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 50,
    repeats: Annotated[int, typer.Option(help="From how many seeds every setting is judged.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed; of tpe's choices too, unless it has a --storage.")] = 0,
    sampler: Annotated[
        str, typer.Option(help="grid, for every setting; or tpe, for Optuna to choose within the grid's limits.")
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option(help="Of tpe: how many a model and dimension, by all processes.", show_default="50")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Of tpe: sqlite:///FILE, journal:FILE, or a database's address, such as postgresql://HOST/NAME.",
            show_default="a file in the folder of the results",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("results/mine/search"),
    jobs: Annotated[int | None, typer.Option(help="Of grid: runs at a time.", show_default="one a processor")] = None,
    cluster: Cluster = None,
) -> None:
    """Search for the best hyperparameters, as the paper did: cross-validation of every setting of a grid.

    Settings of one shape are trained together as one program. Writes `search.json`, `search.md` and a picture for each
    dimension (with `--sampler tpe`: `tpe.json` and so on). Started again, it goes on where it was interrupted; with
    `--sampler tpe`, any number of processes on any number of machines that are given one `--storage` share the work.
    The exit code is 1 if training failed with every setting.

    **Examples**

    - `anode search` for the paper's 84 settings in one and two dimensions
    - `anode search ANODE --dim 2 --epochs 10 --out quick`
    - `anode search ANODE --dim 2 --sampler tpe --trials 100 --storage sqlite:///anode.db`
    """
    import torch

    from anode.experiments.search.command import Search, run_search
    from anode.experiments.search.grid import shown
    from anode.train.progress import Bars

    torch.set_num_threads(1)  # the networks are too small to gain from more; runs are done side by side instead
    arguments = {name: value for name, value in locals().items() if name in Search.__dataclass_fields__}
    with friendly(f"interrupted; what was finished is kept, and the same command goes on from there ({folder})"):
        with Bars() as bars:
            found = run_search(Search(**arguments), bars)
        table = Table("d", "model", "best setting", "loss", title="The best settings")
        for each in found:
            table.add_row(str(each.dim), each.setting.model, str(each.setting), shown(each))
        out.print(table)
        out.print(Text(f"results: {folder}"), soft_wrap=True)
    if all(each.failed for each in found):
        fail(EVERY_SETTING_FAILED)
