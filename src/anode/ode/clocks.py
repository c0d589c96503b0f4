"""Time during a solve: which step to try next, whether to accept it, and when to stop.

The loop in :mod:`anode.ode.integrate` uses one of two clocks. :class:`JointClock` has one time and one step size for
the whole state. It computes with Python floats, which is several times cheaper than small tensors. :class:`GroupClock`
has one time and one step size per group, in tensors. Both propose an :class:`Interval`, judge the result, and advance.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor

from anode.checks import is_finite
from anode.ode.control import Number, checked_factor, decide
from anode.ode.field import Rate
from anode.ode.plan import Emission, Interval, Plan, as_float, to_broadcast
from anode.ode.solution import Stats, Status

CHECK_EVERY = 10_000
"""Number of steps between checks for stiffness, if the plan has ``stiff_steps``."""

Accepted = Any
"""Which groups accept a step: ``True``, or a boolean tensor with one entry per group."""


def clock_for(plan: Plan) -> JointClock | GroupClock:
    """Return the clock for a plan."""
    return GroupClock(plan) if plan.group_dims else JointClock(plan)


@torch.no_grad()
def initial_step(plan: Plan, f: Rate, y: Tensor, slope: Tensor, t: Number) -> Number:
    """Return the size of the first step by Hairer's rule: a number, or one per group. Evaluates f once.

    References:
        Hairer, Norsett and Wanner, section II.4.
    """
    tiny, scale = 1e-6, (y.abs() * plan.rtol).add_(plan.atol)

    def norm(x: Tensor) -> list[float]:
        # Lists of numbers, because computing with small tensors is slower.
        values = plan.norm(x / scale)
        return values.flatten().tolist() if plan.group_dims else [values.item()]

    def per_group(values: list[float]) -> Number:
        if not plan.group_dims:
            return values[0]
        return torch.tensor(values, dtype=t.dtype, device=y.device).reshape(plan.groups)

    speeds = norm(slope)
    # The probe must not pass a time where a step has to end.
    limit = min((abs(end - t) for end in plan.step_at if (end - t) * plan.direction > 0), default=math.inf)
    probes = [
        min(0.01 * size / speed, limit) if size >= 1e-5 and speed >= 1e-5 and math.isfinite(speed) else tiny
        for size, speed in zip(norm(y), speeds, strict=True)
    ]
    probe = Interval(plan, t, t + plan.direction * to_broadcast(plan, per_group(probes)))
    ahead = f(probe.at(1.0), probe.move(y, slope))
    guesses = []
    for h, speed, bend in zip(probes, speeds, norm(ahead - slope), strict=True):
        steepest = max(speed, bend / h)
        guess = (0.01 / steepest) ** (1 / plan.tableau.order) if steepest > 1e-15 else max(tiny, 1e-3 * h)
        guesses.append(min(100 * h, guess) if math.isfinite(steepest) else tiny)
    return per_group(guesses)


class JointClock:
    """One time and one step size for the whole state.

    Attributes:
        needs_slope: Whether proposing a step requires f at its start.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.needs_slope = plan, plan.knots is None
        self.t = plan.times[0]
        self.stats = Stats()
        self.status = Status.SUCCESS
        self.running = plan.times[0] != plan.times[-1]
        self._h: Number = plan.first_step
        self._start: int | None = 0
        self._memory = plan.controller.start(plan.tableau.order)
        self._last_error = 0.0
        self._overflows = 0
        self._pending = [i for i in plan.wanted if plan.times[i] != self.t]
        self._landings = [t for t in plan.step_at if (t - self.t) * plan.direction > 0]
        self._times = plan.stage_times()
        self._budget = plan.max_steps if plan.stiff_steps is None else min(plan.max_steps, CHECK_EVERY)

    def now(self) -> Tensor:
        """The current time, as f sees it."""
        start = self.plan.knots[self.stats.accepted][1] if self.plan.knots else self._start
        return Interval(self.plan, self.t, self.t + self.plan.direction, start, start).at(0.0)

    def fail_without_slope(self, slope: Tensor) -> None:
        """Stop if the slope is not finite, because every step from it would fail."""
        usable = self.plan.keeps_non_finite or is_finite(slope)
        if self.plan.own_norm:  # it may reduce over several processes, which must all make the same decision
            usable = bool(self.plan.norm(torch.full_like(slope, 0.0 if usable else torch.nan)).isfinite())
        if not usable:
            self._stop(Status.NON_FINITE)

    def begin(self, f: Rate, y: Tensor, slope: Tensor) -> None:
        """Choose the size of the first step unless ``first_step`` was given."""
        if self._h is None:
            self._h = initial_step(self.plan, f, y, slope, self.t)
            self.charge(1)

    def propose(self) -> Interval | None:
        """Return the next step to try. If there is none, set the status and return ``None``."""
        plan, stats = self.plan, self.stats
        if stats.accepted + stats.rejected >= self._budget:
            # If most steps were rejected because of NaN or infinity, that is what used up the budget.
            self._stop(Status.NON_FINITE if 2 * self._overflows > stats.rejected else Status.MAX_STEPS)
            return None
        if plan.knots is not None:
            (t, start), (t1, end) = plan.knots[stats.accepted : stats.accepted + 2]
            return Interval(plan, t, t1, start, end, next(self._times, None))
        self._h = min(max(self._h, plan.min_step), plan.max_step)
        if self._h < math.ulp(self.t):  # time would not advance, or only by rounding up
            self._stop(Status.UNDERFLOW if math.isfinite(self._last_error) else Status.NON_FINITE)
            return None
        t1 = self.t + plan.direction * self._h
        if math.isinf(plan.times[-1]) and abs(t1) > plan.latest:  # the event never comes
            self._stop(Status.SUCCESS)
            return None
        if self._landings and (t1 - self._landings[0]) * plan.direction > 0:
            t1 = self._landings[0]
            self._h = abs(t1 - self.t)
            return Interval(plan, self.t, t1, self._start, None)  # its end does not depend on its start
        return Interval(plan, self.t, t1, self._start, self._start)

    @property
    def can_extend(self) -> bool:
        """Whether the clock stopped only to check for stiffness."""
        return self.status == Status.MAX_STEPS and self._budget < self.plan.max_steps

    def extend(self, worthwhile: bool) -> None:
        """Continue until the next check for stiffness, if worthwhile."""
        if worthwhile:
            self._budget = min(self._budget + CHECK_EVERY, self.plan.max_steps)
            self.status, self.running = Status.SUCCESS, True

    def judge(self, step: Interval, error: Tensor | None, y: Tensor, y1: Tensor) -> Accepted:
        """Return ``True`` if the step is accepted, otherwise ``None``; advance time and choose the next step size.

        Args:
            step: The step that was tried.
            error: The error estimate divided by h and by the scale of its row; ``None`` for fixed steps.
            y, y1: The states before and after the step.
        """
        plan = self.plan
        if error is None:
            accepted = plan.keeps_non_finite or is_finite(y1)
            if not accepted:
                self._stop(Status.NON_FINITE)
        else:
            ratio = plan.error_ratio(error, y, y1).item() * self._h * abs(plan.tableau.error_row.scale)
            self._last_error = ratio
            accepted, factor, self._memory = decide(plan.controller, ratio, self._memory)
            if not accepted and self._h <= plan.min_step:
                accepted = math.isfinite(ratio)
                if not accepted:
                    self._stop(Status.NON_FINITE)
            self._h *= checked_factor(accepted, factor)
        if not accepted:
            self.stats.rejected += 1
            self._overflows += not math.isfinite(self._last_error)
            return None
        self.stats.accepted += 1
        self.t = as_float(step.t1)
        if self._landings and self.t == self._landings[0]:
            del self._landings[0]
            self._start = None
        if (self.t - plan.times[-1]) * plan.direction >= 0:
            self.running = False
        return True

    def _stop(self, status: Status) -> None:
        self.status, self.running = status, False

    def keep(self, step: Interval, accepted: Accepted) -> Interval:
        """Return the accepted part of a step, which is the whole step."""
        return step

    def emissions(self, step: Interval, accepted: Accepted) -> list[Emission]:
        """Return the wanted times that an accepted step has passed."""
        plan, passed = self.plan, []
        while self._pending and (plan.times[self._pending[0]] - self.t) * plan.direction <= 0:
            index = self._pending.pop(0)
            # At the end of a fixed step the output is the state itself; elsewhere it comes from the dense output.
            on_end = plan.times[index] == self.t and (not plan.times_move or index == step.end)
            passed.append(Emission(index, None if on_end else step.fraction(index)))
        return passed

    def charge(self, calls: int, groups: Accepted = None) -> None:
        """Count calls of f."""
        self.stats.nfe += calls
        self.stats.calls += calls

    def charge_first_slope(self) -> None:
        """Count the call of f at the start of a step."""
        self.charge(1)


