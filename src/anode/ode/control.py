"""How large the next step is: controllers, tolerances and error norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Norm = Callable[[Tensor], Tensor]
"""Maps a scaled error to one number (joint control) or to one a group."""

Number = Any
"""A float or a tensor: times and step sizes are either, see the two clocks."""


@dataclass(frozen=True)
class PID:
    r"""A step-size controller that remembers up to two earlier errors.

    With :math:`r_n` the error of step n over its tolerance and k the order of the method, an accepted step is
    followed by one larger by

    .. math:: 0.9\; r_n^{-(p + i + d)/k}\; r_{n-1}^{(p + 2d)/k}\; r_{n-2}^{-d/k}

    kept between 1 and ``max_factor``; a rejected step is tried again smaller, by at least ``min_factor``.
    The default, i = 1, is the integral controller, which decides as torchdiffeq does.

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
        if not 0 < self.min_factor < 1 <= self.max_factor or not 0 < self.safety <= 1:
            raise ValueError(
                "controller: needs 0 < min_factor < 1 <= max_factor and 0 < safety <= 1, got "
                f"min_factor={self.min_factor}, max_factor={self.max_factor}, safety={self.safety}"
            )

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it, in the order of its fields."""
        return self.p, self.i, self.d, self.safety, self.min_factor, self.max_factor

    def exponents(self, order: int) -> tuple[float, float, float]:
        """The exponents of the current error and of the two before it."""
        p, i, d = self.p / order, self.i / order, self.d / order
        return -(p + i + d), p + 2 * d, -d

    def factor(self, errors: tuple[Number, Number, Number], order: int, smallest: Number) -> Number:
        """The ratio of the next step to this one, given this error and the two before it, newest first.

        Args:
            errors: Error ratios, floats or tensors; not finite means a step that must shrink as far as allowed.
            order: The method's order.
            smallest: Lower bound: 1 after an accepted step, ``min_factor`` after a rejected one.
        """
        # A ratio of zero asks for the largest factor; the floor avoids dividing by zero on the way there.
        now, *before = self.exponents(order)
        if isinstance(errors[0], Tensor):
            factor = self.safety * errors[0].clamp_min(_TINY) ** now
            for error, exponent in zip(errors[1:], before, strict=True):
                if exponent:
                    factor = factor * error.clamp_min(_SMALLEST_REMEMBERED) ** exponent
            return factor.nan_to_num(nan=0.0, posinf=self.max_factor).clamp_max(self.max_factor).maximum(smallest)
        if not math.isfinite(errors[0]):
            return smallest
        factor = self.safety * max(errors[0], _TINY) ** now
        for error, exponent in zip(errors[1:], before, strict=True):
            if exponent:
                factor *= max(error, _SMALLEST_REMEMBERED) ** exponent
        return max(min(factor, self.max_factor), smallest)


_TINY = 1e-30

_SMALLEST_REMEMBERED = 1e-4
"""Smaller errors are often rounding errors, on which later steps should not depend; as in Hairer's dopri5."""

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
