"""What can be done with a trained model: ``anode predict`` and ``anode show``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from anode.cli.console import err, friendly, say

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that anode train wrote.")]


def predict(
    folder: Folder,
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="A table, or - for CSV from the standard input; or pictures and folders."),
    ],
    target: Annotated[
        str, typer.Option("--out", help="The CSV file to write, or - for the standard output.", metavar="FILE")
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
        str | None, typer.Option(help="Encoding of a CSV file, such as latin-1.", show_default="utf-8")
    ] = None,
) -> None:
    """Predict the classes or numbers of new rows or pictures.

    Writes a CSV file with one line per row or picture, in the same order. The column `prediction` holds the class or
    the number. For classes, a column `p(CLASS)` holds the probability of each. The columns of a table may have any
    order, and columns that the model does not use are ignored. Notes about the data go to the standard error.

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
            sys.stdout.write(text)
        else:
            write_predictions(text, Path(target), data)
            say(f"predictions: {target}")


def show(
    folder: Folder,
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="The picture: .png, .svg or .pdf.", show_default="show.png, in the folder"),
    ] = None,
) -> None:
    """Say what a model was trained on, how good it is and what it costs; draw its curves and its flow.

    The picture has the loss, the evaluations of the field, the confusion matrix, or predicted against true numbers, and
    the flow in the plane of its two principal components.

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
