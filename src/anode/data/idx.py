"""Read the files of MNIST and Fashion-MNIST: the idx format, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from anode.data.reading import MOST_IMAGES, Pair, check_counts, check_labels, damaged, located

BYTES = b"\x00\x00\x08"
"""How an idx file of unsigned bytes begins; the number of its dimensions follows."""
GZIP = b"\x1f\x8b"
BinaryReader = BufferedReader | gzip.GzipFile
KINDS = {1: "labels", 3: "images"}
NAMES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def read(folder: Path, split: str) -> Pair:
    """Read one split: greyscale images of 28x28 pixels in 10 classes."""
    image_file, label_file = (located(folder, name) for name in NAMES[split])
    images, labels = read_idx(image_file, (28, 28)), read_idx(label_file).long()
    check_counts(image_file, label_file, (images, labels))
    check_labels(label_file, labels, 10)
    return images.unsqueeze(1), labels


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> Tensor:
    """Read a file of bytes in the idx format, or raise :class:`anode.files.DamagedFileError`.

    Args:
        path: The file. Its first bytes determine whether it is compressed, not its name.
        shape: Shape of one item: () for labels, (height, width) for images.

    Returns:
        A uint8 array of shape [n, *shape].
    """
    try:
        with path.open("rb") as raw:
            is_zipped = raw.peek(len(GZIP))[: len(GZIP)] == GZIP
            with gzip.GzipFile(fileobj=raw) if is_zipped else raw as file:
                return _read(path, file, shape)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, "a whole gzip file", f"one that is cut short or damaged ({error})") from None


def _read(path: Path, file: BinaryReader, shape: tuple[int, ...]) -> Tensor:
    """Read the items after a header. Raise an error if bytes are missing or left over."""
    count = _read_header(path, file, shape)
    size = count * math.prod(shape)
    # One byte more than promised: if there is one the file is wrong, and if not gzip has seen its own checksum.
    content = bytearray(file.read(size + 1))
    if len(content) != size:
        got = "more" if len(content) > size else f"{len(content):,}"
        raise damaged(path, f"the {size:,} bytes that its header promises", got)
    return torch.frombuffer(content, dtype=torch.uint8).reshape(count, *shape)


def _read_header(path: Path, file: BinaryReader, shape: tuple[int, ...]) -> int:
    """Check a header and return the number of items."""
    dims = 1 + len(shape)
    magic = file.read(4)
    if magic[:3] != BYTES or len(magic) < 4:
        raise damaged(path, "an idx file of bytes", f"one that begins with {magic!r}" if magic else "an empty file")
    if magic[3] != dims:
        got = KINDS.get(magic[3], f"{magic[3]} dimensions")
        raise damaged(path, KINDS.get(dims, f"{dims} dimensions"), f"{got}; perhaps two files were swapped")
    sizes = file.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise damaged(path, "a whole header", "one that is cut short")
    count, *item = struct.unpack(f">{dims}I", sizes)
    if tuple(item) != shape:
        raise damaged(path, f"images of {_times(shape)}", f"images of {_times(item)}")
    if not 0 < count <= MOST_IMAGES:
        raise damaged(path, f"1 to {MOST_IMAGES:,} {KINDS.get(dims, 'items')}", f"a header that promises {count:,}")
    return int(count)


def _times(sizes: tuple[int, ...] | list[int]) -> str:
    """Return sizes as text, such as "28x28"."""
    return "x".join(map(str, sizes))
