"""One model: ``anode train``, ``anode plot`` and ``anode check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import anode
from anode.cli.console import Device, Root, friendly, out
from anode.cli.solver import field_options, solver_options, with_options
from anode.data.images import IMAGES
from anode.experiments.options import TrainOptions
from anode.models.certify import BOUND
from anode.models.flow import PAPER
from anode.ode.solver import SETTINGS
from anode.train.evaluation import CHECKED_POINTS

FAILURES_SHOWN = 10


@with_options([*field_options(TrainOptions), *solver_options()])
def train(
    data: Annotated[
        str,
        typer.Argument(help=f"Points: {', '.join(anode.datasets.DATASETS)}; or images: {', '.join(IMAGES)}."),
    ],
    minutes: Annotated[
        float | None, typer.Option(help="End after so much time; the same command goes on from there.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A folder for model and history.",
            show_default="named after data and model, such as moons-node or moons-anode5",
        ),
    ] = None,
    root: Root = None,
    device: Device = "cpu",
    **options: Any,
) -> None:
    """Train a model on a dataset; save the model and what happened.

    Writes `model.json`, `model.safetensors`, `history.json`, `history.csv` and `run.json`, which `anode plot` reads,
    and the state of training on the way. Ctrl-C ends training early and saves what there is; the same command goes on
    from there, also after the process was killed, and more `--epochs` may be asked for. The exit code is 1 if a solve
    failed and training ended there.

    **Examples**

    - `anode train g --augment 5 --epochs 20 --out run` and then `anode plot run`
    - `anode train mnist --augment 5 --minutes 60 --out mnist`
    - `torchrun --nproc-per-node 2 -m anode train mnist --augment 5 --out mnist` for two processes, each half a batch
    """
    from anode.experiments.runs import Place
    from anode.experiments.single import train_single
    from anode.train.ranks import start

    with friendly("interrupted; nothing was begun"):
        solver = PAPER.but(**{name: options.pop(name) for name in SETTINGS})
        single = TrainOptions(data, **options, solver=solver)
        single.check()
    folder = Path(single.name) if folder is None else folder
    with friendly(f"interrupted; what was kept of it, if anything, is in {folder}"), start() as rank:
        history = train_single(single, folder, minutes, Place(root, device))
        if rank != 0:
            return
        out.print(Text(f"{described(single)}\n{history!r}"), soft_wrap=True)
        for failure in history.failures[:FAILURES_SHOWN]:
            out.print(Text(f"failed: repeat {failure.member}, iteration {failure.iteration}: {failure.reason}"))
        if len(history.failures) > FAILURES_SHOWN:
            out.print(Text(f"and {len(history.failures) - FAILURES_SHOWN} more failures, see history.json"))
        out.print(Text(f"saved: {folder}"), soft_wrap=True)
    if history.failures and single.on_failure == "stop":
        raise typer.Exit(1)


def described(single: Any) -> str:
    """The model that is trained, in a line."""
    model = single.build()
    count = sum(p.numel() for p in model.parameters())
    name = "ResNet" if single.model == "resnet" else "ANODE" if single.augment else "NODE"
    line = f"{name} on {single.data}: {count:,} parameters"
    if not single.is_image:
        return line
    of_time = sum(p.numel() for p in model.flow.field.time_weights)
    return f"{line}, {count - of_time:,} without time" if of_time else f"{line}, time not used"


def plot(
    folders: Annotated[list[Path], typer.Argument(help="Folders that anode train wrote.")],
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="The picture: .png, .svg or .pdf.", show_default="plot.png, in the first"),
    ] = None,
    reference: Annotated[
        float | None, typer.Option(help="An accuracy to compare with, in percent, such as the paper's.")
    ] = None,
) -> None:
    """Draw saved runs: loss, function evaluations and accuracy of all of them, and the flow each has learned."""
    from anode.experiments.pictures import draw_saved

    with friendly("interrupted; nothing was written"):
        out.print(Text(f"picture: {draw_saved(folders, picture, reference)}"), soft_wrap=True)


def check(
    folder: Annotated[Path, typer.Argument(help="A folder that anode train wrote.")],
    bound: Annotated[float, typer.Option(help="The largest reconstruction error that passes, as a fraction.")] = BOUND,
    points: Annotated[int, typer.Option(help="How many points or images to solve for, at most.")] = CHECKED_POINTS,
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="The picture: .png, .svg or .pdf.", show_default="certificate.png, in the folder"),
    ] = None,
    root: Root = None,
) -> None:
    """Find the tolerance that a saved model needs.

    Solves its flow forward and back, from loose tolerances to tight ones, until the inputs come out again. The inputs
    are the validation points or test images of the run, or else points it was trained on. Prints a table and draws it.
    The exit code is 1 if no tolerance passes.

    **Example**

    - `anode train g --augment 1 --epochs 20 --out run` and then `anode check run`
    """
    from anode.experiments.checking import check_saved

    with friendly("interrupted; nothing was written"):
        found = check_saved(folder, bound, points, picture, root)
        out.print(Text(f"{found.certificate}\n{found.trained}\npicture: {found.picture}"), soft_wrap=True)
    if not found.certificate.passes:
        raise typer.Exit(1)
