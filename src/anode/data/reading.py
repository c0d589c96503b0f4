"""Limits and errors shared by the readers of official files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from anode.files import DamagedFileError

Pair = tuple[Tensor, Tensor]
"""Images as uint8 [n, channels, height, width], and their labels as int64 [n]."""

MOST_IMAGES = 1_000_000
"""No official file holds more. A header with a larger number is refused before memory is allocated."""


def damaged(where: Path | str, takes: str, got: str) -> DamagedFileError:
    """Return an error about a damaged file."""
    return DamagedFileError(f"{where}: takes {takes}, got {got}")


def find(folder: Path, name: str) -> Path | None:
    """Return a file of a dataset, or ``None``. A file that ends in .gz may also be decompressed."""
    candidates = [folder / name, folder / name.removesuffix(".gz")]
    return next((path for path in candidates if path.is_file() or path.is_dir()), None)


def located(folder: Path, name: str) -> Path:
    """Return a file of a dataset, or the path that it should have."""
    return find(folder, name) or folder / name


def check_labels(path: Path, labels: Tensor, classes: int) -> None:
    """Check that labels are at least 0 and less than the number of classes."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        got = f"{int(wrong[0])} ({len(wrong):,} of {len(labels):,} are out of range)"
        raise damaged(path, f"labels from 0 to {classes - 1}", got)


def check_counts(images: Path, labels: Path, pair: Pair) -> None:
    """Check that there is one label per image."""
    counts = [len(part) for part in pair]
    if counts[0] != counts[1]:
        raise damaged(labels, f"a label for each of the {counts[0]:,} images in {images.name}", f"{counts[1]:,} labels")


def joined(pairs: list[Pair]) -> Pair:
    """Return the contents of several files as one."""
    return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])
