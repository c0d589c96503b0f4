"""Checks of the arguments of a solve: states, times and tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from anode.checks import describe, is_finite, lookup, require
from anode.ode.packing import broadcasts_to
from anode.ode.solution import State, as_tuple
from anode.ode.transforms import refuse_vmap

T = TypeVar("T")

FLOAT = frozenset({float})


def tensors(y0: Any, mixed: bool = False) -> State:
    """Check that a state is a floating point tensor or a tuple of them; of at least one if ``mixed``."""
    components = y0 if isinstance(y0, tuple | list) else (y0,)
    if not components:
        raise ValueError("y0: takes a tensor or a tuple of at least one tensor, got an empty tuple")
    for component in components:
        if not isinstance(component, Tensor):
            got = describe(y0 if all(isinstance(each, Real) for each in components) else component)
            hint = "convert it with torch.tensor(...)"
            raise TypeError(f"y0: takes a tensor or a tuple of tensors, got {got}; {hint}")
        is_inexact = component.is_floating_point() or component.is_complex()
        if not is_inexact and not (mixed and any(map(_is_inexact, components))):
            raise TypeError(f"y0: takes floating point values, got {describe(component)}; convert it with .float()")
        refuse_vmap(component)
    return tuple(components) if isinstance(y0, tuple | list) else components[0]


def _is_inexact(x: Any) -> bool:
    """Whether x is a tensor of floating point or complex numbers."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def state(y0: Any) -> State:
    """Check that the tensors of an initial state share a dtype and device, and that their values are finite."""
    y0 = tensors(y0)
    components = as_tuple(y0)
    for component in components:
        if component.dtype != components[0].dtype or component.device != components[0].device:
            raise ValueError(
                f"y0: takes tensors of the same dtype and device, got {component.dtype} on {component.device} "
                f"and {components[0].dtype} on {components[0].device}"
            )
    if sum(component.numel() for component in components) == 0:
        raise ValueError(f"y0: takes a state with at least one element, got {describe(components[0])}")
    if not all(map(is_finite, components)):
        raise ValueError("y0: takes finite values, got NaN or infinity")
    return y0


def group_dims(control: Any, y0: State) -> int:
    """Return the number of leading dimensions that index groups with their own step size."""
    components = as_tuple(y0)
    smallest = min(component.ndim for component in components)
    if isinstance(control, int) and not isinstance(control, bool):
        dims = control
    else:
        # [batch], [batch, features], [members, batch, features], [batch, c, h, w], [members, batch, c, h, w]
        sample = {0: 0, 1: 1, 2: 1, 3: 2, 4: 1, 5: 2}.get(components[0].ndim, 1)
        dims = lookup("control", control, {"joint": 0, "member": 1, "sample": sample})
    require(0 <= dims <= smallest, "control", control, f"0 to {smallest} leading dimensions, because y0 has {smallest}")
    if len({component.shape[:dims] for component in components}) > 1:
        shapes = ", ".join(str(tuple(component.shape)) for component in components)
        raise ValueError(
            f"control: {control!r} requires all components of y0 to have the same first {dims} dimensions, got {shapes}"
        )
    return dims


def tolerance(name: str, value: Any, y0: State) -> None:
    """Check a tolerance of a solver against a state: it broadcasts, or has one entry per component."""
    is_tuple = isinstance(y0, tuple) and isinstance(value, tuple | list)
    for part, y in zip(value, y0, strict=False) if is_tuple else [(value, y0)]:
        if not isinstance(part, int | float | Tensor):
            raise TypeError(f"{name}: takes a number, a tensor, or one of either per component of y0, got {part!r}")
        if isinstance(part, Tensor) and isinstance(y, Tensor):
            broadcasts(name, part, y.shape)
        takes = "a number, or a tuple with one number or tensor per component of y0"
        require(not isinstance(y, tuple) or not isinstance(part, Tensor) or part.ndim == 0, name, part, takes)


def broadcasts(name: str, value: Tensor, shape: Sequence[int]) -> None:
    """Check that a tensor broadcasts to a shape."""
    require(broadcasts_to(value.shape, shape), name, value, f"a shape that broadcasts to the state's, {tuple(shape)}")


