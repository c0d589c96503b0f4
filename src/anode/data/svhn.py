"""Read the files of SVHN (cropped digits): MATLAB 5.0, with images X [32, 32, 3, n] and labels y [n, 1]."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from anode.data.matlab import Array, read_arrays
from anode.data.reading import MOST_IMAGES, Pair, damaged

NAMES = {"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)}


def read(folder: Path, split: str) -> Pair:
    """Read one split: colour images of 32x32 pixels in 10 classes."""
    return read_mat(folder / NAMES[split][0])


def read_mat(path: Path) -> Pair:
    """Read one file, or raise :class:`anode.files.DamagedFileError`."""
    arrays = read_arrays(path, ("X", "y"))
    images, labels = arrays["X"], arrays["y"]
    count = images.shape[-1]
    if images.shape != (32, 32, 3, count) or not 0 < count <= MOST_IMAGES or images.dtype != np.uint8:
        raise damaged(path, f"X of shape [32, 32, 3, n] and uint8, n up to {MOST_IMAGES:,}", _describe(images))
    if sorted(labels.shape) != sorted((1, count)):
        raise damaged(path, f"y of shape [{count}, 1], a label for each image in X", _describe(labels))
    labels = labels.reshape(-1)
    wrong = labels[~np.isin(labels, np.arange(1, 11))]
    if len(wrong):
        got = f"{wrong[0]} ({len(wrong):,} of {len(labels):,} are out of range)"
        raise damaged(path, "labels from 1 to 10, which is the digit 0", got)
    ordered = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return torch.from_numpy(ordered), torch.from_numpy(labels.astype(np.int64) % 10)


def _describe(values: Array) -> str:
    """Return shape and dtype of an array as text."""
    return f"{list(values.shape)} and {values.dtype.name}"
