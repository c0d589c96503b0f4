"""Predictions of a saved run for new data: what ``anode predict`` does."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.checks import require
from anode.data.encoding import refuse_text
from anode.data.folders import SUFFIXES, read_picture
from anode.data.tables import Array, Table, table_of
from anode.data.waiting import patient_bar
from anode.experiments.descriptions import Description
from anode.experiments.judging import in_units, predictions
from anode.experiments.kinds import TABLE
from anode.experiments.material import read_patiently
from anode.experiments.single import Saved, load_saved
from anode.files import write_text


@dataclass(frozen=True)
class Predictions:
    """What a model makes of rows or pictures.

    Attributes:
        values: The class of each, as text, or the number.
        probabilities: That of each class, [rows, classes]; ``None`` if the model has none.
    """

    values: Array
    probabilities: Array | None


@dataclass(frozen=True)
class Predictor:
    """A saved run that predicts; read one with :meth:`load`.

    Attributes:
        model: The model.
        description: What it was trained on.
        say: Is told what there is to know about the new data, a line at a time.
    """

    model: Any
    description: Description
    say: Callable[[str], None]

    @classmethod
    def load(cls, folder: str | Path, say: Callable[[str], None] = lambda line: None) -> Predictor:
        """Read the folder of a run."""
        run = load_saved(Path(folder))
        return cls(run.model, description_of(run), say)

    def predict(self, rows: Any) -> Array:
        """Return the classes or numbers of new rows.

        Args:
            rows: A pandas data frame, or arrays by the name of their column, with the columns of the table that the
                model was trained on, in any order.
        """
        return self.of_table(table_of("rows", rows)).values

    def predict_proba(self, rows: Any) -> Array:
        """Return the probability of each class, [rows, classes], in the order of ``description.classes``."""
        found = self.of_table(table_of("rows", rows)).probabilities
        if found is None:
            raise ValueError("predict_proba: takes a run whose loss is cross_entropy; this one has no probabilities")
        return found

    def of_table(self, table: Table) -> Predictions:
        """Return predictions for the rows of a table."""
        sizes = self.description.sizes
        if self.description.kind == TABLE:
            encoding = self.description.encoding
            assert encoding is not None
            known = {column.name for column in encoding.columns} | encoding.left_out.keys()
            x, notes = encoding.encode(table)
            others = [name for name in table.columns if name not in known]
            if others:
                self.say(f"{table.name}: ignored, as the model does not use them: {', '.join(map(repr, others))}")
            for line in notes:
                self.say(f"{table.name}: {line}")
        else:
            require(isinstance(sizes.inputs, int), "data", table.name, "pictures, as the model was trained on images")
            x = _plain(table, sizes.inputs)
        return self._of(torch.from_numpy(x))

    def of_pictures(self, paths: Sequence[Path]) -> Predictions:
        """Return predictions for pictures, which are resized to what the model takes."""
        shape = self.description.sizes.inputs
        takes = "a table, as the model was trained on one"
        require(isinstance(shape, tuple), "data", str(paths[0]), takes)
        assert isinstance(shape, tuple)
        images = torch.empty((len(paths), *shape), dtype=torch.uint8)
        with patient_bar("reading pictures", len(paths)) as advance:
            for i, path in enumerate(paths):
                images[i] = read_picture(path, shape)
                advance(1)
        return self._of(images)

    def _of(self, x: Tensor) -> Predictions:
        parts = [part for part, _ in predictions(self.model, x)]
        found = torch.cat(parts)
        values = in_units(self.description, found).numpy()
        if not self.description.classes:
            return Predictions(values, None)
        has_probabilities = found.shape[1] == len(self.description.classes)
        names = np.array(self.description.classes, dtype=object)[values]
        return Predictions(names, found.softmax(1).numpy() if has_probabilities else None)


def description_of(run: Saved) -> Description:
    """What a run was trained on; ``ValueError`` if an earlier version did not say so."""
    if run.description is None:
        raise ValueError(f"{run.name}: has no data.json; the command that began the run writes it, run it again")
    return run.description


def _plain(table: Table, width: int | tuple[int, ...]) -> Array:
    """The columns of a table of points, all of them numbers."""
    require(len(table.columns) == width, table.name, f"{len(table.columns)}", f"{width} columns of numbers")
    for name, column in table.columns.items():
        refuse_text(table, name, column)
        rows = np.flatnonzero(column.missing)
        if len(rows):
            raise ValueError(f"{table.where(rows[0])}, column {name!r}: takes a number, got none; remove the line")
    return np.stack([column.numbers for column in table.columns.values()], 1).astype(np.float32)


def predict_files(folder: Path, sources: Sequence[str], encoding: str | None, say: Callable[[str], None]) -> str:
    """Return predictions for files as CSV: a line with names, and one for each row or picture.

    Args:
        folder: Of the run.
        sources: A table, or ``-`` for the standard input; or pictures and folders of them.
        encoding: That of a CSV file.
        say: Is told what there is to know, a line at a time.
    """
    predictor = Predictor.load(folder, say)
    paths = None
    if isinstance(predictor.description.sizes.inputs, tuple):
        paths = pictures_in(sources)
        found = predictor.of_pictures(paths)
    else:
        require(len(sources) == 1, "data", ", ".join(sources), "one table")
        require(not Path(sources[0]).is_dir(), "data", sources[0], "a table, as the model was trained on one")
        found = predictor.of_table(read_patiently(sources[0], encoding))
    return as_csv(found, predictor.description, paths)


def pictures_in(sources: Sequence[str]) -> list[Path]:
    """The pictures that are given, and those in folders that are given, in order."""
    found: list[Path] = []
    for source in sources:
        path = Path(source)
        require(source != "-", "data", source, "pictures and folders of pictures, as the model was trained on images")
        inside = (
            sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        )
        require(len(inside) > 0, source, "none", "PNG or JPEG pictures in it")
        found += inside
    return found


def as_csv(found: Predictions, description: Description, paths: Sequence[Path] | None) -> str:
    """Predictions as the text of a CSV file."""
    probabilities = found.probabilities
    names = [] if probabilities is None else [f"p({name})" for name in description.classes]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*([] if paths is None else ["file"]), "prediction", *names])
    for i, value in enumerate(found.values.tolist()):
        row = [] if probabilities is None else [f"{each:.6g}" for each in probabilities[i]]
        shown = value if isinstance(value, str) else f"{value:.9g}"
        writer.writerow([*([] if paths is None else [paths[i]]), shown, *row])
    return file.getvalue()


def write_predictions(text: str, path: Path, sources: Sequence[str]) -> None:
    """Write predictions to a file, which none of the sources may be."""
    same = any(Path(source).exists() and path.exists() and path.samefile(source) for source in sources)
    require(not same, "out", str(path), "another file than the one that is read")
    write_text(path, text)
