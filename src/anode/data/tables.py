"""Tables in memory: columns of numbers and texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NUMBER, MISSING = -1, -2
"""Codes of values that are not texts."""
ABSENT = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NaT", "null", "NULL", "None", "<NA>", "#N/A", "?"})
"""Texts that stand for a missing value."""
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}([T ].*)?")
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
"""Numbers with a decimal comma, such as ``3,5`` and ``1.234,5``."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column as it was read.

    Attributes:
        numbers: Float64 of shape [rows]; NaN where the value is not a number.
        codes: Int32 of shape [rows]: the index of the text in ``texts``, or :data:`NUMBER` or :data:`MISSING`.
        texts: The distinct texts, in the order in which they occurred.
        why_unused: What the column holds if models cannot use it, such as ``"dates"``; empty for most columns.
    """

    numbers: Array
    codes: Array
    texts: tuple[str, ...] = ()
    why_unused: str = ""

    @classmethod
    def of_numbers(cls, values: Any) -> Column:
        """Return a column of numbers. NaN is a missing value; infinity is a text, as in a CSV file."""
        numbers = np.asarray(values, dtype=np.float64)
        codes = np.where(np.isnan(numbers), MISSING, NUMBER).astype(np.int32)
        if not np.isinf(numbers).any():
            return cls(numbers, codes)
        codes[np.isposinf(numbers)], codes[np.isneginf(numbers)] = 0, 1
        return cls(np.where(np.isinf(numbers), np.nan, numbers), codes, ("inf", "-inf"))

    @classmethod
    def unused(cls, rows: int, why: str) -> Column:
        """Return a column that models cannot use. Its values are not stored."""
        return cls(np.full(rows, np.nan), np.full(rows, MISSING, np.int32), (), why)

    @property
    def missing(self) -> Array:
        """Mask of the missing values, of shape [rows]."""
        return self.codes == MISSING

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same."""
        same = bool((self.codes == self.codes[0]).all())
        return same and (self.codes[0] != NUMBER or bool((self.numbers == self.numbers[0]).all()))

    @property
    def are_dates(self) -> bool:
        """Whether all values are dates."""
        there = self.codes[~self.missing]
        return len(there) > 0 and bool((there >= 0).all()) and all(DATE.fullmatch(text) for text in self.texts)

    @cached_property
    def labels(self) -> tuple[Array, tuple[str, ...]]:
        """The index of each value's label, -1 if the value is missing; and the sorted labels."""
        known, places = np.unique(self.numbers[self.codes == NUMBER], return_inverse=True)
        names = [*map(number_text, known), *self.texts]
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
        return self.texts[code] if code >= 0 else "" if code == MISSING else number_text(self.numbers[row])

    def take(self, rows: Array) -> Column:
        """Return the rows that a mask or indices select."""
        return replace(self, numbers=self.numbers[rows], codes=self.codes[rows])


def number_text(value: float) -> str:
    """Return the shortest text of a number that no other number has: ``7``, ``0.1``, ``1e+16``."""
    return repr(float(value)).removesuffix(".0")


class Builder:
    """Builds a column from texts that are read in chunks.

    Args:
        decimal_comma: Whether ``3,5`` is a number.
    """

    def __init__(self, decimal_comma: bool = False) -> None:
        self.decimal_comma = decimal_comma
        self.known: dict[str, int] = {}
        self.seen: dict[str, tuple[float, int]] = {}  # results for texts that are not numbers: most occur often
        self.numbers: list[Array] = []
        self.codes: list[Array] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add the texts of the next rows."""
        try:  # fast, and enough for most columns of numbers; Python reads 1_000 as a number, which is none elsewhere
            numbers = None if "_" in "".join(texts) else np.array(texts, dtype=object).astype(np.float64)
        except ValueError:
            numbers = None
        if numbers is not None and np.isfinite(numbers).all():
            codes = np.full(len(numbers), NUMBER, np.int32)
        else:
            both = [self.seen.get(text) or self._read(text) for text in texts]
            numbers, codes = np.array([each[0] for each in both]), np.array([each[1] for each in both], np.int32)
        self.numbers.append(numbers)
        self.codes.append(codes)

    def _read(self, text: str) -> tuple[float, int]:
        """Return the number and the code of a text."""
        bare = text.strip()
        if bare not in ABSENT:
            try:
                comma = self.decimal_comma and DECIMAL_COMMA.fullmatch(bare)
                plain = bare.replace(".", "").replace(",", ".") if comma else bare
                number = math.nan if "_" in plain else float(plain)
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
        name: The file's name, for error messages.
        columns: The columns by name, all of the same length.
        lines: Position of each row, such as the line of the file on which it starts.
        unit: What ``lines`` counts: ``"line"`` or ``"row"``.
        sha256: Checksum of the file; empty if there is no file.
        kept: Columns that were asked for as they are written, by name.
        in_python: Whether the user passed the table in Python, and options are arguments.
    """

    name: str
    columns: dict[str, Column]
    lines: Array
    unit: str = "line"
    sha256: str = ""
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    in_python: bool = False

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Return the file and line of a row, for error messages."""
        return f"{self.name}, {self.unit} {self.lines[row]}"

    def option(self, name: str, column: str | None = None) -> str:
        """Return how the user passes an option, of a certain column or of any, for error messages."""
        if self.in_python:
            return f"{name}=[{'...' if column is None else repr(column)}]"
        return f"--{name}" if column is None else f"--{name} {column!r}"

    def take(self, rows: Array) -> Table:
        """Return the rows that a mask or indices select, without ``kept``."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[rows], kept={})


def table_of(name: str, columns: Mapping[str, Any]) -> Table:
    """Return a table of columns in memory.

    Args:
        name: Its name in error messages.
        columns: A data frame of pandas or polars, or arrays or lists by name.

    Raises:
        ValueError: Two columns have the same name, or their lengths differ.
    """
    given = list(getattr(columns, "columns", columns))
    names = [str(each) for each in given]
    check_names(name, names)
    found = [column_of(columns[each]) for each in given]
    for each, column in zip(names, found, strict=True):
        if len(column.codes) != len(found[0].codes):
            takes = f"{len(found[0].codes):,} values, as many as column {names[0]!r}"
            raise ValueError(f"{name}, column {each!r}: takes {takes}, got {len(column.codes):,}")
    return of_columns(name, dict(zip(names, found, strict=True)))


def check_names(where: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` if two columns have the same name."""
    twice = next((each for each, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"{where}: has two columns {twice!r}; rename one of them")


def of_columns(name: str, columns: dict[str, Column], sha256: str = "") -> Table:
    """Return a table of columns. Rows are counted from 1."""
    rows = len(next(iter(columns.values())).codes) if columns else 0
    return Table(name, columns, np.arange(1, rows + 1), "row", sha256)


def column_of(values: Any) -> Column:
    """Return the column of an array, a list or a pandas series."""
    found = np.asarray(values)
    if found.dtype.kind in "iuf":
        return Column.of_numbers(found)
    if found.dtype.kind in "mM":
        return Column.unused(len(found), "dates" if found.dtype.kind == "M" else "durations")
    builder = Builder()
    builder.add(as_texts(found.tolist()))
    return builder.done()


def as_texts(values: Iterable[Any]) -> list[str]:
    """Return values as texts; a missing value has one of the texts in :data:`ABSENT`."""
    return ["" if value is None else str(value) for value in values]
