"""Pack a tuple state into one tensor for the solver, and unpack it for f and the caller."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import describe, uncallable
from anode.ode.control import Norm, largest_rms, rms
from anode.ode.solution import OURS, State, as_tuple


class OnPacked(ABC):
    """A right-hand side on tuples that may have a faster version on packed states."""

    @abstractmethod
    def on_packed(self, sizes: Sequence[int]) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return the right-hand side on concatenated components of these sizes; ``None`` if it takes tuples only."""


class Packing:
    """The conversion between a state and one tensor.

    A state that is a tensor is not changed. The components of a tuple are flattened after their group dimensions and
    concatenated.

    Args:
        y0: A checked state.
        group_dims: Number of leading dimensions that all components share and keep.

    Attributes:
        names: The words of the function that was given the state, for messages.
    """

    names = OURS

    def __init__(self, y0: State, group_dims: int) -> None:
        self.is_tuple = isinstance(y0, tuple)
        components = as_tuple(y0)
        self.groups = components[0].shape[:group_dims]
        self.shapes = [component.shape[group_dims:] for component in components]
        self.whole_shapes = [component.shape for component in components]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.device = components[0].device

    def pack(self, state: State, stacked: bool = False) -> Tensor:
        """Return a state as one tensor; ``stacked`` for several states, along a new first dimension."""
        if isinstance(state, Tensor):
            return state
        front = state[0].shape[:stacked] + self.groups
        return torch.cat([component.reshape(*front, -1) for component in state], dim=-1)

    def unpack(self, packed: Tensor, split: Callable[..., Sequence[Tensor]] = Tensor.split) -> State:
        """Return the state in a packed tensor, which may have additional leading dimensions.

        Args:
            packed: The tensor.
            split: Splits it into components. With the default, autograd forbids to change them in place. With
                ``torch.unsafe_split_with_sizes`` they may be changed if ``packed`` is not used any more, with
                :func:`views` they may always be changed, but their gradient takes longer.
        """
        if not self.is_tuple:
            return packed
        front = packed.shape[:-1]
        parts = split(packed, self.sizes, dim=-1)
        return tuple(part.reshape(front + shape) for part, shape in zip(parts, self.shapes, strict=True))

    def pack_tolerance(self, name: str, tolerance: Any) -> float | Tensor:
        """Return a tolerance in the layout of the packed state."""
        if isinstance(tolerance, Tensor):
            return tolerance.to(self.device)
        if not isinstance(tolerance, tuple | list):
            return tolerance
        if len(tolerance) != len(self.shapes) or not self.is_tuple:
            raise ValueError(
                f"{name}: takes one value per component of y0, which are {len(self.shapes)}, got {len(tolerance)}"
            )
        return self.pack(
            tuple(
                torch.as_tensor(part, device=self.device).expand((*self.groups, *shape))
                for part, shape in zip(tolerance, self.shapes, strict=True)
            )
        )

    def norm(self) -> Norm:
        """Return the norm: the root mean square of the state; for a tuple, the largest of its components."""
        dims = len(self.groups)
        return largest_rms(dims, self.sizes) if self.is_tuple else rms(dims, self.sizes[0])

    def rate(self, f: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Tensor], Tensor]:
        """Return f on packed states, with its result checked."""
        if isinstance(f, OnPacked) and not self.groups and (packed := f.on_packed(self.sizes)) is not None:
            return packed
        slope_of, unpack, is_tuple, name = self.slope_of(), self.unpack, self.is_tuple, self.names.f

        def evaluate(t: Tensor, y: Tensor) -> Tensor:
            before = 0 if y.is_inference() else y._version
            try:
                result = f(t, unpack(y) if is_tuple else y)
            except TypeError as error:
                if (wrong := wrong_call(f, name)) is None:
                    raise
                raise wrong from error
            if before != (0 if y.is_inference() else y._version):
                raise ValueError(f"{name} must not modify its state in place; return a new tensor")
            return slope_of(result, y)

        return evaluate

    def slope_of(self) -> Callable[[Any, Tensor], Tensor]:
        """Return a function that checks and packs what f returned, given the packed state."""
        return self._checked_tuple if self.is_tuple else OwnMemory(self.names.f)

    def _checked_tuple(self, slopes: Any, y: Tensor) -> Tensor:
        state = self.unpack(y)
        if not isinstance(slopes, tuple | list) or len(slopes) != len(state):
            raise TypeError(
                f"{self.names.f} must return a tuple of {len(state)} tensors, like the state it was given, but it "
                f"returned {describe(slopes)}"
            )
        return self.pack(tuple(_checked(slope, part, self.names.f) for slope, part in zip(slopes, state, strict=True)))


class OwnMemory:
    """Checks slopes that are tensors, and that f does not overwrite a slope it returned before.

    Args:
        name: What errors call f.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Tensor | None = None
        self._last_version = 0

    def __call__(self, slope: Any, y: Tensor) -> Tensor:
        slope, last = _checked(slope, y, self._name), self._last
        version = 0 if slope.is_inference() else slope._version
        if last is not None and _version(last) != self._last_version and _same_memory(slope, last):
            raise ValueError(
                f"{self._name} must return a new tensor each time, but it overwrote the one it returned last time"
            )
        self._last, self._last_version = slope, version
        return slope


def views(packed: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Split a tensor into views that may be changed in place."""
    return [packed.narrow(dim, end - size, size) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of one shape broadcasts to another."""
    return len(shape) <= len(target) and all(n in (1, m) for n, m in zip(shape[::-1], target[::-1], strict=False))


def _checked(slope: Any, y: Tensor, name: str) -> Tensor:
    if isinstance(slope, Tensor) and slope.shape == y.shape and slope.dtype == y.dtype:
        return slope
    slope = _uncast(slope, y)
    if not isinstance(slope, Tensor) or slope.shape != y.shape or slope.dtype != y.dtype:
        raise bad_slope(slope, y, name)
    return slope


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors begin at the same address; under transforms of torch, whether they are the same object."""
    return a is b or (not torch._C._are_functorch_transforms_active() and a.data_ptr() == b.data_ptr())


def _uncast(slope: Any, y: Tensor) -> Any:
    """Convert what f returned under autocast to the precision of the state."""
    if torch.is_autocast_enabled(y.device.type) and isinstance(slope, Tensor):
        return slope.to(y.dtype)
    return slope


def _version(x: Tensor) -> int:
    """Return how often a tensor has been modified in place; 0 for inference tensors."""
    return 0 if x.is_inference() else x._version


def wrong_call(f: Callable[..., Any], name: str = "f") -> Exception | None:
    """Return the error for an f, called this name, that does not take two arguments; ``None`` if it does."""
    why = uncallable(f, 2)
    if why is None:
        return None
    timeless = f"torch.nn.Sequential({name}), which is called with the state only" if isinstance(f, nn.Module) else ""
    hint = "" if uncallable(f, 1) else f"; if it does not depend on time, pass {timeless or f'lambda t, y: {name}(y)'}"
    return TypeError(f"{name}: takes a function that can be called as {name}(t, y), got {why}{hint}")


def bad_slope(slope: Any, y: Tensor, name: str) -> Exception:
    """Return the error for an f, called this name, whose result is not a slope for y."""
    kind = ValueError if isinstance(slope, Tensor) else TypeError
    return kind(f"{name} must return {describe(y)}, like the state it was given, but it returned {describe(slope)}")
