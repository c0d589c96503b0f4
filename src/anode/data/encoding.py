"""Encoding of columns as the numbers that a model takes, and its description as JSON."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anode.checks import nearest
from anode.data.tables import NUMBER, Array, Column, Table
from anode.words import counted

MOST_CATEGORIES = 100
"""Number of distinct texts up to which a column is a category."""
LIKE_NUMBER = re.compile(r"[-+\u2212]?[$€£]?\s?(\d+|\d{1,3}([., '\u00a0\u202f]\d{3})+)([.,]\d+)?\s?[%$€£]?")
"""Numbers in another notation, such as ``1,234.5``, ``3,5`` or ``12 %``."""
LIKE_IDENTIFIER = re.compile(r"(?i:(.*[\W_])?(id|ids|uuid|key|index|nr|no|number))|.*[a-z]I[dD]")
"""Names of columns that number the rows, such as ``id``, ``customer_id`` or ``PassengerId``."""


@dataclass(frozen=True)
class Number:
    """A column of numbers, scaled to mean 0 and variance 1.

    Attributes:
        name: Name of the column.
        fill: The median, which replaces missing values.
        mean, scale: Mean that is subtracted, and standard deviation that the difference is divided by.
        marked: Whether a second number, 0 or 1, marks missing values.
    """

    name: str
    fill: float
    mean: float
    scale: float
    marked: bool

    @classmethod
    def learn(cls, table: Table, name: str) -> Number:
        """Return the encoding of a column, learned from the training rows."""
        column = table.columns[name]
        there = column.numbers[column.codes == NUMBER]
        if not len(there):
            return cls(name, 0.0, 0.0, 1.0, False)
        median = float(np.median(there))
        filled = np.where(column.codes == NUMBER, column.numbers, median)
        return cls(name, median, *scale_of(table.name, name, filled), bool(column.missing.any()))

    @property
    def width(self) -> int:
        """Number of values that the column becomes."""
        return 1 + self.marked

    def encode(self, table: Table) -> tuple[Array, str]:
        """Return the values of all rows, [rows, width], and a note for the user, or an empty one."""
        column = table.columns[self.name]
        refuse_text(table, self.name, column)
        missing = column.missing
        scaled = (np.where(missing, self.fill, column.numbers) - self.mean) / self.scale
        far = np.flatnonzero(np.abs(scaled) > np.finfo(np.float32).max)
        if len(far):
            takes = f"a number near those of training (mean {self.mean:g}, standard deviation {self.scale:g})"
            got = column.shown(far[0])
            raise ValueError(f"{table.where(far[0])}, column {self.name!r}: takes {takes}, got {got}; correct it")
        unseen = int(missing.sum()) if not self.marked else 0
        said = f"column {self.name!r}: {counted(unseen, 'missing value')} replaced by the median, {self.fill:g}"
        return np.stack([scaled, missing][: self.width], 1), said if unseen else ""


@dataclass(frozen=True)
class Category:
    """A column of few distinct texts. Each text becomes a number of its own, 0 or 1.

    Attributes:
        name: Name of the column.
        categories: The distinct texts.
        marked: Whether a further number, 0 or 1, marks missing values.
    """

    name: str
    categories: tuple[str, ...]
    marked: bool

    @classmethod
    def learn(cls, table: Table, name: str) -> Category:
        """Return the encoding of a column, learned from the training rows."""
        column = table.columns[name]
        return cls(name, column.labels[1], bool(column.missing.any()))

    @property
    def width(self) -> int:
        """Number of values that the column becomes."""
        return len(self.categories) + self.marked

    def encode(self, table: Table) -> tuple[Array, str]:
        """Return the values of all rows, [rows, width], and a note for the user, or an empty one."""
        codes, names = table.columns[self.name].labels
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
        said = f"column {self.name!r}: {values} not seen in training and encoded as no category: {shown}"
        return found, said if unknown else ""


Encoded = Number | Category
KINDS: dict[str, type[Encoded]] = {"number": Number, "category": Category}


@dataclass(frozen=True)
class Encoding:
    """The encoding of rows as numbers.

    Attributes:
        columns: The columns that are used, in order.
        left_out: The other columns by name, each with the reason, such as ``"holds dates"``.
    """

    columns: tuple[Encoded, ...]
    left_out: dict[str, str]

    @property
    def width(self) -> int:
        """Number of values that a row becomes."""
        return sum(column.width for column in self.columns)

    def encode(self, table: Table) -> tuple[Array, list[str]]:
        """Return float32 of shape [rows, width], and notes for the user.

        The table may have its columns in any order, further columns, and none of those that are left out.
        """
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            hint = nearest(absent[0], table.columns) if len(absent) == 1 else ""
            names = ", ".join(map(repr, absent))
            raise ValueError(f"{table.name}: has no column {names}, which the model was trained with{hint}")
        parts = [column.encode(table) for column in self.columns]
        joined: Array = np.concatenate([values for values, _ in parts], 1, dtype=np.float32)
        return joined, [said for _, said in parts if said]

    def to_json(self) -> dict[str, Any]:
        """Return the encoding as a JSON object."""
        names = {kind: name for name, kind in KINDS.items()}
        columns = [{"kind": names[type(column)], **asdict(column)} for column in self.columns]
        return {"columns": columns, "left_out": self.left_out}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Encoding:
        """Return the encoding that :meth:`to_json` described; raise ``ValueError`` if it is damaged."""
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


@dataclass(frozen=True)
class Choice:
    """Which columns of a table are used, and how.

    Attributes:
        used: ``"number"`` or ``"category"``, by the name of the column.
        left_out: The other columns by name, each with the reason.
        notes: Lines for the user about columns that may be a mistake.
    """

    used: dict[str, str]
    left_out: dict[str, str]
    notes: tuple[str, ...]


def choose(
    table: Table, without: Collection[str] = (), categories: Collection[str] = (), numeric: Collection[str] = ()
) -> Choice:
    """Decide from its values how each column of a table is used.

    Args:
        table: The table.
        without: Columns that the model must not see: the target, and those that the user drops.
        categories: Columns that are categories even if they hold numbers.
        numeric: Columns that are numbers even if they look like identifiers.

    Raises:
        ValueError: A column holds both numbers and texts, or no column is left.
    """
    used, left_out, notes = {}, {}, []
    for name, column in table.columns.items():
        if name in without:
            continue
        is_text = name in categories or (name not in numeric and _mostly_text(column))
        if is_text and name not in categories:
            is_category, drop = table.option("category", name), table.option("drop", name)
            refuse_notation(table, name, column, f"pass {is_category} if these are categories, or {drop}")
        why = _useless(column, is_text)
        if not why and not is_text and name not in numeric and _are_distinct(column):
            why = _identifies(table, name)
            if not why:
                what = f"column {name!r} holds a different whole number in every row and is used as a number"
                notes.append(f"{what}; pass {table.option('drop', name)} if it is an identifier")
        if why:
            left_out[name] = why
            continue
        if not is_text:
            refuse_text(table, name, column)
        used[name] = "category" if is_text else "number"
    if not used:
        reasons = [f"{name!r} {why}" for name, why in left_out.items()]
        shown = "; ".join(reasons[:5]) + ("; ..." if len(reasons) > 5 else "")
        raise ValueError(f"{table.name}: has no column to predict from ({shown or 'none is left'})")
    return Choice(used, left_out, tuple(notes))


def learn(table: Table, choice: Choice) -> Encoding:
    """Return the encoding of the chosen columns, learned from the training rows."""
    columns = [KINDS[kind].learn(table, name) for name, kind in choice.used.items()]
    return Encoding(tuple(columns), choice.left_out)


def scale_of(table: str, column: str, numbers: Array) -> tuple[float, float]:
    """Return mean and standard deviation of numbers, 1 in place of a deviation of 0.

    Raises:
        ValueError: They overflow or, although the numbers differ, are 0. The message names the table and the column.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(numbers.mean()), float(numbers.std())
    small = deviation == 0 and bool((numbers != numbers[0]).any())
    if small or not np.isfinite([mean, deviation]).all():
        size, how = ("small", "multiply") if small else ("large", "divide")
        what = f"holds numbers up to {np.abs(numbers).max():.3g}, too {size} to be scaled"
        raise ValueError(f"{table}, column {column!r}: {what}; {how} them by a constant")
    return mean, deviation if deviation > 0 else 1.0


