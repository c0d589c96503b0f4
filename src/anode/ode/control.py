"""Step-size controllers and error norms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from anode.checks import Words, describe, names_settings, real_number, require

Norm = Callable[[Tensor], Tensor]
"""A function that maps a scaled error to one number (joint control) or one number per group."""

Number = Any
"""A float or a tensor. Times and step sizes are floats with joint control, otherwise tensors; see the two clocks."""


Memory = Any
"""What a controller remembers from step to step."""


class Controller(ABC):
    """Base class of step-size controllers, which decide whether to accept a step and how large the next one is.

    The solver calls :meth:`start` once per solve and :meth:`decide` once per step. With one step size for the whole
    state, the error ratio is a float. With one step size per group, it is a tensor with one entry per group, and so is
    everything that :meth:`decide` returns. If a step is rejected and its factor is not below 1, the solver halves the
    step. A factor that is not above 0 is an error, unless the error ratio is not finite.

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
        """Decide whether to accept a step, and the size of the next one.

        Args:
            ratio: The step's error divided by the error that the tolerances allow. It may be NaN or infinite.
            memory: The memory that the previous call, or :meth:`start`, returned.

        Returns:
            A tuple of whether to accept the step, the size of the next step divided by that of this step, and the new
            memory.
        """


@names_settings
@dataclass(frozen=True)
class PID(Controller):
    """A PID step-size controller, which takes up to two earlier errors into account.

    Let r(n) be the error ratio of step n and k the order of the method. After an accepted step, the step size is
    multiplied by ``safety * r(n)**(-(p + i + d) / k) * r(n - 1)**((p + 2 * d) / k) * r(n - 2)**(-d / k)``, clamped to
    the range from 1 to ``max_factor``. After a rejected step, it is multiplied by ``safety * r(n)**(-(p + i + d) /
    k)``, clamped from below to ``min_factor``.

    Attributes:
        p, i, d: Proportional, integral and derivative coefficients. The default, i = 1, is the integral controller,
            which makes the same decisions as torchdiffeq.
        safety: Safety factor, at most 1. Smaller values make rejections rarer.
        min_factor, max_factor: Bounds of the factor by which the step size changes.

    References:
        Soderlind, *Digital filters in adaptive time-stepping*, ACM TOMS 29 (2003); Hairer and Wanner, section IV.2.

    Example:
        >>> import torch, anode
        >>> careful = anode.PID(p=0.2, i=0.4, safety=0.8)
        >>> anode.solve(lambda t, y: -y, torch.ones(2), (0.0, 1.0), controller=careful).success
        True
    """

    p: float = 0.0
    i: float = 1.0
    d: float = 0.0
    safety: float = 0.9
    min_factor: float = 0.2
    max_factor: float = 10.0

    def __post_init__(self) -> None:
        checks: tuple[tuple[str, Callable[[float], bool], str], ...] = (
            *((name, math.isfinite, "a finite number") for name in ("p", "i", "d")),
            ("safety", lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
            ("min_factor", lambda x: 0 < x < 1, "a number between 0 and 1"),
            ("max_factor", lambda x: x >= 1, "a number from 1"),
        )
        for name, fits, takes in checks:
            value = real_number(getattr(self, name))
            require(value is not None and fits(value), name, getattr(self, name), takes)
            object.__setattr__(self, name, value)

    @property
    def numbers(self) -> tuple[float, ...]:
        """All coefficients, in the order of the fields."""
        return self.p, self.i, self.d, self.safety, self.min_factor, self.max_factor

    def start(self, order: int) -> Memory:
        """Return the initial memory: the method's order and the error ratios of the last two accepted steps."""
        return order, 1.0, 1.0

    def decide(self, ratio: Number, memory: Memory) -> tuple[Any, Number, Memory]:
        """Accept a step if its error is within the tolerances."""
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
        """Return the factor before it is clamped."""
        p, i, d = self.p / order, self.i / order, self.d / order
        factor = self.safety * ratio ** -(p + i + d)
        for error, exponent in zip(remembered, (p + 2 * d, -d), strict=False):
            if exponent:
                floored = error.clamp_min(_FLOOR) if isinstance(error, Tensor) else max(error, _FLOOR)
                factor = factor * floored**exponent
        return factor


def decide(controller: Controller, ratio: Number, memory: Memory) -> tuple[Any, Number, Memory]:
    """Return a controller's decision, and check it unless it is a :class:`PID`.

    If the ratio is not finite, the factor may be NaN.
    """
    if type(controller) is PID:
        return controller.decide(ratio, memory)
    per_group = isinstance(ratio, Tensor)
    try:
        found = controller.decide(ratio, memory)
    except RuntimeError as error:
        if not per_group or "Boolean value of Tensor" not in str(error):
            raise
        given = "a tensor of error ratios, one per group, and must return tensors"
        raise TypeError(
            f'controller: decide is given {given}; use torch.where instead of if, or control="joint"'
        ) from error
    takes = "a decide(ratio, memory) that returns whether to accept the step, the step-size factor, and the memory"
    if not isinstance(found, tuple | list) or len(found) != 3 or not isinstance(found[1], Tensor | Real):
        got = Words(repr(found)) if isinstance(found, tuple | list) else describe(found)
        raise TypeError(f"controller: takes {takes}, got one that returned {got}")
    factor = torch.as_tensor(found[1])
    usable = (factor > 0) | ~torch.as_tensor(ratio).isfinite()
    require(bool(usable.all()), "controller", found[1], "a decide(ratio, memory) that returns a factor above 0")
    return found


def checked_factor(accept: Any, factor: Number) -> Number:
    """Return a controller's factor; 1/2 if it would not shrink a rejected step, 1 if it is not above 0 otherwise."""
    if isinstance(factor, Tensor):
        factor = torch.where(factor > 0, factor, torch.where(accept, 1.0, 0.5))
        return torch.where(accept | (factor < 1), factor, 0.5)
    if not factor > 0:
        return 1.0 if accept else 0.5
    return factor if accept or factor < 1 else 0.5


_TINY = 1e-30

_FLOOR = 1e-4
"""Lower bound of remembered errors: smaller ones are often rounding errors. Hairer's dopri5 has the same bound."""

CONTROLLERS = {"integral": PID(), "pi": PID(p=0.4, i=0.3), "pid": PID(p=0.2, i=0.4, d=0.1)}
"""Controllers by name. PI has Gustafsson's coefficients, PID those that diffrax suggests for mildly stiff problems."""


def rms(group_dims: int, size: int) -> Norm:
    """Return a norm: the root mean square over all but the first ``group_dims`` dimensions.

    Args:
        group_dims: Number of leading dimensions that index groups; 0 for one number in total.
        size: Number of elements per group.
    """
    scale = 1 / math.sqrt(max(size, 1))
    if group_dims == 0:
        return lambda x: torch.linalg.vector_norm(x).mul_(scale)

    def norm(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x.reshape(*x.shape[:group_dims], -1), dim=-1).mul_(scale)

    return norm


@dataclass(frozen=True)
class AdjointNorm:
    """The norm of an adjoint state (0, y, cotangent of y, *gradients): the largest norm of its parts.

    Attributes:
        of_state: The norm of y and of its cotangent.
        seminorm: Whether to leave out the gradients, whose norms are their root mean squares.
        is_own: Whether the caller passed ``of_state``.
    """

    of_state: Norm
    seminorm: bool
    is_own: bool

    def __call__(self, parts: tuple[Tensor, ...]) -> Tensor:
        at_time, y, adjoint, *at_params = parts
        norms = [at_time.abs(), self.of_state(y), self.of_state(adjoint)]
        if not self.seminorm:
            norms += [rms(0, part.numel())(part) for part in at_params if part.numel()]
        return torch.stack(norms).amax()


def largest_rms(group_dims: int, sizes: list[int]) -> Norm:
    """Return a norm for packed tuples: the largest root mean square of their components."""
    counted = [(i, rms(group_dims, size)) for i, size in enumerate(sizes) if size or not sum(sizes)]

    def norm(x: Tensor) -> Tensor:
        parts = x.split(sizes, dim=-1)
        return torch.stack([norm_of(parts[i]) for i, norm_of in counted]).amax(0)

    return norm
