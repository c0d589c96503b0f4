"""The target: the column to predict, which holds classes or numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from anode.checks import lookup, nearest
from anode.data.encoding import refuse_notation, refuse_text, scale_of
from anode.data.tables import NUMBER, Array, Column, Table

TASKS = ("classification", "regression")
MOST_CLASSES = 20
"""Number of distinct whole numbers up to which they are classes, unless the user chooses a task."""
MOST_TEXTS = 1000
"""Number of distinct values up to which they can be classes."""
EXACT = 2**53
"""Whole numbers up to here have a floating-point number of their own."""
CLASSES_INSTEAD = "pass --task classification"
_NUMBER = re.compile(r"[+-]?\d+[.,]\d+")  # with decimals: a whole number may be a name, such as a year


@dataclass(frozen=True)
class Target:
    """The column to predict.

    Attributes:
        name: Name of the column.
        classes: Names of the classes; empty for a regression.
        mean, scale: Mean and standard deviation that the numbers of a regression are scaled with.
    """

    name: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @property
    def task(self) -> str:
        """One of :data:`TASKS`."""
        return TASKS[0] if self.classes else TASKS[1]

    def values(self, table: Table) -> Array:
        """Return class indices as int64, or numbers as float64, of shape [rows]."""
        column = table.columns[self.name]
        if not self.classes:
            return column.numbers
        codes, names = column.labels
        known = {name: number for number, name in enumerate(self.classes)}
        return np.array([known[name] for name in names], np.int64)[codes]

    def scaled(self, table: Table) -> Target:
        """Return the target with mean and scale of the training rows."""
        mean, scale = scale_of(table.name, self.name, table.columns[self.name].numbers)
        return replace(self, mean=mean, scale=scale)

    def to_json(self) -> dict[str, Any]:
        """Return the target as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Target:
        """Return the target that :meth:`to_json` described; raise ``ValueError`` if it is damaged."""
        classes = tuple(map(str, content["classes"]))
        made = cls(content["name"], classes, content["mean"], content["scale"])
        if not (np.isfinite([made.mean, made.scale]).all() and made.scale > 0):
            raise ValueError("its target has no scale")
        return made


def find_column(table: Table, option: str, name: str | None) -> str:
    """Return the name of a column if the table has it; otherwise raise ``ValueError`` with the names that it has."""
    if name is not None and name in table.columns:
        return name
    shown = ", ".join(list(table.columns)[:20]) + (", ..." if len(table.columns) > 20 else "")
    got = f"got {name!r}{nearest(name, table.columns)}" if name is not None else f"pass --{option} COLUMN"
    has_names = not any(_NUMBER.fullmatch(each) for each in table.columns)
    hint = "" if has_names else "; its first line holds a number: add a line with the names of the columns above it"
    raise ValueError(f"{option}: takes a column of {table.name} ({shown}); {got}{hint}")


def with_target(table: Table, name: str) -> tuple[Table, int]:
    """Return the rows that have a target, and the number of those without."""
    missing = table.columns[name].missing
    return (table.take(~missing), int(missing.sum())) if missing.any() else (table, 0)


def choose_target(table: Table, name: str, task: str | None) -> Target:
    """Decide whether the target holds classes or numbers.

    Args:
        table: The table, in which every row has a target.
        name: Name of the column.
        task: One of :data:`TASKS`. By default, texts and few distinct whole numbers are classes.

    Raises:
        ValueError: The column can be neither.
    """
    if task is not None:
        lookup("task", task, dict.fromkeys(TASKS))
    column = table.columns[name]
    if column.why_unused or column.are_dates or not len(table):
        why = "has no values" if not len(table) else f"holds {column.why_unused or 'dates'}"
        raise ValueError(f"target: takes a column of classes or numbers, but {name!r} {why}; choose another")
    if task == "regression" or (task is None and _are_numbers(table, name, column)):
        refuse_text(table, name, column, CLASSES_INSTEAD)
        target = Target(name)
        if (column.numbers == column.numbers[0]).all():
            raise ValueError(f"target: column {name!r} is always {column.shown(0)}, so there is nothing to learn")
        return target
    return Target(name, _classes(table, name, column))


def _are_numbers(table: Table, name: str, column: Column) -> bool:
    """Whether a column holds numbers to predict instead of classes."""
    numbers = column.numbers[column.codes == NUMBER]
    if 2 * len(numbers) < len(column.codes):
        refuse_notation(table, name, column, f"{CLASSES_INSTEAD} if these are classes")
        return False
    refuse_text(table, name, column, CLASSES_INSTEAD)
    different = np.unique(numbers)
    return len(different) > MOST_CLASSES or bool((different != np.round(different)).any())


def _classes(table: Table, name: str, column: Column) -> tuple[str, ...]:
    """Return the names of the classes. Each has at least two rows: to learn from and to judge by."""
    codes, names = column.labels
    inexact = np.flatnonzero(np.abs(np.nan_to_num(column.numbers)) >= EXACT)
    if len(inexact):
        what = f"takes classes that are texts or whole numbers below 2**53, got {column.shown(inexact[0])}"
        raise ValueError(f"{table.where(inexact[0])}, column {name!r}: {what}; put a letter before each")
    counts = np.bincount(codes, minlength=len(names))
    if len(names) < 2:
        raise ValueError(f"target: column {name!r} is always {names[0]!r}, so there is nothing to learn")
    if len(names) > min(MOST_TEXTS, max(2, len(table) // 2)):
        what = f"column {name!r} has {len(names):,} different values in {len(table):,} rows, such as {names[0]!r}"
        how = "choose another column" if column.texts else "choose another column, or pass --task regression"
        raise ValueError(f"target: {what}, too many for classes; {how}")
    alone = np.flatnonzero(counts == 1)
    if len(alone):
        row = int(np.flatnonzero(codes == alone[0])[0])
        what = f"class {names[alone[0]]!r} has this row only, and a class takes at least 2"
        raise ValueError(f"{table.where(row)}, column {name!r}: {what}; add rows of it, or remove this one")
    return names


def held_out(groups: Array, fraction: float, seed: int) -> Array:
    """Return a mask of the rows to hold out, of shape [rows], with about the same share of every group.

    Args:
        groups: Class of each row; all the same for a regression.
        fraction: Fraction of the rows to hold out.
        seed: Random seed.

    Example:
        >>> held_out(np.array([0] * 10 + [1] * 20), 0.2, seed=0).reshape(3, 10).sum(1).tolist()[0]
        2
    """
    generator = np.random.default_rng(seed)
    place = np.empty(len(groups))  # position of a row within its group, from 0 to 1
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        place[rows] = (generator.permutation(len(rows)) + 0.5) / len(rows)
    order = np.lexsort([generator.random(len(groups)), place])
    mask = np.zeros(len(groups), bool)
    mask[order[: max(1, round(fraction * len(groups)))]] = True
    return mask


def check_columns(table: Table, option: str, names: Collection[str]) -> None:
    """Raise ``ValueError`` unless a table has all columns that an option names."""
    for name in names:
        find_column(table, option, name)
