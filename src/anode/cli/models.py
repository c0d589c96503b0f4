"""One model: ``anode train``, ``anode plot``, ``anode check`` and ``anode export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import anode
from anode.cli.console import Device, Root, friendly, out, say
from anode.cli.solver import field_options, solver_options, with_options
from anode.data.images import IMAGES
from anode.data.table_files import BUILT_IN, SUFFIXES
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
        typer.Argument(
            metavar="DATA",
            help=f"Your own data: a table ({', '.join(SUFFIXES)}) with --target COLUMN, or a folder of pictures with a "
            f"folder for each class. Or built-in tables: {', '.join(BUILT_IN)}; points: "
            f"{', '.join(anode.datasets.DATASETS)}; images: {', '.join(IMAGES)}.",
        ),
    ],
    minutes: Annotated[
        float | None, typer.Option(help="End after so much time; the same command goes on from there.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A folder for model and history.",
            show_default="named after data and model, such as moons-anode5 or moons-node",
        ),
    ] = None,
    root: Root = None,
    device: Device = "cpu",
    **options: Any,
) -> None:
    """Train a model on a table, on pictures or on built-in data; save the model and what happened.

    The model is an augmented neural ODE, unless you pass `--augment 0` or `--model resnet`. It is judged by data that
    it was not trained on.

    A table is a CSV or Parquet file whose first line has the names of its columns. Numbers are scaled, texts become
    categories, missing values are filled in. Dates, identifiers and columns that never change are left out, and named.
    Training stops early, when rows kept for validation are no longer predicted better.

    Writes a folder that `anode predict`, `anode show`, `anode plot` and `anode check` read. Ctrl-C ends training early
    and saves what there is. The same command goes on from there, also after the process was killed, and more `--epochs`
    may be asked for. The exit code is 1 if a solve failed and training ended there.

    **Examples**

    - `anode train moons` and then `anode show moons-anode5`
    - `anode train flowers.csv --target species` and then `anode predict flowers-anode5 new.csv --out predictions.csv`
    - `anode train pictures/ --side 32`
    - `anode train g --augment 5 --epochs 20 --out run` and then `anode plot run`
    - `anode train mnist --minutes 60 --out mnist`
    - `torchrun --nproc-per-node 2 -m anode train mnist --out mnist` for two processes, each half a batch
    """
    from anode.experiments.runs import Place
    from anode.experiments.show_words import summary
    from anode.experiments.single import UNFINISHED, load_saved, train_single
    from anode.train.ranks import start

    with friendly("interrupted; nothing was begun"):
        solver = PAPER.but(**{name: options.pop(name) for name in SETTINGS})
        single = TrainOptions(data, **options, solver=solver)
        single.check()
    folder = Path(single.name) if folder is None else folder
    with friendly(f"interrupted; what was kept of it, if anything, is in {folder}"), start() as rank:
        history = train_single(single, folder, minutes, Place(root, device), say if rank == 0 else None)
        if rank != 0:
            return
        for line in summary(load_saved(folder)):
            say(line)
        for failure in history.failures[:FAILURES_SHOWN]:
            out.print(Text(f"failed: repeat {failure.member}, iteration {failure.iteration}: {failure.reason}"))
        if len(history.failures) > FAILURES_SHOWN:
            out.print(Text(f"and {len(history.failures) - FAILURES_SHOWN} more failures, see history.json"))
        say(f"saved: {folder}{'; the same command goes on from there' if history.stopped in UNFINISHED else ''}")
    if history.failures and single.on_failure == "stop":
        raise typer.Exit(1)


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


def export(
    folder: Annotated[Path, typer.Argument(help="A folder that anode train wrote.")],
    file: Annotated[
        Path | None,
        typer.Option("--out", help="The file: .onnx, or .pt2 for torch.", show_default="model.onnx, in the folder"),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="The largest error of a prediction, as a fraction of the largest prediction.")
    ] = 1e-3,
    points: Annotated[int, typer.Option(help="On how many points or images to measure the error, at most.")] = 256,
    root: Root = None,
) -> None:
    """Write a saved model as a file that runs without anode.

    The adaptive solve becomes a fixed number of equal steps: the fewest that keep the predictions within the tolerance.
    The file's metadata state the number and the error. `onnxruntime`, or any other program that reads ONNX, runs it.

    The file includes the encoding of a table: it takes one number per column, and gives classes and probabilities, or
    values. The command prints the columns in their order, and the file's metadata hold them too.

    **Examples**

    - `anode train g --augment 1 --epochs 20 --out run` and then `anode export run --out g.onnx`
    - `anode train flowers.csv --target species` and then `anode export flowers-anode5 --out flowers.onnx`
    """
    from anode.experiments.exporting import export_saved

    with friendly("interrupted; nothing was written"):
        say(str(export_saved(folder, file or folder / "model.onnx", tolerance, points, root)))