def _useless(column: Column, is_text: bool) -> str:
    """Return why models cannot use a column; empty if they can."""
    there = ~column.missing
    if column.why_unused:
        return f"holds {column.why_unused}"
    if not there.any():
        return "is empty"
    if column.is_constant:
        return f"is always {column.shown(0)!r}"
    if column.are_dates:
        return "holds dates"
    if not is_text:
        return ""
    names = column.labels[1]
    if len(names) == there.sum() > 2:
        return "holds a different text in every row, as names and identifiers do"
    if len(names) > MOST_CATEGORIES:
        return f"holds {len(names):,} different texts, more than the {MOST_CATEGORIES} of a category"
    return ""


def _are_distinct(column: Column) -> bool:
    """Whether every row has a whole number of its own."""
    numbers = column.numbers
    return (
        len(numbers) > 2
        and bool((column.codes == NUMBER).all())
        and bool((numbers == np.round(numbers)).all())
        and len(np.unique(numbers)) == len(numbers)
    )


def _identifies(table: Table, name: str) -> str:
    """Return why a column of distinct whole numbers is an identifier; empty if it may be a measurement."""
    column, keep = table.columns[name], f"; pass {table.option('numeric')} to use it"
    if float(column.numbers.max()) - float(column.numbers.min()) == len(column.numbers) - 1:
        return f"numbers the rows{keep}"
    named = LIKE_IDENTIFIER.fullmatch(name) is not None
    return f"holds a different whole number in every row, as its name suggests{keep}" if named else ""


