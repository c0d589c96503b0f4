"""Checks of the arrays that plots are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from anode.checks import require

Array = NDArray[Any]


def as_array(values: ArrayLike | Tensor) -> Array:
    """An array of what may be a tensor, on any device and with or without a gradient."""
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)


def as_values(name: str, values: ArrayLike, shape: Sequence[str | int | tuple[int, ...]]) -> Array:
    """An array of floats, checked; what is not finite becomes NaN, which matplotlib leaves out.

    Args:
        name: What the argument is called.
        values: What was given.
        shape: For each dimension its name, if it may have any size, or the size, or the sizes, it takes.
    """
    array = as_array(values).astype(np.float64)
    takes = "an array of shape [" + ", ".join(_in_words(size) for size in shape) + "]"
    fits = array.ndim == len(shape) and all(_fits(n, size) for n, size in zip(array.shape, shape, strict=True))
    require(fits, name, array.shape, takes)
    return np.where(np.isfinite(array), array, np.nan)


def _in_words(size: str | int | tuple[int, ...]) -> str:
    return " or ".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _fits(n: int, size: str | int | tuple[int, ...]) -> bool:
    if isinstance(size, str):
        return n > 0
    return n in size if isinstance(size, tuple) else n == size
