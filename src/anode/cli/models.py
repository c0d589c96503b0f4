"""One model: ``anode train`` and ``anode plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import anode
from anode.cli.console import Device, Root, friendly, out
from anode.cli.solver import with_solver_options
from anode.data.images import IMAGES
from anode.models.flow import PAPER

FAILURES_SHOWN = 10


@with_solver_options
def train(
    data: Annotated[
        str,
        typer.Argument(help=f"Points: {', '.join(anode.datasets.DATASETS)}; or images: {', '.join(IMAGES)}."),
    ],
    model: Annotated[str, typer.Option(help="node or resnet.")] = "node",
    augment: Annotated[int, typer.Option(help="Zeros appended to the input; 0 is the plain neural ODE.")] = 0,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers, for points.")] = 32,
    layers: Annotated[
        int | None, typer.Option(help="Hidden layers of the field (2), or layers of a ResNet (5).")
    ] = None,
    filters: Annotated[int, typer.Option(help="Channels of the hidden layers, for images.")] = 64,
    head_channels: Annotated[
        int | None, typer.Option(help="Channels of the features the linear layer sees.", show_default="all")
    ] = None,
    activation: Annotated[str, typer.Option(help="relu, softplus, tanh, silu or gelu.")] = "relu",
    time: Annotated[bool, typer.Option(help="Whether the field depends on time.")] = True,
    dim: Annotated[
        int | None, typer.Option(help="Dimension of the data, for g and separable.", show_default="2")
    ] = None,
    side: Annotated[
        int | None, typer.Option(help="Reduce images to this height and width.", show_default="as they are")
    ] = None,
    train_size: Annotated[int | None, typer.Option(help="Train on so many images.", show_default="all")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 50,
    minutes: Annotated[
        float | None, typer.Option(help="End after so much time; the same command goes on from there.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Points in an iteration.", show_default="64, of images 256, or all if there are fewer"),
    ] = None,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Adam's L2 penalty.")] = 0.0,
    loss: Annotated[
        str | None,
        typer.Option(help="huber, mse or cross_entropy.", show_default="huber; cross_entropy, always, for images"),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Fraction kept from training for validation; of images in place of the test images.")
    ] = 0.0,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Iterations between validations.", show_default="one an epoch")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="End after so many validations without a lower loss, with the best model.", show_default="never"
        ),
    ] = None,
    on_failure: Annotated[str, typer.Option(help="What to do when a solve fails: stop, skip or raise.")] = "stop",
    repeats: Annotated[int, typer.Option(help="Models trained together, from different seeds.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the data, the weights and the order of the data.")] = 0,
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
    **solver: Any,
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
    from anode.experiments.single import TrainOptions, train_single
    from anode.train.ranks import start

    arguments = {name: value for name, value in locals().items() if name in TrainOptions.__dataclass_fields__}
    with friendly("interrupted; nothing was begun"):
        single = TrainOptions(**{**arguments, "solver": PAPER.but(**solver)})
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
    if history.failures and on_failure == "stop":
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
