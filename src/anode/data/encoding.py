"""From the columns of a table to the numbers that a model is given, and the description of how."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anode.checks import nearest
from anode.data.tables import NUMBER, Array, Column, Table

MOST_CATEGORIES = 100
"""Texts that are different from each other, above which a column is no category."""


@dataclass(frozen=True)
class Number:
    """A column of numbers: scaled to mean 0 and variance 1.

    Attributes:
        name: That of the column.
        fill: The median, which takes the place of missing values.
        mean, scale: What is subtracted, and what is then divided by.
        marked: Whether a second number says where a value was missing.
    """

    name: str
    fill: float
    mean: float
    scale: float
    marked: bool

    @classmethod
    def learn(cls, name: str, column: Column) -> Number:
        """Return the description of a column, from the rows to train on."""
        there = column.numbers[column.codes == NUMBER]
        if not len(there):
            return cls(name, 0.0, 0.0, 1.0, False)
        median = float(np.median(there))
        filled = np.where(column.codes == NUMBER, column.numbers, median)
        mean, deviation = float(filled.mean()), float(filled.std())
        return cls(name, median, mean, deviation if deviation > 0 else 1.0, bool(column.missing.any()))

    @property
    def width(self) -> int:
        """How many numbers a row has of it."""
        return 1 + self.marked

    def encode(self, table: Table, column: Column) -> tuple[Array, str]:
        """Return the numbers of all rows, [rows, width], and what there is to say."""
        refuse_text(table, self.name, column)
        missing = column.missing
        scaled = (np.where(missing, self.fill, column.numbers) - self.mean) / self.scale
        unseen = int(missing.sum()) if not self.marked else 0
        said = f"column {self.name!r}: the median, {self.fill:g}, takes the place of {unseen} missing values"
        return np.stack([scaled, missing][: self.width], 1), said if unseen else ""


@dataclass(frozen=True)
class Category:
    """A column of texts, of which few are different: one number for each, 0 or 1.

    Attributes:
        name: That of the column.
        categories: The different texts.
        marked: Whether a further number says where a value was missing.
    """

    name: str
    categories: tuple[str, ...]
    marked: bool

    @classmethod
    def learn(cls, name: str, column: Column) -> Category:
        """Return the description of a column, from the rows to train on."""
        return cls(name, column.labels[1], bool(column.missing.any()))

    @property
    def width(self) -> int:
        """How many numbers a row has of it."""
        return len(self.categories) + self.marked

    def encode(self, table: Table, column: Column) -> tuple[Array, str]:
        """Return the numbers of all rows, [rows, width], and what there is to say."""
        codes, names = column.labels
        known = {name: number for number, name in enumerate(self.categories)}
        places = np.array([*(known.get(name, -1) for name in names), -1])  # the last is for missing values
        found = np.zeros((len(codes), self.width))
        rows = np.arange(len(codes))
        found[rows[places[codes] >= 0], places[codes][places[codes] >= 0]] = 1
        if self.marked:
            found[codes < 0, -1] = 1
        unknown = [name for name in names if name not in known]
        count = int(((codes >= 0) & (places[codes] < 0)).sum())
        shown = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        values = "1 value was" if count == 1 else f"{count:,} values were"
        said = f"column {self.name!r}: {values} not seen in training and set to no category: {shown}"
        return found, said if unknown else ""


Encoded = Number | Category
KINDS: dict[str, type[Encoded]] = {"number": Number, "category": Category}


@dataclass(frozen=True)
class Encoding:
    """How rows become numbers.

    Attributes:
        columns: Those that are used, in order.
        left_out: The names of the others, and why each is left out.
    """

    columns: tuple[Encoded, ...]
    left_out: dict[str, str]

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(column.width for column in self.columns)

    def encode(self, table: Table) -> tuple[Array, list[str]]:
        """Return float32 of shape [rows, width], and what there is to say about it.

        Columns may have any order. Those that are not used may be missing, and others may be there.
        """
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            hint = nearest(absent[0], table.columns) if len(absent) == 1 else ""
            names = ", ".join(map(repr, absent))
            raise ValueError(f"{table.name}: has no column {names}, which the model was trained with{hint}")
        parts = [column.encode(table, table.columns[column.name]) for column in self.columns]
        joined: Array = np.concatenate([values for values, _ in parts], 1, dtype=np.float32)
        return joined, [said for _, said in parts if said]

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON has it."""
        names = {kind: name for name, kind in KINDS.items()}
        columns = [{"kind": names[type(column)], **asdict(column)} for column in self.columns]
        return {"columns": columns, "left_out": self.left_out}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Encoding:
        """Return the encoding that :meth:`to_json` described; ``ValueError`` if that is none."""
        return cls(tuple(_column(each) for each in content["columns"]), dict(content["left_out"]))


