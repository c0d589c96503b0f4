"""Read arrays of numbers from MATLAB 5.0 files, by name.

SciPy reads such files too, but a damaged file can crash the process. This reader supports the two kinds of arrays that
SVHN needs, and checks every size before it uses it.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anode.data.reading import damaged

Array = npt.NDArray[Any]

MAGIC = b"MATLAB 5.0 MAT-file"
HEADER = 128
MATRIX, COMPRESSED = 14, 15
"""The kinds of elements that a file consists of."""
MOST_BYTES = 2**31
"""No element can be larger in this format."""
CLASSES = {6: "f8", 9: "u1"}
"""What the numbers of an array are, by the format's number for it: double or uint8."""
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
"""What they are stored as, which may be smaller."""
MOST_DIMENSIONS = 32
"""More than any array here has."""
COMPLEX = 0x800
"""The flag of an array that has an imaginary part."""


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read some of the arrays in a file, or raise :class:`anode.files.DamagedFileError`.

    Args:
        path: The file.
        names: Names of the arrays, which must exist and be uint8 or double. All other arrays are ignored.
    """
    found: dict[str, Array] = {}
    others: list[str] = []
    for parts in _matrices(path):
        flags, shape = int(parts.whole_numbers(least=1)[0]), parts.whole_numbers(least=2).tolist()
        name = parts.numbers().astype(np.uint8).tobytes().decode("latin-1")
        if name not in names:
            others.append(repr(name[:20]))
            continue
        if flags & 0xFF not in CLASSES or flags & COMPLEX:
            raise damaged(path, f"{name} as an array of uint8 or double, not complex", f"flags {flags:#x}")
        values = parts.numbers()
        if min(shape) < 0 or math.prod(shape) != len(values):
            raise damaged(path, f"{name} of as many numbers as its shape {shape} has", f"{len(values):,}")
        found[name] = values.astype(CLASSES[flags & 0xFF], copy=False).reshape(shape, order="F")
    for name in names:
        if name not in found:
            there = ", ".join([*found, *others][:5]) or "none"
            raise damaged(path, f"a file of the arrays {' and '.join(names)}", there)
    return found


class _Parts:
    """Reads the parts of an array in order: flags, shape, name, numbers."""

    def __init__(self, path: Path, content: bytes, order: str) -> None:
        self.path, self.content, self.order = path, content, order
        self.at = 0

    def whole_numbers(self, least: int) -> Array:
        """Return the next part, which must have a few whole numbers."""
        found = self.numbers(least)
        if found.dtype.kind not in "iu" or len(found) > MOST_DIMENSIONS:
            raise damaged(self.path, f"at most {MOST_DIMENSIONS} whole numbers", f"{len(found):,} of {found.dtype}")
        return found

    def numbers(self, least: int = 0) -> Array:
        """Return the next part, in any number format, with at least this many numbers."""
        kind, size = self._word(0), self._word(4)
        begin, step = self.at + 8, 8 + size + -size % 8
        if kind >> 16:  # up to four bytes lie in the tag itself
            kind, size, begin, step = kind & 0xFFFF, kind >> 16, self.at + 4, 8
        end = begin + size
        dtype = np.dtype(self.order + STORED[kind]) if kind in STORED else None
        if dtype is None or end > len(self.content) or size % dtype.itemsize or size < least * dtype.itemsize:
            raise damaged(self.path, "whole arrays of numbers", f"a part of kind {kind} and {size:,} bytes")
        self.at += step
        return np.frombuffer(self.content, dtype, size // dtype.itemsize, begin)

    def _word(self, offset: int) -> int:
        """Return a number from the tag of the next part."""
        begin = self.at + offset
        if begin + 4 > len(self.content):
            raise damaged(self.path, "whole arrays", "one that ends early")
        return int(struct.unpack_from(f"{self.order}I", self.content, begin)[0])


def _matrices(path: Path) -> Iterator[_Parts]:
    """Yield the elements of a file. Each is an array."""
    with path.open("rb") as file:
        header = file.read(HEADER)
        order = {b"IM": "<", b"MI": ">"}.get(header[HEADER - 2 :])
        if not header.startswith(MAGIC) or order is None:
            got = f"one that begins with {header[: len(MAGIC)]!r}" if header else "an empty file"
            raise damaged(path, f"a file that begins with {MAGIC.decode()}", got)
        while tag := file.read(8):
            yield _Parts(path, _element(path, file, tag, order), order)


def _element(path: Path, file: BufferedReader, tag: bytes, order: str) -> bytes:
    """Return the content of the next element of a file, decompressed."""
    kind, size = struct.unpack(f"{order}II", tag) if len(tag) == 8 else (MATRIX, MOST_BYTES)
    if kind not in (MATRIX, COMPRESSED):
        raise damaged(path, "a MATLAB 5.0 file of arrays", f"an element of kind {kind}")
    if size > os.fstat(file.fileno()).st_size - file.tell():
        raise damaged(path, "a whole MATLAB 5.0 file", "one that is cut short")
    content = file.read(size)
    return content if kind == MATRIX else _decompress(path, content, order)


def _decompress(path: Path, content: bytes, order: str) -> bytes:
    """Decompress an element to the exact size that the tag at its start gives."""
    engine = zlib.decompressobj()
    try:
        tag = engine.decompress(content, 8)
        kind, size = struct.unpack(f"{order}II", tag) if len(tag) == 8 else (0, 0)
        if kind != MATRIX or size > MOST_BYTES:
            raise damaged(path, f"arrays of at most {MOST_BYTES:,} bytes", f"an element of kind {kind}, {size:,} bytes")
        # One byte more than promised: if there is one the file is wrong, and if not zlib has seen its own checksum.
        inside = engine.decompress(engine.unconsumed_tail, size + 1)
    except zlib.error as error:
        raise damaged(path, "a whole MATLAB 5.0 file", f"damaged compression ({error})") from None
    if len(inside) != size or not engine.eof:
        raise damaged(path, f"an array of the {size:,} bytes that it promises", "more or fewer")
    return inside
