"""``anode export``: a saved run as a file that runs without anode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.checks import number, require
from anode.data.encoding import Category, Encoding, Number
from anode.experiments.checking import inputs_of
from anode.experiments.descriptions import Description
from anode.experiments.kinds import POINTS
from anode.experiments.predicting import described_data
from anode.experiments.single import Saved, load_saved
from anode.exporting.export import Exported, Graph, export, graph_of, two_of
from anode.exporting.formats import WRITERS

SHOWN = 20
"""Number of columns and categories that are printed."""


def export_saved(folder: Path, path: Path, tolerance: float, points: int, root: Path | None) -> Exported:
    """Export the model of a run; of several repeats, the first.

    Args:
        folder: Folder of the run.
        path: The file to write.
        tolerance: Largest error of a prediction, as a fraction of the largest prediction.
        points: Largest number of the run's points or images on which the error is measured.
        root: Where datasets are stored.
    """
    number("points", points, whole=True)
    require(path.suffix in WRITERS, "out", str(path), f"a file that ends in one of {', '.join(WRITERS)}")
    run = load_saved(folder)
    x = inputs_of(run, points, root)
    x = x if run.repeats.members is None else x[0]
    with torch.no_grad():
        plain = run.description is None or run.description.kind == POINTS
        return export(run.model if plain else run, path, x, tolerance=tolerance)


@graph_of.register
def _(run: Saved, x: Any) -> Graph:
    """Columns or pixels in; classes and probabilities, or values, out."""
    found = described_data(run)
    finish = _classify if found.classes else _in_units(found)
    encode = None if found.encoding is None else Columns(found.encoding)
    columns = () if found.encoding is None else found.encoding.columns
    return Graph(
        model=run.model,
        around=lambda model: Around(model, encode, finish),
        data=x,
        inputs=torch.zeros(2, len(columns)) if columns else two_of(x),
        outputs=("label", "probabilities") if found.classes else ("value",),
        labels=found.classes,
        notes={"columns": json.dumps([_described(column) for column in columns])} if columns else {},
        about=tuple(in_words(found)),
    )


def _classify(scores: Tensor) -> tuple[Tensor, Tensor]:
    return scores.argmax(-1), scores.softmax(-1)


def _in_units(found: Description) -> Callable[[Tensor], Tensor]:
    assert found.target is not None
    mean, scale = found.target.mean, found.target.scale
    return lambda prediction: prediction[:, 0] * scale + mean


class Around(nn.Module):
    """A model with the encoding of its inputs before it, and the meaning of its outputs after it.

    Args:
        model: The model.
        encode: Maps the file's inputs to those of the model; ``None`` if they are the same.
        finish: Maps the model's output to the file's outputs.
    """

    def __init__(self, model: nn.Module, encode: nn.Module | None, finish: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model, self.encode, self.finish = model, encode, finish

    def forward(self, x: Tensor) -> Any:
        """Return the outputs of the file."""
        return self.finish(self.model(x if self.encode is None else self.encode(x)))


class Columns(nn.Module):
    """The encoding of a table as operations on numbers: :meth:`Encoding.encode` for an exported graph.

    The input has one value per column: a number, or the index of a category. NaN is a missing value. An index that no
    category has is an unknown category.

    Args:
        encoding: The encoding.
    """

    source: Tensor
    is_number: Tensor
    is_mark: Tensor
    values: Tensor

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        rows: list[tuple[int, bool, bool, float, float, float]] = []  # one per encoded value
        for i, column in enumerate(encoding.columns):
            if isinstance(column, Number):
                rows.append((i, True, False, column.fill, column.mean, column.scale))
            else:
                rows += [(i, False, False, 0.0, float(code), 1.0) for code in range(len(column.categories))]
            if column.marked:
                rows.append((i, False, True, 0.0, 0.0, 1.0))
        self.register_buffer("source", torch.tensor([row[0] for row in rows]))
        self.register_buffer("is_number", torch.tensor([row[1] for row in rows]))
        self.register_buffer("is_mark", torch.tensor([row[2] for row in rows]))
        self.register_buffer("values", torch.tensor(np.array([row[3:] for row in rows]).T, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return encoded rows, [rows, values]."""
        fill, offset, scale = self.values
        given = x[:, self.source]
        missing = given.isnan()
        scaled = (torch.where(missing, fill, given) - offset) / scale
        category = (given == offset).to(x.dtype)
        return torch.where(self.is_number, scaled, torch.where(self.is_mark, missing.to(x.dtype), category))


def _described(column: Number | Category) -> dict[str, Any]:
    """Return what the file's metadata says about a column."""
    if isinstance(column, Number):
        return {"name": column.name, "kind": "number"}
    return {"name": column.name, "kind": "category", "categories": column.categories}


def in_words(found: Description) -> list[str]:
    """Return the inputs and outputs of the file as lines."""
    sizes, encoding = found.sizes, found.encoding
    if isinstance(sizes.inputs, tuple):
        lines = [f"input x: float32 [rows, {', '.join(map(str, sizes.inputs))}], pixels from 0 to 1"]
    else:
        assert encoding is not None
        columns = [f"  {i}: {_in_a_line(column)}" for i, column in enumerate(encoding.columns[:SHOWN])]
        if len(encoding.columns) > SHOWN:
            columns.append(f"  and {len(encoding.columns) - SHOWN:,} more, see anode.columns in the metadata")
        lines = [f"input x: float32 [rows, {len(encoding.columns)}], NaN for a missing value, the columns:", *columns]
    if not found.classes:
        return [*lines, "output value: float32 [rows]"]
    shown = ", ".join(found.classes[:SHOWN]) + (", ..." if len(found.classes) > SHOWN else "")
    return [*lines, f"outputs label: [rows]; probabilities: float32 [rows, {len(found.classes)}] of {shown}"]


def _in_a_line(column: Number | Category) -> str:
    if isinstance(column, Number):
        return f"{column.name}, a number"
    shown = ", ".join(f"{code} = {name}" for code, name in enumerate(column.categories[:SHOWN]))
    more = ", ..." if len(column.categories) > SHOWN else ""
    return f"{column.name}, a category: {shown}{more}; another number if it is unknown"
