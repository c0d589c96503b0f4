"""Tables: columns of numbers and texts, wherever they come from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NUMBER, MISSING = -1, -2
"""Codes of values that are not texts."""
ABSENT = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A", "?"})
"""Texts that stand for a missing value."""
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}([T ].*)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True, eq=False)
class Column:
    """A column as it was read.

    Attributes:
        numbers: Float64 of shape [rows]; NaN where there is no number.
        codes: Int32 of shape [rows]: which of the texts it is, :data:`NUMBER` or :data:`MISSING`.
        texts: The different texts, as they occurred.
        why_unused: What the column holds that no model is given, such as ``"dates"``; empty for most columns.
    """

    numbers: Array
    codes: Array
    texts: tuple[str, ...] = ()
    why_unused: str = ""

    @classmethod
    def of_numbers(cls, values: Any) -> Column:
        """Return a column of numbers; NaN is a missing value."""
        numbers = np.asarray(values, dtype=np.float64)
        return cls(numbers, np.where(np.isnan(numbers), MISSING, NUMBER).astype(np.int32))

    @classmethod
    def unused(cls, rows: int, why: str) -> Column:
        """Return a column whose values are not kept."""
        return cls(np.full(rows, np.nan), np.full(rows, MISSING, np.int32), (), why)

    @property
    def missing(self) -> Array:
        """Where there is no value, a mask of shape [rows]."""
        return self.codes == MISSING

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same."""
        same = bool((self.codes == self.codes[0]).all())
        return same and (self.codes[0] != NUMBER or float(np.ptp(self.numbers)) == 0)

    @property
    def are_dates(self) -> bool:
        """Whether all values are dates."""
        there = self.codes[~self.missing]
        return len(there) > 0 and bool((there >= 0).all()) and all(DATE.fullmatch(text) for text in self.texts)

    @cached_property
    def labels(self) -> tuple[Array, tuple[str, ...]]:
        """Every value as the number of a label, -1 where it is missing, and the labels, in order."""
        known, places = np.unique(self.numbers[self.codes == NUMBER], return_inverse=True)
        names = [*(f"{value:.15g}" for value in known), *self.texts]
        found = np.where(self.codes >= 0, self.codes + len(known), -1)
        found[self.codes == NUMBER] = places
        used = [number for number in np.unique(found) if number >= 0]
        ordered = [number for number in used if number < len(known)]
        ordered += sorted((number for number in used if number >= len(known)), key=lambda number: names[number])
        order = np.full(len(names) + 1, -1)  # the last one is that of missing values
        order[ordered] = np.arange(len(ordered))
        return order[found], tuple(names[number] for number in ordered)

    def shown(self, row: int) -> str:
        """Return the value of a row as text."""
        code = int(self.codes[row])
        return self.texts[code] if code >= 0 else "" if code == MISSING else f"{self.numbers[row]:.15g}"

    def take(self, rows: Array) -> Column:
        """Return some of the rows, by a mask or by indices."""
        return replace(self, numbers=self.numbers[rows], codes=self.codes[rows])


class Builder:
    """Makes a column of texts that are read some at a time.

    Args:
        decimal_comma: Whether ``3,5`` is a number.
    """

    def __init__(self, decimal_comma: bool = False) -> None:
        self.decimal_comma = decimal_comma
        self.known: dict[str, int] = {}
        self.seen: dict[str, tuple[float, int]] = {}  # what was made of texts that are no numbers, as most occur often
        self.numbers: list[Array] = []
        self.codes: list[Array] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add the texts of the next rows."""
        try:
            numbers = np.array(texts, dtype=object).astype(np.float64)
        except ValueError:
            numbers = None
        if numbers is not None and np.isfinite(numbers).all():  # most columns of numbers, and quick
            codes = np.full(len(numbers), NUMBER, np.int32)
        else:
            both = [self.seen.get(text) or self._read(text) for text in texts]
            numbers, codes = np.array([each[0] for each in both]), np.array([each[1] for each in both], np.int32)
        self.numbers.append(numbers)
        self.codes.append(codes)

    def _read(self, text: str) -> tuple[float, int]:
        """A number and a code."""
        bare = text.strip()
        if bare not in ABSENT:
            try:
                comma = self.decimal_comma and DECIMAL_COMMA.fullmatch(bare)
                number = float(bare.replace(",", ".") if comma else bare)
            except ValueError:
                number = math.nan
            if math.isfinite(number):
                return number, NUMBER
        code = MISSING if bare in ABSENT else self.known.setdefault(bare, len(self.known))
        return self.seen.setdefault(text, (math.nan, code))

    def done(self) -> Column:
        """Return the column."""
        empty = np.zeros(0)
        numbers, codes = (np.concatenate(parts or [empty]) for parts in (self.numbers, self.codes))
        return Column(numbers, codes.astype(np.int32), tuple(self.known))


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and columns.

    Attributes:
        name: The file, as errors call it.
        columns: By name, all of the same length.
        lines: Where each row is, such as the line of the file that it begins in.
        unit: What these are called: ``"line"`` or ``"row"``.
        sha256: The checksum of the file; empty if it has none.
    """

    name: str
    columns: dict[str, Column]
    lines: Array
    unit: str = "line"
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Return where a row is, for errors: file and line."""
        return f"{self.name}, {self.unit} {self.lines[row]}"

    def take(self, rows: Array) -> Table:
        """Return some of the rows, by a mask or by indices."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[rows])


def table_of(name: str, columns: Mapping[str, Any]) -> Table:
    """Return a table of columns that are in memory.

    Args:
        name: What errors call it.
        columns: A pandas data frame, or arrays or lists by name.
    """
    found = {str(each): column_of(columns[each]) for each in columns}
    return of_columns(name, found)


def of_columns(name: str, columns: dict[str, Column], sha256: str = "") -> Table:
    """Return a table of columns, whose rows are counted from 1."""
    rows = len(next(iter(columns.values())).codes) if columns else 0
    return Table(name, columns, np.arange(1, rows + 1), "row", sha256)


def column_of(values: Any) -> Column:
    """Return a column of an array, a list or a series of pandas."""
    found = np.asarray(values)
    if found.dtype.kind in "iuf":
        return Column.of_numbers(found)
    if found.dtype.kind in "mM":
        return Column.unused(len(found), "dates")
    builder = Builder()
    builder.add(_texts(found.tolist()))
    return builder.done()


def _texts(values: Iterable[Any]) -> list[str]:
    """Values as texts; empty where there is none."""
    return ["" if value is None or value != value else str(value) for value in values]
