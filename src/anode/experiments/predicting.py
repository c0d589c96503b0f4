"""``anode predict``: predictions of a saved run for new data."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.checks import require
from anode.data.encoding import refuse_text
from anode.data.folders import pictures_in, read_picture
from anode.data.tables import Array, Table, table_of
from anode.data.targets import check_columns
from anode.data.waiting import patient_bar
from anode.experiments.descriptions import Description
from anode.experiments.judging import in_units, predictions
from anode.experiments.kinds import TABLE
from anode.experiments.material import read_patiently
from anode.experiments.single import Saved, load_saved
from anode.files import write_text

MOST_NAMES = 10
"""Number of ignored columns whose names are shown."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for rows or pictures.

    Attributes:
        values: Class names or numbers, of shape [rows].
        probabilities: Probability of each class, [rows, classes]; ``None`` if the model gives none.
    """

    values: Array
    probabilities: Array | None


@dataclass(frozen=True)
class Predictor:
    """A saved run that predicts. Read one with :meth:`load`.

    Attributes:
        model: The model.
        description: Description of the data that it was trained on.
        say: Called with each note about the new data, a line of text.
    """

    model: Any
    description: Description
    say: Callable[[str], None]

    @classmethod
    def load(cls, folder: str | Path, say: Callable[[str], None] = lambda line: None) -> Predictor:
        """Read the folder of a run."""
        run = load_saved(Path(folder))
        return cls(run.model, described_data(run), say)

    def predict(self, rows: Any) -> Array:
        """Return the predicted classes or numbers of new rows.

        Args:
            rows: A pandas data frame, or arrays by column name. It needs the columns that the model uses, in any order.
        """
        return self.of_table(table_of("rows", rows)).values

    def predict_proba(self, rows: Any) -> Array:
        """Return the probability of each class, [rows, classes], in the order of ``description.classes``.

        Raises:
            ValueError: The run was not trained with cross entropy.
        """
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
            others = [name for name in table.columns if name not in known and name not in table.kept]
            if others:
                shown = ", ".join(map(repr, others[:MOST_NAMES])) + (", ..." if len(others) > MOST_NAMES else "")
                self.say(f"{table.name}: the model does not use, and ignores: {shown}")
            for line in notes:
                self.say(f"{table.name}: {line}")
        else:
            require(isinstance(sizes.inputs, int), "data", table.name, "pictures, for a model of pictures")
            x = _plain(table, sizes.inputs)
        return self._of(torch.from_numpy(x))

    def of_pictures(self, paths: Sequence[Path]) -> Predictions:
        """Return predictions for pictures. They are resized to the size that the model takes."""
        shape = self.description.sizes.inputs
        takes = "a table, like the one that the model was trained on"
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


def described_data(run: Saved) -> Description:
    """Return the description of a run's data; raise ``ValueError`` if an earlier version wrote none."""
    if run.description is None:
        raise ValueError(f"{run.name}: has no data.json; run the command again that started the run, to write it")
    return run.description


def _plain(table: Table, width: int | tuple[int, ...]) -> Array:
    """Return the columns of a table of points, which must all be numbers."""
    columns = {name: column for name, column in table.columns.items() if name not in table.kept}
    require(len(columns) == width, table.name, len(columns), f"{width} columns of numbers")
    for name, column in columns.items():
        refuse_text(table, name, column)
        rows = np.flatnonzero(column.missing)
        if len(rows):
            raise ValueError(f"{table.where(rows[0])}, column {name!r}: takes a number, got none; remove the row")
        large = np.flatnonzero(np.abs(column.numbers) > np.finfo(np.float32).max)
        if len(large):
            what = f"takes a number near those of training, got {column.shown(large[0])}; correct it"
            raise ValueError(f"{table.where(large[0])}, column {name!r}: {what}")
    return np.stack([column.numbers for column in columns.values()], 1).astype(np.float32)


def predict_files(
    folder: Path, sources: Sequence[str], encoding: str | None, keep: Sequence[str], say: Callable[[str], None]
) -> str:
    """Return predictions for files as the text of a CSV file with a header.

    Args:
        folder: Folder of the run.
        sources: A table, or ``-`` for the standard input; or pictures and folders of pictures.
        encoding: Encoding of a CSV file.
        keep: Columns of the table to write before the predictions, as they are written there.
        say: Called with each note about the data, a line of text.
    """
    predictor = Predictor.load(folder, say)
    if isinstance(predictor.description.sizes.inputs, tuple):
        require(not keep, "keep", ", ".join(keep), "no columns for pictures, whose paths are written anyway")
        paths = given_pictures(sources)
        return as_csv(predictor.of_pictures(paths), predictor.description, {"file": list(map(str, paths))})
    require(len(sources) == 1, "data", ", ".join(sources), "one table")
    require(not Path(sources[0]).is_dir(), "data", sources[0], "a table, like the one that the model was trained on")
    table = read_patiently(sources[0], encoding, keep)
    check_columns(table, "keep", keep)
    kept = {name: table.kept[name] for name in keep}
    return as_csv(predictor.of_table(table), predictor.description, kept)


def given_pictures(sources: Sequence[str]) -> list[Path]:
    """Return the given pictures, and those in given folders, in order."""
    found: list[Path] = []
    for source in sources:
        path = Path(source)
        require(source != "-", "data", source, "pictures and folders of them, for a model of pictures")
        inside = pictures_in(path) if path.is_dir() else [path]
        require(len(inside) > 0, source, "none", "PNG or JPEG pictures in it")
        found += inside
    return found


def as_csv(found: Predictions, description: Description, before: Mapping[str, Sequence[str]]) -> str:
    """Return predictions as the text of a CSV file, with some columns before them."""
    probabilities = found.probabilities
    names = [] if probabilities is None else [f"p({name})" for name in description.classes]
    header = [*before, "prediction", *names]
    twice = next((name for name in before if header.count(name) > 1), None)
    require(twice is None, "keep", twice, "columns that the output does not have already; rename it in the table")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for i, value in enumerate(found.values.tolist()):
        row = [] if probabilities is None else [f"{each:.6g}" for each in probabilities[i]]
        shown = value if isinstance(value, str) else f"{value:.9g}"
        writer.writerow([*(column[i] for column in before.values()), shown, *row])
    return file.getvalue()


def write_predictions(text: str, path: Path, sources: Sequence[str]) -> None:
    """Write predictions to a file; raise ``ValueError`` if it is one of the sources."""
    same = any(Path(source).exists() and path.exists() and path.samefile(source) for source in sources)
    require(not same, "out", str(path), "another file than the one that is read")
    write_text(path, text)
