"""Reading CSV files line by line, with errors that name the line."""

from __future__ import annotations

import codecs
import csv
import io
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from anode.data.tables import Builder, Table, check_names
from anode.words import counted

MOST_BYTES = 5 * 10**8
"""Size of the largest file that is read. Tables are kept in memory."""
ROWS_AT_ONCE = 10_000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes that are not text in the assumed encoding, as ``surrogateescape`` decodes them."""
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Encodings of files that begin with a byte-order mark."""
FOREIGN = {b"PK": "a ZIP archive or an Excel file", b"\x1f\x8b": "a gzip file", b"PAR1": "a Parquet file"}
"""What a file really is, by its first bytes."""

Tell = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


def read_csv(
    file: BinaryIO,
    name: str,
    *,
    separator: str | None = None,
    encoding: str | None = None,
    keep: Collection[str] = (),
    tell: Tell | None = None,
) -> Table:
    """Read a table whose first line holds the column names.

    Args:
        file: The file, opened in binary mode.
        name: Its name in error messages.
        separator: The field separator. Defaults to the one of :data:`SEPARATORS` that splits the first line into the
            most columns.
        encoding: Defaults to UTF-8, or to UTF-16 if the file begins with its byte-order mark.
        keep: Columns whose texts :attr:`Table.kept` holds as they are written.
        tell: Called with the number of bytes read since the last call.

    Raises:
        ValueError: The file is not such a table. The message names the line and says what to do.
    """
    watched = _Watched(file, name, tell)
    buffered: Any = io.BufferedReader(watched, 2**16)
    text = io.TextIOWrapper(buffered, _encoding(buffered, name, encoding), errors="surrogateescape", newline="")
    try:
        return _read(text, name, separator, keep, watched)
    except UnicodeError as error:
        raise ValueError(f"{name}: is not text in {text.encoding} ({error}); {_HOW_ENCODED}") from None
    finally:
        text.detach()  # the caller opened the file and closes it
        buffered.detach()


_HOW_ENCODED = "save it as UTF-8, or pass --encoding, such as latin-1 or cp1252"


class _Watched(io.RawIOBase):
    """A file that counts and hashes the bytes read from it, and raises if there are too many."""

    def __init__(self, file: BinaryIO, name: str, advance: Tell | None) -> None:
        self.file, self.name, self.advance = file, name, advance
        self.bytes, self.hash = 0, sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        buffer[: len(content)] = content
        self.bytes += len(content)
        self.hash.update(content)
        check_size(self.name, self.bytes)
        if self.advance is not None:
            self.advance(len(content))
        return len(content)


def check_size(name: str, size: int) -> None:
    """Raise ``ValueError`` if a file is too large."""
    if size > MOST_BYTES:
        takes = f"at most {MOST_BYTES / 1e6:,.0f} MB, because a table is read into memory"
        raise ValueError(f"{name}: takes {takes}; train on a part of its lines, such as head -n 100000 file > part.csv")


def _encoding(file: Any, name: str, encoding: str | None) -> str:
    """Return the encoding to read a file with; raise ``ValueError`` if the file is not text."""
    begin = file.peek()
    marked = next((known for mark, known in MARKS.items() if begin.startswith(mark)), None)
    if encoding is None and marked is None:
        foreign = next((what for mark, what in FOREIGN.items() if begin.startswith(mark)), None)
        if foreign or b"\0" in begin:
            what = f"{foreign}, whatever its name says" if foreign else "binary: it holds a zero byte"
            how = "save the table as CSV" if foreign else "save the table as CSV in UTF-8, or pass --encoding utf-16-le"
            raise ValueError(f"{name}: takes a CSV file, but it is {what}; {how}")
    if encoding is None:
        return marked or "utf-8"
    try:
        known = codecs.lookup(encoding).name
    except LookupError:
        raise ValueError(f"encoding: takes a name such as utf-8, latin-1 or cp1252, got {encoding!r}") from None
    return "utf-8-sig" if known == "utf-8" else known


