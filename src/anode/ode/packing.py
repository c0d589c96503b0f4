"""States that are tuples: the solver sees one tensor, f and the caller see the tuple."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anode.ode.control import Norm, largest_rms, rms
from anode.ode.solution import State


class Packing:
    """How a state lies in one tensor.

    A tensor is left as it is. The components of a tuple are flattened behind their group dimensions and laid side by
    side.

    Args:
        y0: A state, already checked.
        group_dims: How many leading dimensions all components share and keep.
    """

    def __init__(self, y0: State, group_dims: int) -> None:
        self.is_tuple = isinstance(y0, tuple)
        components = y0 if isinstance(y0, tuple) else (y0,)
        self.groups = components[0].shape[:group_dims]
        self.shapes = [component.shape[group_dims:] for component in components]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.device = components[0].device

    def pack(self, state: State) -> Tensor:
        """A state as one tensor."""
        if isinstance(state, Tensor):
            return state
        return torch.cat([component.reshape(*self.groups, -1) for component in state], dim=-1)

    def unpack(self, packed: Tensor) -> State:
        """The state in a tensor, which may have dimensions of its own in front."""
        if not self.is_tuple:
            return packed
        front = packed.shape[:-1]
        parts = packed.split(self.sizes, dim=-1)
        return tuple(part.reshape(front + shape) for part, shape in zip(parts, self.shapes, strict=True))

    def pack_tolerance(self, name: str, tolerance: Any) -> float | Tensor:
        """A tolerance in the form the packed state has."""
        if isinstance(tolerance, Tensor):
            return tolerance.to(self.device)
        if not isinstance(tolerance, tuple | list):
            return tolerance
        if len(tolerance) != len(self.shapes) or not self.is_tuple:
            raise ValueError(
                f"{name}: takes one value for each of the {len(self.shapes)} components of y0, got {len(tolerance)}"
            )
        return self.pack(
            tuple(
                torch.as_tensor(part, device=self.device).expand((*self.groups, *shape))
                for part, shape in zip(tolerance, self.shapes, strict=True)
            )
        )

    def norm(self) -> Norm:
        """The root mean square of the state; of a tuple, the largest of its components'."""
        dims = len(self.groups)
        return largest_rms(dims, self.sizes) if self.is_tuple else rms(dims, self.sizes[0])

    def rate(self, f: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Tensor], Tensor]:
        """F on packed states, with its result checked."""
        last: list[Any] = [None, 0]

        def evaluate(t: Tensor, y: Tensor) -> Tensor:
            before = _version(y)
            slope = _uncast(f(t, y), y)
            if not isinstance(slope, Tensor) or slope.shape != y.shape or slope.dtype != y.dtype:
                raise bad_slope(slope, y)
            if _version(y) != before:
                raise changed_state()
            if slope is last[0] and _version(slope) != last[1]:
                raise ValueError("f must return a new tensor each time, but it overwrote the one it returned before")
            last[:] = slope, _version(slope)
            return slope

        def evaluate_tuple(t: Tensor, y: Tensor) -> Tensor:
            state, before = self.unpack(y), _version(y)
            slopes = f(t, state)
            if _version(y) != before:
                raise changed_state()
            if isinstance(slopes, tuple | list):
                slopes = tuple(_uncast(slope, y) for slope in slopes)
            if not isinstance(slopes, tuple | list) or len(slopes) != len(state):
                raise TypeError(
                    f"f must return a tuple of {len(state)} tensors, like the state it is given, but it returned "
                    f"{describe(slopes)}"
                )
            for slope, component in zip(slopes, state, strict=True):
                if not isinstance(slope, Tensor) or slope.shape != component.shape or slope.dtype != component.dtype:
                    raise bad_slope(slope, component)
            return self.pack(tuple(slopes))

        return evaluate_tuple if self.is_tuple else evaluate


def _uncast(slope: Any, y: Tensor) -> Any:
    """Under autocast, what f returns in the lower precision, in the precision of the state."""
    if torch.is_autocast_enabled(y.device.type) and isinstance(slope, Tensor):
        return slope.to(y.dtype)
    return slope


def _version(x: Tensor) -> int:
    """How often a tensor has been changed in place, where that is known."""
    return 0 if x.is_inference() else x._version


def changed_state() -> Exception:
    """The error for an f that writes into the state."""
    return ValueError("f must not change the state it is given in place; return a new tensor")


def bad_slope(slope: Any, y: Tensor) -> Exception:
    """The error for an f that returns something else than a slope for y."""
    kind = ValueError if isinstance(slope, Tensor) else TypeError
    return kind(f"f must return {describe(y)}, like the state it is given, but it returned {describe(slope)}")


def describe(value: Any) -> str:
    """A short description of a value for error messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} elements"
    return f"a {type(value).__name__}"
