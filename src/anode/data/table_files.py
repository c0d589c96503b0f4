"""Tables by name: scikit-learn's small ones, CSV and Parquet files."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from anode.data.csv_files import Tell, check_size, read_csv
from anode.data.tables import Builder, Column, Table, column_of, of_columns
from anode.extras import MissingPackageError, installed, needs
from anode.files import DamagedFileError

BUILT_IN = ("iris", "wine", "breast_cancer", "diabetes")
"""Tables that come with scikit-learn; their target is the column ``target``."""
SUFFIXES: dict[str, str | None] = {".csv": None, ".tsv": "\t", ".parquet": None}
"""How the names of tables end, and what separates the fields, if that is known."""
STANDARD_INPUT = "-"


def read_table(source: str, *, encoding: str | None = None, tell: Tell | None = None) -> Table:
    """Read a table.

    Args:
        source: One of :data:`BUILT_IN`, a file, or ``-`` for CSV from the standard input.
        encoding: That of a CSV file, see :func:`anode.data.csv_files.read_csv`.
        tell: Is told how many further bytes were read.
    """
    if source in BUILT_IN:
        return built_in(source)
    if source == STANDARD_INPUT:
        return read_csv(sys.stdin.buffer, "standard input", encoding=encoding)
    path = Path(source)
    check_size(source, path.stat().st_size)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    with path.open("rb") as file:
        separator = SUFFIXES.get(path.suffix.lower())
        return read_csv(file, source, separator=separator, encoding=encoding, tell=tell)


def built_in(name: str) -> Table:
    """Return one of scikit-learn's tables; the target is its last column, and classes have their names."""
    needs(f"the table {name}", "sklearn")
    from sklearn import datasets

    found: Any = getattr(datasets, f"load_{name}")()
    columns = {str(each): Column.of_numbers(found.data[:, i]) for i, each in enumerate(found.feature_names)}
    named = "target_names" in found
    columns["target"] = column_of(found.target_names[found.target] if named else found.target)
    return of_columns(name, columns, "")


def read_parquet(path: Path) -> Table:
    """Read a Parquet file; needs pyarrow."""
    if not installed("pyarrow"):
        what = "Parquet files need pyarrow, which is not installed: run `pip install pyarrow`, or save the table as CSV"
        raise MissingPackageError(f"{path}: {what}", name="pyarrow")
    import pyarrow
    from pyarrow import parquet

    try:
        found = parquet.ParquetFile(path).read()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise DamagedFileError(f"{path}: is not a Parquet file that can be read ({error})") from None
    if not found.num_rows or not found.num_columns:
        raise ValueError(f"{path}: has no rows; add some")
    columns = {str(name): _from_arrow(found.column(name)) for name in found.column_names}
    with path.open("rb") as file:
        checksum = sha256(file.read()).hexdigest()
    return of_columns(str(path), columns, checksum)


def _from_arrow(column: Any) -> Column:
    """A column of pyarrow as one of ours."""
    from pyarrow import float64, types

    kind = column.type
    if types.is_temporal(kind):
        return Column.unused(len(column), "dates")
    if types.is_nested(kind):
        return Column.unused(len(column), "lists or records")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return Column.of_numbers(column.cast(float64(), safe=False).to_numpy())
    builder = Builder()
    builder.add(["" if value is None else str(value) for value in column.to_pylist()])
    return builder.done()
