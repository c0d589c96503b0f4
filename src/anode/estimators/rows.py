"""Prepare rows for a model: precision, scaling, and the validation split."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from anode.checks import require

Array = NDArray[Any]


def precision(X: Any) -> Any:
    """Return the dtypes that rows may have; any other dtype is converted to the first of them.

    The first is ``float32`` if it holds every value exactly, as it does for numbers of 8 and 16 bits.
    """
    types = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", ()))  # an array, or a data frame
    narrow = [isinstance(each, np.dtype) and each.kind in "biuf" and each.itemsize <= 2 for each in types]
    return (np.float32, np.float64) if types and all(narrow) else (np.float64, np.float32)


def dense(X: Any) -> Array:
    """Return rows as a dense array of the same dtype."""
    found: Array = X.toarray() if issparse(X) else X
    return found


def scale_of(X: Array, weights: Array | None, *, together: bool, enabled: bool) -> tuple[Array, Array]:
    """Return the offset to subtract from rows, and the scale to divide them by.

    Args:
        X: Rows.
        weights: Weight of each row; ``None`` if all are equal.
        together: Whether all columns share one scale that maps them to [0, 1], as for images.
        enabled: Whether to scale at all; otherwise offset and scale are 0 and 1.
    """
    if not enabled:
        return np.zeros(X.shape[1]), np.ones(X.shape[1])
    if together:
        low, high = float(X.min()), float(X.max())
        return np.full(X.shape[1], low), np.full(X.shape[1], high - low if high > low else 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
        found = StandardScaler().fit(X, sample_weight=weights)
    return found.mean_, found.scale_


def split(data: list[Tensor], fraction: Any, seed: int) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Split off a validation set, stratified by class if there are enough rows.

    Args:
        data: Rows, targets and optional weights. Rows with weight 0 stay in the training set.
        fraction: Fraction of the rows for validation.
        seed: Random seed.

    Returns:
        The training set and the validation set.
    """
    is_fraction = isinstance(fraction, float) and 0 < fraction < 1
    require(is_fraction, "validation_fraction", fraction, "a number between 0 and 1")
    counting = np.arange(len(data[0])) if len(data) == 2 else data[2].numpy().nonzero()[0]
    fits = 1 <= round(fraction * len(counting)) < len(counting)
    takes = f"a fraction that splits the {len(counting)} rows with weight into two parts that are not empty"
    require(fits, "validation_fraction", fraction, takes)
    classes = None if data[1].is_floating_point() else data[1].numpy()[counting]
    if classes is not None and np.unique(classes, return_counts=True)[1].min() * min(fraction, 1 - fraction) < 1:
        classes = None
    _, held_out = train_test_split(counting, test_size=fraction, random_state=seed, stratify=classes)
    kept = np.setdiff1d(np.arange(len(data[0])), held_out)
    return [part[kept] for part in data], tuple(part[held_out] for part in data)
