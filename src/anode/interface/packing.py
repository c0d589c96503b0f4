"""torchdiffeq's packing of states, which accepts slopes that :mod:`anode.ode.packing` rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anode.ode.packing import Packing, bad_slope, broadcasts_to
from anode.ode.solution import Names, State

THEIRS = Names(
    f="func",
    event="event_fn",
    more_steps="raise options={'max_num_steps': ...}",
    at_jumps="list the jumps in options={'jump_t': ...}",
    step_size="options={'step_size': 0.1}",
    implicit="method='scipy_solver' with options={'solver': 'Radau'}",
)
"""The words of torchdiffeq's functions."""


class FlatPacking(Packing):
    """The packing of torchdiffeq, which converts states and slopes that :class:`Packing` rejects.

    The components of a tuple may differ in dtype; torch's type promotion applies. Slopes are converted to the dtype of
    the state. In a tuple, slopes need the right number of elements but not the right shape. f may return the same
    tensor each time and overwrite it.

    Args:
        y0: A state.
        broadcasts: Whether slopes are broadcast to the shape of the state.
        names: The words of messages. Defaults to those of methods that adapt their steps.
    """

    def __init__(self, y0: State, broadcasts: bool = False, names: Names = THEIRS) -> None:
        super().__init__(y0, 0)
        self.broadcasts, self.names = broadcasts, names

    def slope_of(self) -> Callable[[Any, Tensor], Tensor]:
        return self._flattened if self.is_tuple else self._fitted

    def _flattened(self, slopes: Any, y: Tensor) -> Tensor:
        parts = [part.reshape(-1) for part in slopes]
        sizes = [part.numel() for part in parts]
        if sum(sizes) != y.numel() or (len(sizes) == len(self.sizes) and sizes != self.sizes):
            raise ValueError(
                f"{self.names.f} must return slopes of {self.sizes} elements, like the state, but they have {sizes}"
            )
        return self._converted(torch.cat(parts), y)

    def _fitted(self, slope: Any, y: Tensor) -> Tensor:
        if not isinstance(slope, Tensor):
            if not self.broadcasts or not isinstance(slope, int | float):
                raise bad_slope(slope, y, self.names.f)
            slope = y.new_tensor(slope)
        if slope.shape != y.shape:
            slope = self._reshaped(slope, y)
        if slope.dtype != y.dtype:
            slope = self._converted(slope, y)
        # A tensor that was written to in place may be a buffer that f will write to again.
        return slope.clone() if slope.is_inference() or slope._version else slope

    def _reshaped(self, slope: Tensor, y: Tensor) -> Tensor:
        """Return a slope without leading dimensions of size 1, broadcast to the shape of y if allowed or harmless."""
        front = max(slope.ndim - y.ndim, 0)
        shape = slope.shape[front:]
        fits = (self.broadcasts or slope.numel() == y.numel()) and broadcasts_to(shape, y.shape)
        if not fits or any(n != 1 for n in slope.shape[:front]):
            raise bad_slope(slope, y, self.names.f)
        return slope.reshape(shape).expand(y.shape)

    def _converted(self, slope: Tensor, y: Tensor) -> Tensor:
        if slope.is_complex() and not y.is_complex():
            raise bad_slope(slope, y, self.names.f)
        return slope.to(y.dtype)