def _read(text: io.TextIOWrapper, name: str, separator: str | None, keep: Collection[str], watched: _Watched) -> Table:
    """Read the header and the rows."""
    skipped, first = 0, text.readline()
    while first and not first.strip():
        skipped, first = skipped + 1, text.readline()
    if not first:
        raise ValueError(f"{name}: is empty; it takes a line with the names of the columns, and rows below it")
    separator = separator or max(SEPARATORS, key=lambda each: len(next(csv.reader([first], delimiter=each))))
    reader = csv.reader(chain([first], text), delimiter=separator, strict=True)
    records = _records(reader, name, skipped)
    line, header = next(records)
    names = _names(header, name, line)
    builders = [Builder(decimal_comma=separator == ";") for _ in names]
    lines = array("q")
    kept: dict[str, list[str]] = {each: [] for each in names if each in keep}
    for numbers, rows in _chunks(records, name, names, separator):
        lines.extend(numbers)
        for builder, each, column in zip(builders, names, zip(*rows, strict=True), strict=True):
            _check_decoded(column, name, numbers, each)
            builder.add(column)
            if each in kept:
                kept[each] += column
    if not lines:
        raise ValueError(f"{name}: has no rows below the names of its columns; add some")
    columns = {each: builder.done() for each, builder in zip(names, builders, strict=True)}
    return Table(name, columns, np.array(lines), sha256=watched.hash.hexdigest(), kept=kept)


def _records(reader: Any, name: str, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the records, each with the line on which it starts. Empty lines are skipped."""
    while True:
        line = skipped + reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            how = "close every quote, and double a quote that is part of a field"
            if "field limit" in str(error):
                most = f"fields of at most {csv.field_size_limit():,} characters"
                raise ValueError(f"{name}, line {line}: takes {most}; shorten the field, or {how}") from None
            raise ValueError(f"{name}, line {line}: cannot be read ({error}); {how}") from None
        if record:
            yield line, record


def _names(header: Sequence[str], name: str, line: int) -> list[str]:
    """Return the column names after checking them."""
    _check_decoded(header, name, [line] * len(header), None)
    found = [each.strip() or f"column {number}" for number, each in enumerate(header, 1)]
    check_names(f"{name}, line {line}", found)
    builder = Builder()
    builder.add(found)
    if np.isfinite(builder.done().numbers).all():
        shown = ", ".join(found[:4])
        raise ValueError(
            f"{name}, line {line}: takes the names of the columns, got numbers ({shown}); add a first line"
        )
    return found


def _chunks(
    records: Iterator[tuple[int, list[str]]], name: str, names: Sequence[str], separator: str
) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yield lines and rows in chunks; raise ``ValueError`` if a row is not as wide as the header."""
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, row in records:
        if len(row) != len(names):
            raise ValueError(f"{name}, line {line}: {_misfit(len(row), names, separator)}")
        lines.append(line)
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            yield lines, rows
            lines, rows = [], []
    if rows:
        yield lines, rows


def _misfit(fields: int, names: Sequence[str], separator: str) -> str:
    """Return what is wrong with a row that is not as wide as the header."""
    what = f"has {counted(fields, 'field')}, but the first line has {len(names)}"
    if len(names) == 1:
        return f"{what} ({names[0][:40]!r}), which takes the names of the columns; remove what is above them"
    return f"{what}; correct it, and put fields that hold a {separator!r} in double quotes"


def _check_decoded(texts: Sequence[str], name: str, lines: Sequence[int], column: str | None) -> None:
    """Raise ``ValueError`` about the first text that is not in the assumed encoding."""
    joined = "".join(texts)
    if joined.isascii() or not UNDECODED.search(joined):
        return
    row = next(number for number, text in enumerate(texts) if UNDECODED.search(text))
    shown = UNDECODED.sub("\N{REPLACEMENT CHARACTER}", texts[row])[:40]
    where = f"{name}, line {lines[row]}" + ("" if column is None else f", column {column!r}")
    raise ValueError(f"{where}: is not UTF-8 text ({shown!r}); {_HOW_ENCODED}")
