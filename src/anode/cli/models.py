"""Commands for one model: ``anode train``, ``anode plot``, ``anode check`` and ``anode export``."""

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
            help=f"Your own data: a table ({', '.join(SUFFIXES)}) with --target COLUMN, or a folder of images with one "
            f"subfolder per class. Built-in tables: {', '.join(BUILT_IN)}. Built-in points: "
            f"{', '.join(anode.datasets.DATASETS)}. Built-in images: {', '.join(IMAGES)}.",
        ),
    ],
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; run the same command again to continue.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the model and its history.",
            show_default="named after data and model, such as moons-anode5 or moons-node",
        ),
    ] = None,
    root: Root = None,
    device: Device = "cpu",
    **options: Any,
) -> None:
    """Train a model on a table, on images or on built-in data, and save it with its history.

    The model is an augmented neural ODE. Pass `--augment 0` for a plain neural ODE, or `--model resnet` for a ResNet.
    The command evaluates it on data that it was not trained on.

    A table is a CSV file whose first line has the column names, or a Parquet file. Numbers are scaled, text columns
    become categories, and missing values are filled in. Dates, identifiers and constant columns are dropped, and the
    command lists them. On tables and on your own images, training stops when the validation loss no longer improves.

    Writes a folder for `anode predict`, `anode show`, `anode plot`, `anode check` and `anode export`. Ctrl-C stops
    training early and saves the model, and so do SIGTERM and SIGHUP, which cluster schedulers and closed terminals
    send. To continue, run the same command again, with more `--epochs` if you like; this also works after the process
    was killed. The exit code is 1 if training stopped because a solve failed, and 128 plus the number of such a signal.

    **Examples**

    - `anode train moons` and then `anode show moons-anode5`
    - `anode train flowers.csv --target species` and then `anode predict flowers-anode5 new.csv --out predictions.csv`
    - `anode train pictures/ --side 32`
    - `anode train g --augment 5 --epochs 20 --out run` and then `anode plot run`
    - `anode train mnist --minutes 60 --out mnist`
    - `torchrun --nproc-per-node 2 -m anode train mnist --out mnist` for two processes, each with half of every batch
    """
    from anode.experiments.runs import Place
    from anode.experiments.show_words import summary
    from anode.experiments.single import UNFINISHED, load_saved, train_single
    from anode.train.ranks import start

    with friendly("interrupted before training started"):
        solver = PAPER.but(**{name: options.pop(name) for name in SETTINGS})
        single = TrainOptions(data, **options, solver=solver)
        single.check()
    folder = Path(single.name) if folder is None else folder
    with friendly(f"interrupted; anything saved so far is in {folder}"), start() as rank:
        history = train_single(single, folder, minutes, Place(root, device), say if rank == 0 else None)
        if rank != 0:
            return
        for line in summary(load_saved(folder)):
            say(line)
        for failure in history.failures[:FAILURES_SHOWN]:
            out.print(Text(f"failed: repeat {failure.member}, iteration {failure.iteration}: {failure.reason}"))
        if len(history.failures) > FAILURES_SHOWN:
            out.print(Text(f"and {len(history.failures) - FAILURES_SHOWN} more failures; see history.json"))
        say(f"saved: {folder}{'; run the same command again to continue' if history.stopped in UNFINISHED else ''}")
    if history.failures and single.on_failure == "stop":
        raise typer.Exit(1)


def plot(
    folders: Annotated[list[Path], typer.Argument(help="Folders written by anode train.")],
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .png, .svg or .pdf.", show_default="plot.png in the first folder"),
    ] = None,
    reference: Annotated[
        float | None, typer.Option(help="Accuracy in percent to draw for comparison, such as the paper's.")
    ] = None,
) -> None:
    """Plot saved runs: loss, function evaluations and accuracy together, and the flows of runs on points."""
    from anode.experiments.pictures import draw_saved

    with friendly("interrupted; nothing was written"):
        out.print(Text(f"picture: {draw_saved(folders, picture, reference)}"), soft_wrap=True)


def check(
    folder: Annotated[Path, typer.Argument(help="A folder written by anode train.")],
    bound: Annotated[float, typer.Option(help="Largest relative reconstruction error that passes.")] = BOUND,
    points: Annotated[int, typer.Option(help="Maximum number of points or images to solve for.")] = CHECKED_POINTS,
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .png, .svg or .pdf.", show_default="certificate.png in the folder"),
    ] = None,
    root: Root = None,
) -> None:
    """Find the loosest tolerance at which a saved model is solved accurately enough.

    Solves the flow forward and back, from loose tolerances to tight ones, until it recovers the inputs. The inputs are
    the validation points or test images of the run; if it has none, they are training points. Prints a table and plots
    it. The exit code is 1 if no tolerance passes.

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
    folder: Annotated[Path, typer.Argument(help="A folder written by anode train.")],
    file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .onnx, or .pt2 for torch.", show_default="model.onnx in the folder"),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest prediction error, as a fraction of the largest prediction.")
    ] = 1e-3,
    points: Annotated[int, typer.Option(help="Maximum number of points or images to measure the error on.")] = 256,
    root: Root = None,
) -> None:
    """Export a saved model to a file that runs without anode.

    The adaptive solve becomes a fixed number of equal steps: the fewest that keep the prediction error within the
    tolerance. The file's metadata holds that number and the measured error. `onnxruntime`, or any other program that
    reads ONNX, can run the file.

    The file includes the encoding of a table: it takes one number per column, and gives classes and probabilities, or
    values. The command prints the columns in their order, and the file's metadata hold them too.

    **Examples**

    - `anode train g --augment 1 --epochs 20 --out run` and then `anode export run --out g.onnx`
    - `anode train flowers.csv --target species` and then `anode export flowers-anode5 --out flowers.onnx`
    """
    from anode.experiments.exporting import export_saved

    with friendly("interrupted; nothing was written"):
        say(str(export_saved(folder, file or folder / "model.onnx", tolerance, points, root)))
