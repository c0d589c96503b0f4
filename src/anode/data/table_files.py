"""Tables by name: those of scikit-learn, CSV files and Parquet files."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from anode.checks import Words, require
from anode.data.csv_files import Tell, check_size, read_csv
from anode.data.tables import Builder, Column, Table, as_texts, check_names, column_of, of_columns
from anode.extras import needs
from anode.files import DamagedFileError

BUILT_IN = ("iris", "wine", "breast_cancer", "diabetes")
"""Tables that come with scikit-learn. Their target is the column ``target``."""
SUFFIXES: dict[str, str | None] = {".csv": None, ".tsv": "\t", ".parquet": None}
"""File suffixes of tables, each with its field separator, if the suffix decides it."""
STANDARD_INPUT = "-"


def read_table(
    source: str, *, encoding: str | None = None, keep: Collection[str] = (), tell: Tell | None = None
) -> Table:
    """Read a table.

    Args:
        source: One of :data:`BUILT_IN`, a file, or ``-`` for CSV from the standard input.
        encoding: Encoding of a CSV file, see :func:`anode.data.csv_files.read_csv`.
        keep: Columns whose texts :attr:`Table.kept` holds as they are written.
        tell: Called with the number of bytes read since the last call.
    """
    if source in BUILT_IN:
        return _keeping(built_in(source), keep)
    if source == STANDARD_INPUT:
        if sys.stdin is None:
            raise ValueError("standard input: is closed; pass a file, or a table through a pipe")
        return read_csv(sys.stdin.buffer, "standard input", encoding=encoding, keep=keep)
    path = Path(source)
    require(not path.is_dir(), source, Words("a folder"), "a file; name one of the files in it")
    check_size(source, path.stat().st_size)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path, keep)
    with path.open("rb") as file:
        separator = SUFFIXES.get(path.suffix.lower())
        return read_csv(file, source, separator=separator, encoding=encoding, keep=keep, tell=tell)


def built_in(name: str) -> Table:
    """Return one of scikit-learn's tables. The target is its last column; classes have their names."""
    needs(f"the table {name}", "sklearn")
    from sklearn import datasets

    found: Any = getattr(datasets, f"load_{name}")()
    columns = {str(each): Column.of_numbers(found.data[:, i]) for i, each in enumerate(found.feature_names)}
    named = "target_names" in found
    columns["target"] = column_of(found.target_names[found.target] if named else found.target)
    return of_columns(name, columns)


def _keeping(table: Table, keep: Collection[str]) -> Table:
    """Return a table that has no texts of its own, with some columns as texts."""
    columns = {name: column for name, column in table.columns.items() if name in keep}
    return replace(table, kept={name: [c.shown(row) for row in range(len(table))] for name, c in columns.items()})


def read_parquet(path: Path, keep: Collection[str] = ()) -> Table:
    """Read a Parquet file; needs pyarrow.

    Args:
        path: The file.
        keep: Columns whose texts :attr:`Table.kept` holds.
    """
    needs(f"{path}: reading Parquet files", "parquet")
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system cannot open the file
            raise
        why = str(error).splitlines()[0].rstrip(".")
        raise DamagedFileError(f"{path}: is not a Parquet file, or is damaged ({why}); restore it") from None
    if not found.num_rows or not found.num_columns:
        raise ValueError(f"{path}: has no rows; add some")
    names = [str(name) for name in found.column_names]
    check_names(str(path), names)
    columns = {name: _from_arrow(found.column(i)) for i, name in enumerate(names)}
    kept = {name: as_texts(found.column(i).to_pylist()) for i, name in enumerate(names) if name in keep}
    with path.open("rb") as content:
        checksum = sha256(content.read()).hexdigest()
    return replace(of_columns(str(path), columns, checksum), kept=kept)


def _from_arrow(column: Any) -> Column:
    """Return the column of a pyarrow column."""
    from pyarrow import float64, types

    kind = column.type
    if types.is_dictionary(kind):  # a categorical column of pandas, whose categories may be numbers
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_temporal(kind):
        return Column.unused(len(column), "durations" if types.is_duration(kind) else "dates")
    if types.is_nested(kind):
        return Column.unused(len(column), "lists or records")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return Column.unused(len(column), "bytes")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return Column.of_numbers(column.cast(float64(), safe=False).to_numpy())
    builder = Builder()
    builder.add(as_texts(column.to_pylist()))
    return builder.done()