def _mostly_text(column: Column) -> bool:
    """Whether fewer than half of the values are numbers."""
    there = column.codes[~column.missing]
    return 2 * int((there == NUMBER).sum()) < len(there)


def refuse_notation(table: Table, name: str, column: Column, otherwise: str) -> None:
    """Raise ``ValueError`` about a column of texts that are all numbers in another notation, such as ``1,234.5``.

    Args:
        table: The table.
        name: Name of the column.
        column: The column.
        otherwise: What to do if these are not numbers.
    """
    if column.texts and not column.is_constant and all(LIKE_NUMBER.fullmatch(text) for text in column.texts):
        row = int(np.flatnonzero(column.codes >= 0)[0])
        what = f"takes a number such as 1234.5, got {column.shown(row)!r}"
        how = f"write all of them like that, or {otherwise}"
        raise ValueError(f"{table.where(row)}, column {name!r}: {what}; {how}")


def refuse_text(table: Table, name: str, column: Column, otherwise: str = "") -> None:
    """Raise ``ValueError`` about the first text in a column of numbers.

    Args:
        table: The table.
        name: Name of the column.
        column: The column.
        otherwise: What to do if the column does not hold numbers; by default, train with it as a category.
    """
    rows = np.flatnonzero(column.codes >= 0).tolist()
    if len(rows):
        rest = "" if _mostly_text(column) else ", like the rest of the column"
        what = f"takes a number{rest}, got {column.shown(rows[0])!r}"
        otherwise = otherwise or f"train with {table.option('category', name)}"
        how = f"correct it, leave it empty, or {otherwise} if the column does not hold numbers"
        raise ValueError(f"{table.where(rows[0])}, column {name!r}: {what}; {how}")
