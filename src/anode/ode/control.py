"""How large the next step is: controllers, tolerances and error norms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from anode.checks import Words, describe, require

Norm = Callable[[Tensor], Tensor]
"""Maps a scaled error to one number (joint control) or to one a group."""

Number = Any
"""A float or a tensor: times and step sizes are either, see the two clocks."""


Memory = Any
"""What a controller remembers from step to step."""


class Controller(ABC):
    """Decides which steps to keep, and how large the next one is.

    The solver calls :meth:`start` once per solve and :meth:`decide` once per step. With one step size for the whole
    state the error ratio is a float. With one per group it is a tensor with one entry per group, and so is everything
    that :meth:`decide` returns. The solver enforces one rule: if a step is rejected and its factor is not below 1, the
    next step is half as large. A factor that is not above 0 is an error, unless the error ratio is not finite.

    Example:
        >>> import torch, anode
        >>> class Halving(anode.Controller):
        ...     def start(self, order):
        ...         return None
        ...     def decide(self, ratio, memory):
        ...         accept = ratio <= 1
        ...         return accept, 0.5 + 0.5 * accept, memory
        >>> anode.solve(lambda t, y: -y, torch.ones(2), (0.0, 1.0), controller=Halving()).success
        True
    """

    @abstractmethod
    def start(self, order: int) -> Memory:
        """Return the memory at the start of a solve with a method of this order."""

    @abstractmethod
    def decide(self, ratio: Number, memory: Memory) -> tuple[Any, Number, Memory]:
        """Judge a step.

        Args:
            ratio: The step's error divided by what the tolerances allow; may be NaN or infinite.
            memory: What the previous call returned, or :meth:`start`.

        Returns:
            Whether to keep the step, the size of the next step divided by the size of this one, and the new memory.
        """


@dataclass(frozen=True)
class PID(Controller):
    """A step-size controller that remembers up to two earlier errors.

    With r(n) the error ratio of step n and k the order of the method, the step after an accepted one is larger by the
    factor ``safety * r(n)**(-(p + i + d) / k) * r(n - 1)**((p + 2 * d) / k) * r(n - 2)**(-d / k)``, limited to the
    range from 1 to ``max_factor``. After a rejection the factor is ``safety * r(n)**(-(p + i + d) / k)``, at least
    ``min_factor``: remembered errors say nothing about a step that failed.

    Attributes:
        p, i, d: The proportional, integral and differential coefficients. The default, i = 1, is the integral
            controller, which decides as torchdiffeq does.
        safety: A factor below 1 that makes rejections rarer.
        min_factor, max_factor: How much a step may shrink or grow.

    References:
        Soderlind, *Digital filters in adaptive time-stepping*, ACM TOMS 29 (2003); Hairer and Wanner, section IV.2.
    """

    p: float = 0.0
    i: float = 1.0
    d: float = 0.0
    safety: float = 0.9
    min_factor: float = 0.2
    max_factor: float = 10.0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.p, self.i, self.d))):
            raise ValueError(f"controller: takes finite p, i and d, got p={self.p}, i={self.i}, d={self.d}")
        if not 0 < self.min_factor < 1 <= self.max_factor or not 0 < self.safety <= 1:
            raise ValueError(
                "controller: needs 0 < min_factor < 1 <= max_factor and 0 < safety <= 1, got "
                f"min_factor={self.min_factor}, max_factor={self.max_factor}, safety={self.safety}"
            )

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it, in the order of its fields."""
        return self.p, self.i, self.d, self.safety, self.min_factor, self.max_factor

    def start(self, order: int) -> Memory:
        """The method's order, and the error ratios of the last two accepted steps."""
        return order, 1.0, 1.0

    def decide(self, ratio: Number, memory: Memory) -> tuple[Any, Number, Memory]:
        """Accept a step whose error is within the tolerances."""
        order, last, before = memory
        if isinstance(ratio, Tensor):
            accept = ratio <= 1
            last, before = (torch.as_tensor(x, dtype=ratio.dtype, device=ratio.device) for x in (last, before))
            grown = self._scaled(ratio.clamp_min(_TINY), (last, before), order).clamp(1.0, self.max_factor)
            # A NaN makes the step shrink as far as allowed.
            shrunk = self._scaled(ratio, (), order).nan_to_num(nan=0.0).clamp_min(self.min_factor)
            memory = order, torch.where(accept, ratio, last), torch.where(accept, last, before)
            return accept, torch.where(accept, grown, shrunk), memory
        if ratio <= 1:
            factor = self._scaled(max(ratio, _TINY), (last, before), order)
            return True, max(min(factor, self.max_factor), 1.0), (order, ratio, last)
        shrunk = self._scaled(ratio, (), order) if math.isfinite(ratio) else 0.0
        return False, max(shrunk, self.min_factor), memory

    def _scaled(self, ratio: Number, remembered: tuple[Number, ...], order: int) -> Number:
        """The factor without its bounds."""
        p, i, d = self.p / order, self.i / order, self.d / order
        factor = self.safety * ratio ** -(p + i + d)
        for error, exponent in zip(remembered, (p + 2 * d, -d), strict=False):
            if exponent:
                floored = error.clamp_min(_FLOOR) if isinstance(error, Tensor) else max(error, _FLOOR)
                factor = factor * floored**exponent
        return factor


