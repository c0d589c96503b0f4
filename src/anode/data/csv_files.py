"""Reading tables from CSV files: line by line, with errors that name the line."""

from __future__ import annotations

import codecs
import csv
import io
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from anode.data.tables import Builder, Table

MOST_BYTES = 5 * 10**8
"""The largest file that is read: a table is in memory as a whole."""
ROWS_AT_ONCE = 10_000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes that are no text in the encoding that was assumed, as ``surrogateescape`` passes them on."""
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""How files begin that say which encoding they have."""

Tell = Callable[[int], None]
"""Told how many further bytes were read."""


def read_csv(
    file: BinaryIO, name: str, *, separator: str | None = None, encoding: str | None = None, tell: Tell | None = None
) -> Table:
    """Read a table whose first line has the names of the columns.

    Args:
        file: The file, opened for bytes.
        name: What errors call it.
        separator: What separates fields. By default that of :data:`SEPARATORS` that makes the most columns.
        encoding: Defaults to UTF-8, or UTF-16 if the file begins as such files do.
        tell: Is told how many further bytes were read, every now and then.

    Raises:
        ValueError: The file is no such table; the message names the line and what to do.
    """
    watched = _Watched(file, name, tell)
    buffered: Any = io.BufferedReader(watched, 2**16)
    text = io.TextIOWrapper(buffered, _encoding(buffered, encoding), errors="surrogateescape", newline="")
    try:
        return _read(text, name, separator, watched)
    except UnicodeError as error:
        raise ValueError(f"{name}: is not text in {text.encoding} ({error}); {_HOW_ENCODED}") from None
    finally:
        text.detach()  # the file is the caller's, and stays open
        buffered.detach()


_HOW_ENCODED = "save it as UTF-8, or pass --encoding, such as latin-1 or cp1252"


class _Watched(io.RawIOBase):
    """A file that counts what is read of it, and refuses to be too large."""

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
    """Raise ``ValueError`` about a file that is too large."""
    if size > MOST_BYTES:
        takes = f"at most {MOST_BYTES / 1e6:,.0f} MB, because a table is read into memory"
        raise ValueError(f"{name}: takes {takes}; train on a part of its lines, such as head -n 100000 file > part.csv")


def _encoding(file: Any, encoding: str | None) -> str:
    """The encoding that was asked for, or that a file begins as."""
    begin = file.peek(4)[:4]
    if encoding is None:
        return next((known for mark, known in MARKS.items() if begin.startswith(mark)), "utf-8")
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise ValueError(f"encoding: takes a name such as utf-8, latin-1 or cp1252, got {encoding!r}") from None


def _read(text: io.TextIOWrapper, name: str, separator: str | None, watched: _Watched) -> Table:
    """Read header and rows."""
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
    for numbers, rows in _chunks(records, name, names, separator):
        lines.extend(numbers)
        for builder, each, column in zip(builders, names, zip(*rows, strict=True), strict=True):
            _check_decoded(column, name, numbers, each)
            builder.add(column)
    if not lines:
        raise ValueError(f"{name}: has no rows below the names of its columns; add some")
    columns = {each: builder.done() for each, builder in zip(names, builders, strict=True)}
    return Table(name, columns, np.array(lines), sha256=watched.hash.hexdigest())


def _records(reader: Any, name: str, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """All records, each with the line that it begins in; empty lines are left out."""
    while True:
        line = skipped + reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = (
                f"cannot be read ({error}); a quote that is opened has to be closed, and one within a field is doubled"
            )
            raise ValueError(f"{name}, line {line}: {why}") from None
        if record:
            yield line, record


def _names(header: Sequence[str], name: str, line: int) -> list[str]:
    """The names of the columns, checked."""
    _check_decoded(header, name, [line] * len(header), None)
    found = [each.strip() or f"column {number}" for number, each in enumerate(header, 1)]
    twice = next((each for each in found if found.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"{name}, line {line}: has two columns {twice!r}; rename one of them")
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
    """Lines and rows, some at a time, all as wide as the header."""
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, row in records:
        if len(row) != len(names):
            what = f"has {len(row)} fields and not {len(names)}, as the first line has"
            how = f"correct it, and put fields that hold a {separator!r} in double quotes"
            raise ValueError(f"{name}, line {line}: {what}; {how}")
        lines.append(line)
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            yield lines, rows
            lines, rows = [], []
    if rows:
        yield lines, rows


def _check_decoded(texts: Sequence[str], name: str, lines: Sequence[int], column: str | None) -> None:
    """Raise ``ValueError`` about the first text that has another encoding."""
    joined = "".join(texts)
    if joined.isascii() or not UNDECODED.search(joined):
        return
    row = next(number for number, text in enumerate(texts) if UNDECODED.search(text))
    shown = UNDECODED.sub("\N{REPLACEMENT CHARACTER}", texts[row])
    where = f"{name}, line {lines[row]}" + ("" if column is None else f", column {column!r}")
    raise ValueError(f"{where}: is not UTF-8 text ({shown!r}); {_HOW_ENCODED}")
