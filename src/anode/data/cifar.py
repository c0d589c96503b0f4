"""Read the binary files of CIFAR-10: records of one byte for the label and 3072 for the image."""

from __future__ import annotations

from pathlib import Path

import torch

from anode.data.reading import MOST_IMAGES, Pair, check_labels, damaged, joined

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
FOLDER = "cifar-10-batches-bin"
NAMES = {
    "train": tuple(f"{FOLDER}/data_batch_{i}.bin" for i in range(1, 6)),
    "test": (f"{FOLDER}/test_batch.bin",),
}


def read(folder: Path, split: str) -> Pair:
    """Read one split: colour images of 32x32 pixels in 10 classes."""
    return joined([read_batch(folder / name) for name in NAMES[split]])


def read_batch(path: Path) -> Pair:
    """Read one file, or raise :class:`anode.files.DamagedFileError`."""
    size = path.stat().st_size
    if size == 0 or size % RECORD or size > MOST_IMAGES * RECORD:
        raise damaged(path, f"the binary version of CIFAR-10, records of {RECORD:,} bytes", f"{size:,} bytes")
    records = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).reshape(-1, RECORD)
    labels = records[:, 0].long()
    check_labels(path, labels, 10)
    return records[:, 1:].reshape(-1, *SHAPE), labels