def decide(controller: Controller, ratio: Number, memory: Memory) -> tuple[Any, Number, Memory]:
    """What a controller decides; checked, if a user wrote it. Where the ratio is not finite the factor may be NaN."""
    if type(controller) is PID:
        return controller.decide(ratio, memory)
    per_group = isinstance(ratio, Tensor)
    try:
        found = controller.decide(ratio, memory)
    except RuntimeError as error:
        if not per_group or "Boolean value of Tensor" not in str(error):
            raise
        given = "a tensor of error ratios, one per group, and returns tensors"
        raise TypeError(
            f'controller: decide is given {given}; use torch.where in place of if, or control="joint"'
        ) from error
    takes = "a decide(ratio, memory) that returns whether to keep the step, the factor of its size, and the memory"
    if not isinstance(found, tuple | list) or len(found) != 3 or not isinstance(found[1], Tensor | Real):
        got = Words(repr(found)) if isinstance(found, tuple | list) else describe(found)
        raise TypeError(f"controller: takes {takes}, got one that returned {got}")
    factor = torch.as_tensor(found[1])
    usable = (factor > 0) | ~torch.as_tensor(ratio).isfinite()
    require(bool(usable.all()), "controller", found[1], "a decide(ratio, memory) that returns a factor above 0")
    return found


def checked_factor(accept: Any, factor: Number) -> Number:
    """A controller's factor; 1/2 where a step was rejected and would not become smaller, 1 for what is no factor."""
    if isinstance(factor, Tensor):
        factor = torch.where(factor > 0, factor, torch.where(accept, 1.0, 0.5))
        return torch.where(accept | (factor < 1), factor, 0.5)
    if not factor > 0:
        return 1.0 if accept else 0.5
    return factor if accept or factor < 1 else 0.5


_TINY = 1e-30

_FLOOR = 1e-4
"""Remembered errors below this count as this: they are often rounding errors. Hairer's dopri5 does the same."""

CONTROLLERS = {"integral": PID(), "pi": PID(p=0.4, i=0.3), "pid": PID(p=0.2, i=0.4, d=0.1)}
"""Controllers by name. PI with Gustafsson's coefficients, PID with diffrax's suggestion for mildly stiff problems."""


def rms(group_dims: int, size: int) -> Norm:
    """The root mean square over everything but the first ``group_dims`` dimensions.

    Args:
        group_dims: How many leading dimensions index groups; 0 for one number in all.
        size: How many elements a group has.
    """
    scale = 1 / math.sqrt(max(size, 1))
    if group_dims == 0:
        return lambda x: torch.linalg.vector_norm(x).mul_(scale)

    def norm(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x.reshape(*x.shape[:group_dims], -1), dim=-1).mul_(scale)

    return norm


def largest_rms(group_dims: int, sizes: list[int]) -> Norm:
    """For a packed tuple: the largest of its components' root mean squares."""
    counted = [(i, rms(group_dims, size)) for i, size in enumerate(sizes) if size or not sum(sizes)]

    def norm(x: Tensor) -> Tensor:
        parts = x.split(sizes, dim=-1)
        return torch.stack([norm_of(parts[i]) for i, norm_of in counted]).amax(0)

    return norm
