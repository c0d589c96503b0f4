"""What a solve was asked to do, and the pieces of time it is cut into."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anode.ode.control import Controller, Norm, Number
from anode.ode.tableau import Tableau
from anode.recent import Recent

TOGETHER = 64
"""Of how many steps of given size the times are turned into tensors at once."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What a solve was asked to do, checked and in the solver's own terms.

    Attributes:
        tableau: The method.
        times: The times the caller gave: the start, those of the outputs, the end.
        wanted: The indices into ``times`` at which outputs are wanted, in order of time.
        like: A tensor with the state's shape, dtype and device, and no values.
        group_dims: How many leading dimensions of the state index groups with a step size of their own.
        norm: Maps a scaled error to one number, or to one a group.
        own_norm: Whether the caller brought it.
        knots: For steps of given size, their ends: (time, index of the given time it moves with or ``None``).
        step_at: Times at which a step has to end, in order.
        jump_at: Those of them where f jumps.
        keeps_non_finite: Keep a step of given size that ends in NaN or infinity, instead of stopping.
        stiff_steps: Give a stiff problem up as soon as it is seen to need more steps than this; ``None`` not to ask.
        noise: Whether noise is added to the state after every step.
        nudge: Evaluate f just inside the ends of a step, never on them.
        times_move: Whether gradients with respect to ``times`` are wanted.
        moving_times: ``times`` as a tensor that autograd follows, when the loop itself is recorded by autograd.
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
    nudge: bool = False
    times_move: bool = False
    moving_times: Tensor | None = None

    @cached_property
    def prepared(self) -> Recent[Any]:
        """What those who solve have prepared for this plan, which may be solved again and again."""
        return Recent(16)

    @cached_property
    def time_type(self) -> dict[str, Any]:
        """Dtype and device of the times that f sees."""
        return {
            "dtype": self.like.real.dtype if self.like.is_complex() else self.like.dtype,
            "device": self.like.device,
        }

    @property
    def time_dtype(self) -> torch.dtype:
        """The most exact dtype for time that the device has."""
        return torch.float32 if self.like.device.type == "mps" else torch.float64

    @cached_property
    def nudges(self) -> bool:
        """Whether f is ever to be evaluated beside a time instead of at it."""
        return self.nudge or bool(self.jump_at)

    @property
    def groups(self) -> tuple[int, ...]:
        """The shape of the groups; empty if there is one step size."""
        return tuple(self.like.shape[: self.group_dims])

    def is_jump(self, t: Number) -> bool:
        """Whether f jumps at this time."""
        return bool(self.jump_at) and as_float(t) in self.jump_at

    @cached_property
    def direction(self) -> float:
        """1 forward in time, -1 backward."""
        return 1.0 if self.times[-1] >= self.times[0] else -1.0

    def error_ratio(self, error: Tensor, y: Tensor, y1: Tensor) -> Tensor:
        """An error over what the tolerances allow; NaN if the state overflowed. Overwrites the error."""
        scale = torch.maximum(y.abs(), y1.abs()).mul_(self.rtol).add_(self.atol)
        return self.norm(error.div_(scale).add_(scale.sub_(scale)))

    def stage_times(self) -> Iterator[dict[float, Tensor] | None]:
        """The times at which f is evaluated, by c, for each step of given size; ``None`` where nothing is prepared.

        An entry of a tensor of many times costs a third of a tensor made for one. The first step prepares nothing, as
        it may be the only one.
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
        """``time`` as a function of the given time number ``index``, with which it moves; ``None`` if with none."""
        if self.moving_times is None or index is None:
            return time
        given = self.moving_times[index]
        return time + (given - given.detach())


class Interval:
    """The stretch of time of one step, from ``t`` to ``t1 = t + h``.

    ``t``, ``t1`` and ``h`` are floats, or tensors that broadcast against the state: one entry a group, zero ``h`` for
    groups that stand still.

    Attributes:
        start: The index, among the plan's times, of the one that ``t`` moves with; ``None`` if it does not move.
        end: The same for ``t1``. Where it equals ``start`` the size of the step is a constant.
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
        """The time a fraction ``c`` into the step, as f sees it."""
        prepared = self._prepared
        if prepared and c in prepared:
            if c == 1:
                self._prepared = None  # steps may be kept, and nothing asks for what is left
            return prepared.pop(c)  # f may write into it
        plan = self.plan
        time = self.t1 if c == 1 else self.t + c * self.h
        time = time.to(**plan.time_type) if isinstance(time, Tensor) else torch.scalar_tensor(time, **plan.time_type)
        if plan.nudges and (c == 0 or c == 1) and (plan.nudge or plan.is_jump(self.t1 if c == 1 else self.t)):
            # Where f jumps, see the side that the step is on.
            return torch.nextafter(time, time + (self.h if c == 0 else -self.h))
        return time

    def move(self, y: Tensor, slope: Tensor, scale: float = 1.0) -> Tensor:
        """``y + h scale slope``."""
        if isinstance(self.h, Tensor):
            if self._size is None:
                self._size = self.h.to(y.dtype)  # once a step, not once a stage
            return torch.addcmul(y, slope, self._size, value=scale)
        return torch.add(y, slope, alpha=self.h * scale)

    def fraction(self, index: int) -> Number:
        """How far into the step the given time number ``index`` lies; 0 for groups that stand still."""
        ahead = self.plan.moving(self.plan.times[index], index) - self.t
        if isinstance(self.h, Tensor):
            still = self.h == 0
            return (ahead / torch.where(still, 1.0, self.h)).masked_fill(still, 0.0)
        return ahead / self.h


@dataclass(frozen=True)
class Emission:
    """One of the wanted times, passed during a step.

    Attributes:
        index: Which of the plan's times.
        fraction: How far into the step it lies, a number or one a group; ``None`` for the very end of the step.
        groups: The groups it is wanted for in this step, shaped to broadcast against the state; ``None`` for all.
        given: Whether the time is the plan's, or was found on the way.
    """

    index: int
    fraction: Number | None
    groups: Tensor | None = None
    given: bool = True


def as_float(value: Number) -> float:
    """A number, whatever autograd knows about it."""
    return float(value.detach()) if isinstance(value, Tensor) else value


def to_broadcast(plan: Plan, value: Number) -> Number:
    """A value per group, shaped to broadcast against the state."""
    return value.reshape(value.shape + (1,) * (plan.like.ndim - plan.group_dims)) if plan.group_dims else value
