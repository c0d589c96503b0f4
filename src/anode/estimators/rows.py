"""Rows on their way to a model: their precision, their scale, and those that are set aside for validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from anode.checks import require

Array = NDArray[Any]


def precision(X: Any) -> Any:
    """Return the dtypes that rows may have; any other is converted to the first of them.

    That is ``float32`` where it holds every value exactly, which it does for numbers of 8 and 16 bits.
    """
    types = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", ()))  # an array, or a data frame
    narrow = [isinstance(each, np.dtype) and each.kind in "biuf" and each.itemsize <= 2 for each in types]
    return (np.float32, np.float64) if types and all(narrow) else (np.float64, np.float32)


def dense(X: Any) -> Array:
    """Return rows as a dense array, in the precision that they have."""
    found: Array = X.toarray() if issparse(X) else X
    return found


def scale_of(X: Array, weights: Array | None, *, together: bool, enabled: bool) -> tuple[Array, Array]:
    """Return what to subtract from rows, and what to divide them by.

    Args:
        X: Rows.
        weights: How much each row counts; ``None`` if all do alike.
        together: Whether all columns have one scale, which maps them to [0, 1], as those of images do.
        enabled: Whether there is anything to subtract or to divide by.
    """
    if not enabled:
        return np.zeros(X.shape[1]), np.ones(X.shape[1])
    if together:
        low, high = float(X.min()), float(X.max())
        return np.full(X.shape[1], low), np.full(X.shape[1], high - low if high > low else 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks what comes of it
        found = StandardScaler().fit(X, sample_weight=weights)
    return found.mean_, found.scale_


def split(data: list[Tensor], fraction: Any, seed: int) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Set rows aside for validation: some of every class, if there are enough.

    Args:
        data: Rows, targets and perhaps weights; rows without weight are not set aside.
        fraction: Which part of the rows.
        seed: Random seed.

    Returns:
        What to train on, and what was set aside.
    """
    is_fraction = isinstance(fraction, float) and 0 < fraction < 1
    require(is_fraction, "validation_fraction", fraction, "a number between 0 and 1")
    counting = np.arange(len(data[0])) if len(data) == 2 else data[2].numpy().nonzero()[0]
    fits = 1 <= round(fraction * len(counting)) < len(counting)
    takes = f"a part that leaves rows on both sides of the {len(counting)} that count"
    require(fits, "validation_fraction", fraction, takes)
    classes = None if data[1].is_floating_point() else data[1].numpy()[counting]
    if classes is not None and np.unique(classes, return_counts=True)[1].min() * min(fraction, 1 - fraction) < 1:
        classes = None
    _, held_out = train_test_split(counting, test_size=fraction, random_state=seed, stratify=classes)
    kept = np.setdiff1d(np.arange(len(data[0])), held_out)
    return [part[kept] for part in data], tuple(part[held_out] for part in data)