class GroupClock:
    """One time and one step size per group. Groups that are done or have failed do not move."""

    needs_slope = True  # so that groups whose slope is not finite fail

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        device = plan.like.device
        real = plan.time_dtype

        def full(value: float, dtype: torch.dtype = real) -> Tensor:
            return torch.full(plan.groups, value, dtype=dtype, device=device)

        self.running = plan.times[0] != plan.times[-1]
        self.t = full(plan.times[0])
        self.status = full(Status.SUCCESS, torch.int64)
        self.stats = Stats(nfe=full(0, torch.int64), accepted=full(0, torch.int64), rejected=full(0, torch.int64))
        self._active = self._moved = full(self.running, torch.bool)
        self._h: Number = None if plan.first_step is None else full(plan.first_step)
        self._memory = plan.controller.start(plan.tableau.order)
        self._last_error = full(0.0)
        self._overflows = full(0, torch.int64)
        self._attempts = 0
        self._wanted_times = [plan.times[i] * plan.direction for i in plan.wanted]

    def now(self) -> Tensor:
        """The current times, as f sees them."""
        time = to_broadcast(self.plan, self.t)
        start = self.plan.knots[self._attempts][1] if self.plan.knots else 0
        return Interval(self.plan, time, time + self.plan.direction, start, start).at(0.0)

    def begin(self, f: Rate, y: Tensor, slope: Tensor) -> None:
        """Choose the size of each group's first step unless ``first_step`` was given."""
        if self.plan.knots is None and self._h is None:
            self._h = initial_step(self.plan, f, y, slope, to_broadcast(self.plan, self.t))
            self.charge(1)

    def propose(self) -> Interval | None:
        """Return the next step of each group. If there is none, set the statuses and return ``None``."""
        plan = self.plan
        if self._attempts >= plan.max_steps:
            self._stop(2 * self._overflows > self.stats.rejected, Status.NON_FINITE)
            self._stop(self._active, Status.MAX_STEPS)
            return None
        self._attempts += 1
        if plan.knots is not None:
            (_, start), (knot, end) = plan.knots[self._attempts - 1 : self._attempts + 1]
            return Interval(plan, *self._ends(torch.full_like(self.t, knot)), start, end)
        self._h = self._h.clamp(plan.min_step, plan.max_step)
        t1 = self.t + plan.direction * self._h
        size = self.t.abs()
        stuck = self._active & (self._h < torch.nextafter(size, size + 1) - size)
        if stuck.any():
            self._stop(stuck & self._last_error.isfinite(), Status.UNDERFLOW)
            self._stop(stuck, Status.NON_FINITE)
            if not self.running:
                return None
        return Interval(plan, *self._ends(t1))

    def _ends(self, t1: Tensor) -> tuple[Tensor, Tensor]:
        return to_broadcast(self.plan, self.t), to_broadcast(self.plan, torch.where(self._active, t1, self.t))

    def _stop(self, groups: Tensor, status: Status) -> None:
        self.status = torch.where(groups & self._active, int(status), self.status)
        self._active = self._active & ~groups
        self.running = bool(self._active.any())

    def fail_without_slope(self, slope: Tensor) -> Tensor | None:
        """Stop the groups whose slope is not finite and return a mask of them; ``None`` if there are none."""
        unusable = ~slope.isfinite().reshape(*self.plan.groups, -1).all(-1)
        if not unusable.any():
            return None
        self._stop(unusable, Status.NON_FINITE)
        return to_broadcast(self.plan, unusable)

    def judge(self, step: Interval, error: Tensor | None, y: Tensor, y1: Tensor) -> Accepted:
        """Return a mask of the groups that accept the step, ``None`` if none does. See :meth:`JointClock.judge`."""
        plan = self.plan
        t1 = step.t1.detach().reshape(plan.groups)
        if error is None:
            accepted = self._active & y1.isfinite().reshape(*plan.groups, -1).all(-1)
            rejected = self._active & ~accepted
            self._stop(rejected, Status.NON_FINITE)
        else:
            ratio = plan.error_ratio(error, y, y1).to(self.t.dtype) * self._h * abs(plan.tableau.error_row.scale)
            smallest_size = self._h <= plan.min_step
            good, factor, self._memory = decide(plan.controller, ratio, self._memory)
            accepted = self._active & (good | (smallest_size & ratio.isfinite()))
            rejected = self._active & ~accepted
            self._stop(rejected & smallest_size, Status.NON_FINITE)
            self._h = self._h * checked_factor(accepted, factor)
            self._last_error = ratio
            self._overflows += rejected & ~ratio.isfinite()
        self._moved = accepted
        self.stats.accepted += accepted
        self.stats.rejected += rejected
        self.t = torch.where(accepted, t1, self.t)
        self._stop((self.t - plan.times[-1]) * plan.direction >= 0, Status.SUCCESS)
        return accepted if accepted.any() else None

    def emissions(self, step: Interval, accepted: Accepted) -> list[Emission]:
        """Return the wanted times that the accepted steps have passed."""
        plan, passed = self.plan, []
        before, now = step.t.detach().reshape(plan.groups) * plan.direction, self.t * plan.direction
        first = bisect_right(self._wanted_times, before[accepted].min().item())
        last = bisect_right(self._wanted_times, now[accepted].max().item())
        for index, time in zip(plan.wanted[first:last], self._wanted_times[first:last], strict=True):
            groups = to_broadcast(plan, accepted & (before < time) & (time <= now))
            fraction = None if self._is_knot(index, step) else step.fraction(index).masked_fill(~groups, 0.0)
            passed.append(Emission(index, fraction, groups))
        return passed

    def _is_knot(self, index: int, step: Interval) -> bool:
        plan = self.plan
        if plan.knots is None:
            return False
        return index == step.end or (not plan.times_move and plan.times[index] == plan.knots[self._attempts][0])

    def keep(self, step: Interval, accepted: Accepted) -> Interval:
        """Return the accepted part of a step, in which the other groups do not move."""
        stay = to_broadcast(self.plan, ~accepted)
        if not (stay & (step.h != 0)).any():
            return step
        t, t1 = step.t.detach(), step.t1.detach()
        return Interval(self.plan, t, torch.where(stay, t, t1), step.start, step.end)

    def charge(self, calls: int, groups: Accepted = None) -> None:
        """Count calls of f for some groups; by default for those that are still running."""
        self.stats.nfe += calls * (self._active if groups is None else groups)
        self.stats.calls += calls

    def charge_first_slope(self) -> None:
        """Count the call of f at the start of a step, for the groups whose slope was not known."""
        self.charge(1, self._active & self._moved)
