"""Checks of the arrays that are passed to plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from anode.checks import require

Array = NDArray[Any]


def as_array(values: ArrayLike | Tensor) -> Array:
    """Return values as an array; tensors may be on any device and require a gradient."""
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)


def as_values(name: str, values: ArrayLike, shape: Sequence[str | int | tuple[int, ...]]) -> Array:
    """Check an array and return it as floats, with NaN, which matplotlib omits, for values that are not finite.

    Args:
        name: Name of the argument, for error messages.
        values: The array.
        shape: For each dimension its size, a tuple of allowed sizes, or a name if any size is allowed.
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
