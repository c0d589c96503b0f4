"""The plan of a solve, and the time intervals of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.ode.control import Controller, Norm, Number
from anode.ode.tableau import Tableau
from anode.recent import Recent

if TYPE_CHECKING:
    from anode.ode.adams import Adams

TOGETHER = 64
"""Number of fixed steps whose times are converted to tensors at once."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The checked settings of a solve, in the form that the solver uses.

    Attributes:
        tableau: The method.
        times: The given times: the start, the output times, the end.
        wanted: Indices into ``times`` of the outputs, in order of time.
        like: A tensor with the shape, dtype and device of the state, without values.
        group_dims: Number of leading dimensions of the state that index groups with their own step size.
        norm: A function that maps a scaled error to one number, or to one per group.
        own_norm: Whether the caller passed the norm.
        knots: For fixed steps, where they end: pairs of a time and the index of the given time that it moves with, or
            ``None`` if it is a constant. ``None`` for adaptive steps.
        step_at: Times at which a step must end, in order.
        jump_at: The times in ``step_at`` where f jumps.
        keeps_non_finite: Whether to keep a fixed step that ends in NaN or infinity instead of stopping.
        stiff_steps: Step budget of stiff problems. A problem that is found to be stiff and to need more steps is
            stopped. ``None`` to disable the check.
        noise: Whether noise is added to the state after every step.
        adams: The Adams method that takes the steps; ``None`` if the tableau does.
        nudge: Whether to evaluate f just inside a step instead of exactly at its ends.
        precise_events: Whether an event function is given times in double precision, whatever the dtype of the state.
        times_move: Whether ``times`` are differentiated.
        moving_times: ``times`` as a tensor with a gradient, if autograd records the loop over steps.
    """

    tableau: Tableau
    times: list[float]
    wanted: list[int]
    like: Tensor
    rtol: float | Tensor
    atol: float | Tensor
    norm: Norm
    max_steps: int
    controller: Controller
    own_norm: bool = False
    group_dims: int = 0
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = math.inf
    knots: list[tuple[float, int | None]] | None = None
    step_at: list[float] = field(default_factory=list)
    jump_at: frozenset[float] = frozenset()
    keeps_non_finite: bool = False
    stiff_steps: int | None = None
    noise: bool = False
    adams: Adams | None = None
    nudge: bool = False
    precise_events: bool = False
    times_move: bool = False
    moving_times: Tensor | None = None

    @cached_property
    def prepared(self) -> Recent[Any]:
        """A cache of what solves with this plan have prepared, for later solves with the same plan."""
        return Recent(16)

    @cached_property
    def time_type(self) -> dict[str, Any]:
        """Dtype and device of the times that f is given."""
        return {
            "dtype": self.like.real.dtype if self.like.is_complex() else self.like.dtype,
            "device": self.like.device,
        }

    @property
    def time_dtype(self) -> torch.dtype:
        """The most precise dtype for time that the device supports."""
        return torch.float32 if self.like.device.type == "mps" else torch.float64

    @cached_property
    def nudges(self) -> bool:
        """Whether f may have to be evaluated next to a time instead of exactly at it."""
        return self.nudge or bool(self.jump_at)

    @property
    def latest(self) -> float:
        """The last time until which the solver waits for an event. Much later ones overflow in the dtype of times."""
        return float(torch.finfo(self.time_type["dtype"]).max) ** 0.5

    @property
    def groups(self) -> tuple[int, ...]:
        """The shape of the groups; empty if there is one step size for all."""
        return tuple(self.like.shape[: self.group_dims])

    def is_jump(self, t: Number) -> bool:
        """Whether f jumps at this time."""
        return bool(self.jump_at) and as_float(t) in self.jump_at

    @cached_property
    def direction(self) -> float:
        """1 forward in time, -1 backward."""
        return 1.0 if self.times[-1] >= self.times[0] else -1.0

    def error_ratio(self, error: Tensor, y: Tensor, y1: Tensor) -> Tensor:
        """Return the error divided by what the tolerances allow; NaN if the state overflowed. Overwrites ``error``."""
        scale = torch.maximum(y.abs(), y1.abs()).mul_(self.rtol).add_(self.atol)
        return self.norm(error.div_(scale).add_(scale.sub_(scale)))

    def stage_times(self) -> Iterator[dict[float, Tensor] | None]:
        """Yield, per fixed step, the times of its slopes as tensors by c; ``None`` if they are not prepared.

        Taking an entry of a tensor of many times costs a third of creating a tensor. Nothing is prepared for the first
        step, because it may be the only one.
        """
        yield None
        ends = [] if self.knots is None or self.nudges or self.moving_times is not None else self.knots
        c = torch.tensor(self.tableau.c, dtype=torch.float64, device="cpu")
        for first in range(1, len(ends) - 1, TOGETHER):
            part = [time for time, _ in ends[first : first + TOGETHER + 1]]
            t = torch.tensor(part, dtype=torch.float64, device="cpu").unsqueeze(1)
            times = torch.where(c == 1, t[1:], t[:-1] + c * (t[1:] - t[:-1]))
            each = iter(times.to(self.time_type["dtype"]).to(self.time_type["device"]).flatten().unbind())
            for _ in part[1:]:
                yield dict(zip(self.tableau.c, each, strict=False))

    def moving(self, time: Number, index: int | None) -> Number:
        """Return ``time``, with the gradient of ``times[index]`` if the times have gradients."""
        if self.moving_times is None or index is None:
            return time
        given = self.moving_times[index]
        return time + (given - given.detach())


class Interval:
    """The time interval of one step, from ``t`` to ``t1 = t + h``.

    ``t``, ``t1`` and ``h`` are floats, or tensors that broadcast against the state, with one entry per group. ``h`` is
    zero for groups that do not move.

    Attributes:
        start: Index of the plan's time that ``t`` moves with; ``None`` if it is a constant.
        end: The same for ``t1``. If it equals ``start``, the size of the step is a constant.
    """

    __slots__ = ("_prepared", "_size", "end", "h", "plan", "start", "t", "t1")

    def __init__(
        self,
        plan: Plan,
        t: Number,
        t1: Number,
        start: int | None = 0,
        end: int | None = 0,
        prepared: dict[float, Tensor] | None = None,
    ) -> None:
        self.plan, self.start, self.end, self._prepared = plan, start, end, prepared
        self._size: Tensor | None = None
        self.t, self.t1, self.h = t, t1, t1 - t
        if plan.moving_times is None:
            return
        self.t, self.t1 = plan.moving(t, start), plan.moving(t1, end)
        if start != end:
            moving = self.t1 - self.t
            self.h = torch.where(t1 == t, 0.0, moving) if isinstance(t, Tensor) else moving

    def at(self, c: float) -> Tensor:
        """Return the time at the fraction ``c`` of the step, as f is given it."""
        prepared = self._prepared
        if prepared and c in prepared:
            if c == 1:
                self._prepared = None  # free it: the step may be kept, and the other times are not needed again
            return prepared.pop(c)  # f may write into it
        plan = self.plan
        time = self.t1 if c == 1 else self.t + c * self.h
        time = time.to(**plan.time_type) if isinstance(time, Tensor) else torch.scalar_tensor(time, **plan.time_type)
        if plan.nudges and (c == 0 or c == 1) and (plan.nudge or plan.is_jump(self.t1 if c == 1 else self.t)):
            # At a jump of f, evaluate f on the side of this step.
            return torch.nextafter(time, time + (self.h if c == 0 else -self.h))
        return time

    def at_event(self, c: float) -> Tensor:
        """Return the time at the fraction ``c`` of the step, as an event function is given it."""
        if not self.plan.precise_events:
            return self.at(c)
        time = as_float(self.t1 if c == 1 else self.t + c * self.h)
        return torch.tensor(time, dtype=self.plan.time_dtype, device=self.plan.like.device)

    def move(self, y: Tensor, slope: Tensor, scale: float = 1.0) -> Tensor:
        """Return ``y + h * scale * slope``."""
        if isinstance(self.h, Tensor):
            if self._size is None:
                self._size = self.h.to(y.dtype)  # once per step, not once per stage
            return torch.addcmul(y, slope, self._size, value=scale)
        return torch.add(y, slope, alpha=self.h * scale)

    def fraction(self, index: int) -> Number:
        """Return the fraction of the step at which ``times[index]`` lies; 0 for groups that do not move."""
        ahead = self.plan.moving(self.plan.times[index], index) - self.t
        if isinstance(self.h, Tensor):
            still = self.h == 0
            return (ahead / torch.where(still, 1.0, self.h)).masked_fill(still, 0.0)
        return ahead / self.h


@dataclass(frozen=True)
class Emission:
    """An output at a wanted time that a step has passed.

    Attributes:
        index: Index of the time in the plan's times.
        fraction: The fraction of the step at which it lies: a number, or one per group. ``None`` for the end of the
            step.
        groups: Mask of the groups that pass the time in this step, shaped to broadcast against the state; ``None`` for
            all.
        given: Whether the time is one of the plan's; ``False`` for the time of an event.
    """

    index: int
    fraction: Number | None
    groups: Tensor | None = None
    given: bool = True


def as_float(value: Number) -> float:
    """Return a number or a tensor with one element as a float."""
    return float(value.detach()) if isinstance(value, Tensor) else value


def to_broadcast(plan: Plan, value: Number) -> Number:
    """Return a value per group, reshaped to broadcast against the state."""
    return value.reshape(value.shape + (1,) * (plan.like.ndim - plan.group_dims)) if plan.group_dims else value


def smallest(tolerance: float | Tensor) -> float:
    """Return the smallest value of a tolerance, for what has only one."""
    return float(torch.as_tensor(tolerance).min())
