"""Commands that use a trained model: ``anode predict`` and ``anode show``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from anode.checks import require
from anode.cli.console import err, friendly, say, write_out

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder written by anode train.")]


def predict(
    folder: Folder,
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="A table, - for CSV from standard input, or image files and folders."),
    ],
    target: Annotated[
        str, typer.Option("--out", help="CSV file to write, or - for standard output.", metavar="FILE")
    ] = "-",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Tables: a column to copy before the predictions, such as an identifier. May be repeated.",
            metavar="COLUMN",
            show_default="none",
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Text encoding of the CSV file, such as latin-1.", show_default="utf-8")
    ] = None,
) -> None:
    """Predict classes or numbers for new rows or images.

    Writes a CSV file with one line per row or image, in the same order. The column `prediction` has the class or the
    number. For classes, a column `p(CLASS)` per class has its probability. The columns of a table may have any order,
    and columns that the model does not use are ignored. Messages about the data go to standard error.

    **Examples**

    - `anode predict flowers-anode5 new.csv --out predictions.csv`
    - `anode predict flowers-anode5 new.csv --keep id --out predictions.csv`
    - `anode predict pictures-anode5 new/ photo.jpg`
    - `cat new.csv | anode predict flowers-anode5 - | head`
    """
    from anode.experiments.predicting import predict_files, write_predictions

    with friendly("interrupted; nothing was written"):
        text = predict_files(folder, data, encoding, keep or [], lambda line: err.print(Text(line), soft_wrap=True))
        if target == "-":
            require(sys.stdout is not None, "out", target, "a file, because the standard output is closed")
            write_out(text)
        else:
            write_predictions(text, Path(target), data)
            say(f"predictions: {target}")


def show(
    folder: Folder,
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="File to write: .png, .svg or .pdf.", show_default="show.png in the folder"),
    ] = None,
) -> None:
    """Show what a model was trained on, how good it is and what it costs, and plot its curves and its flow.

    The figure shows the loss, the function evaluations, the flow in the plane of its two principal components, and the
    confusion matrix. For numbers, it shows predicted against true values instead of the confusion matrix.

    **Example**

    - `anode train iris` and then `anode show iris-anode5`
    """
    from anode.experiments.show_picture import draw_shown
    from anode.experiments.show_words import details
    from anode.experiments.single import load_saved

    with friendly("interrupted; nothing was written"):
        run = load_saved(folder)
        lines = details(run)
        made = draw_shown(run, picture)
        for line in [*lines, "", f"picture: {made}"]:
            say(line)