def _column(content: dict[str, Any]) -> Encoded:
    given = dict(content)
    kind = KINDS[given.pop("kind")]
    if kind is Category:
        given["categories"] = tuple(map(str, given["categories"]))
    made = kind(**given)
    if isinstance(made, Number) and not (np.isfinite([made.fill, made.mean, made.scale]).all() and made.scale > 0):
        raise ValueError(f"its column {made.name!r} has no scale")
    return made


def choose(
    table: Table, without: Collection[str], categories: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Decide how each column of a table is used, from what is in it.

    Args:
        table: The table.
        without: Columns that are not for the model: the target, and those that the user leaves out.
        categories: Columns that are categories whatever they hold.

    Returns:
        ``"number"`` or ``"category"`` by the name of the columns that are used; and why the others are not.
    """
    used, left_out = {}, {}
    for name, column in table.columns.items():
        if name in without:
            continue
        why = column.why_unused or _useless(column, name in categories)
        if why:
            left_out[name] = why
        elif name in categories or _mostly_text(column):
            used[name] = "category"
        else:
            refuse_text(table, name, column)
            used[name] = "number"
    if not used:
        reasons = "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
        raise ValueError(f"{table.name}: has no column to predict from ({reasons or 'there is only the target'})")
    return used, left_out


def learn(table: Table, used: dict[str, str], left_out: dict[str, str]) -> Encoding:
    """Return how to encode columns, from the rows to train on; the first two are what :func:`choose` returned."""
    columns = [KINDS[kind].learn(name, table.columns[name]) for name, kind in used.items()]
    return Encoding(tuple(columns), left_out)


def _useless(column: Column, is_category: bool) -> str:
    """Why a column says nothing, or nothing that a model can be given; empty if it does."""
    there = ~column.missing
    if not there.any():
        return "is empty"
    if column.is_constant:
        return f"is always {column.shown(0)!r}"
    if column.are_dates:
        return "holds dates"
    if _mostly_text(column) or is_category:
        names = column.labels[1]
        if len(names) == there.sum() > 2:
            return "holds a different text in every row, as names and identifiers do"
        if len(names) > MOST_CATEGORIES:
            return f"holds {len(names):,} different texts, more than the {MOST_CATEGORIES} of a category"
        return ""
    numbers = column.numbers[column.codes == NUMBER]
    if len(numbers) == len(there) > 2 and bool((np.diff(numbers) == 1).all()):
        return "counts the rows"
    return ""


def _mostly_text(column: Column) -> bool:
    """Whether fewer than half of the values are numbers."""
    there = column.codes[~column.missing]
    return 2 * int((there == NUMBER).sum()) < len(there)


def refuse_text(table: Table, name: str, column: Column, otherwise: str = "train with --category {!r}") -> None:
    """Raise ``ValueError`` about the first text in a column of numbers.

    Args:
        table: The table.
        name: The column's name.
        column: The column.
        otherwise: What to do if the column is not meant as numbers, with a place for its name.
    """
    rows = np.flatnonzero(column.codes >= 0).tolist()
    if len(rows):
        rest = "" if _mostly_text(column) else ", as the rest of the column"
        what = f"takes a number{rest}, got {column.shown(rows[0])!r}"
        how = f"correct it, leave it empty, or {otherwise.format(name)} if the column is not meant as numbers"
        raise ValueError(f"{table.where(rows[0])}, column {name!r}: {what}; {how}")