class Times(NamedTuple):
    """The times of a solve.

    Attributes:
        ends: The values of ``t_span``.
        saved: The values of ``save_at``; ``None`` if it was not given.
        moving: All times as they were given, from start to end, if any of them requires a gradient; otherwise empty.
    """

    ends: tuple[float, ...]
    saved: tuple[float, ...] | None
    moving: tuple[Any, ...]

    def as_tensor(self, y0: State) -> Tensor | None:
        """Return all times as a tensor with a gradient; ``None`` if none requires one."""
        if not self.moving:
            return None
        device = as_tuple(y0)[0].device
        return torch.stack([torch.as_tensor(t, dtype=torch.float64, device=device) for t in self.moving])

    def checked(self, has_event: bool) -> tuple[list[float], list[int]]:
        """Check the times, and return all of them from start to end, and the indices of the outputs.

        The last index is always that of the end.
        """
        if len(self.ends) != 2:
            hint = "; pass the times between them as save_at" if len(self.ends) > 2 else ""
            raise ValueError(f"t_span: takes a start and an end time, got {len(self.ends)} values{hint}")
        saved = list(self.saved or ())
        values = [self.ends[0], *saved, self.ends[1]]
        if not all(math.isfinite(t) for t in values[:-1]) or math.isnan(values[-1]):
            raise ValueError(f"t_span, save_at: take finite times, got {values}")
        direction = 1 if values[-1] >= values[0] else -1
        if any((b - a) * direction <= 0 for a, b in pairwise(saved)):
            raise ValueError(f"save_at: takes distinct times in the order of t_span, got {saved}")
        if saved and ((saved[0] - values[0]) * direction < 0 or (values[-1] - saved[-1]) * direction < 0):
            raise ValueError(f"save_at: takes times within t_span = ({values[0]}, {values[-1]}), got {saved}")
        wanted = list(range(1, len(values)))
        if saved and saved[0] == values[0]:
            wanted[0] = 0  # the output at the start is y0, whatever the start time
        if saved and saved[-1] == values[-1] and not self.moving and not has_event:
            wanted.pop()  # the saved time and the end share one output
        return values, wanted


def times(t_span: Any, save_at: Any) -> Times:
    """Return the times of a solve. :meth:`Times.checked` checks them, unless they were checked before."""
    if save_at is None and type(t_span) is tuple and FLOAT.issuperset(map(type, t_span)):  # what most callers pass
        return Times(tuple(map((0.0).__add__, t_span)), None, ())
    span, ends = sequence("t_span", t_span)
    between, saved = ((), None) if save_at is None else sequence("save_at", save_at)
    moves = any(isinstance(t, Tensor) and t.requires_grad for t in (*span, *between))
    return Times(ends, saved, (*span[:1], *between, *span[1:]) if moves else ())


def sequence(name: str, given: Any) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    """Check a sequence of times and return it as a tuple, and as one of numbers."""
    if not isinstance(given, Iterable) or isinstance(given, str) or (isinstance(given, Tensor) and given.ndim != 1):
        raise TypeError(f"{name}: takes a sequence of times, got {given!r}")
    found = tuple(given)
    for t in found:
        if isinstance(t, Tensor) and t.numel() != 1:
            raise ValueError(f"{name}: takes one number per time, the same for all samples, got {describe(t)}")
    try:
        # Adding a number raises an error for strings, which float() would convert. It also makes zeros positive.
        return found, tuple(float(t.detach()) if isinstance(t, Tensor) else float(t + 0.0) for t in found)
    except TypeError:
        raise TypeError(f"{name}: takes a sequence of numbers, got {given!r}") from None


def even_steps(start: float, end: float, step_size: float, most: int) -> list[float]:
    """Return times from start to end, ``step_size`` apart, with at most ``most`` steps. The last step may be shorter.

    A remainder as small as the rounding error of single precision does not become a step of its own.
    """
    steps = abs(end - start) / step_size
    rounding = max(1e-9, min(2e-7 * steps, 1e-3))
    count = min(max(1.0, math.ceil(steps - rounding) if math.isfinite(steps) else math.inf), most + 1)
    step = math.copysign(step_size, end - start)
    times = [start + i * step for i in range(int(count))]
    return times if count > most else [*times, end]


def between(t: float, times: Sequence[float]) -> bool:
    """Whether t lies between the first and the last of the times."""
    return min(times[0], times[-1]) <= t <= max(times[0], times[-1])
