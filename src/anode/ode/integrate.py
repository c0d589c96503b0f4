"""The integration loop: the only loop over solver steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from anode.checks import is_finite
from anode.ode.adams import AdamsSteps
from anode.ode.clocks import Accepted, JointClock, clock_for
from anode.ode.control import Number
from anode.ode.events import Event
from anode.ode.field import Rate
from anode.ode.noise import Path
from anode.ode.plan import Emission, Interval, Plan, to_broadcast
from anode.ode.runge_kutta import combine, state_inside, take_step
from anode.ode.solution import Stats, Status
from anode.ode.stiffness import is_hopeless

Watch = Callable[[str, Interval, Tensor], None]
"""A function called twice per step: with "try", then "accept" or "reject"; the interval; and the state at its start."""


@dataclass
class Step:
    """An accepted step, with what is needed to repeat it and, if its slopes are kept, to evaluate the dense output.

    Attributes:
        pieced: Whether the first slope cannot be pulled back: some groups rejected a step, so that it combines two
            evaluations, or the caller evaluated it.
        failed: Mask of the groups that had failed before, shaped to broadcast against the state; ``None`` if none had.
    """

    interval: Interval
    y: Tensor
    emissions: list[Emission]
    slopes: list[Tensor] | None = None
    pieced: bool = False
    failed: Tensor | None = None


@dataclass
class Trace:
    """The result of the loop over steps.

    Attributes:
        outputs: The state at each of the plan's wanted times; NaN at times that were not reached.
        y: The state at the end of the last accepted step.
        t: The time that was reached.
        steps: The accepted steps, if they were kept.
    """

    outputs: list[Tensor]
    y: Tensor
    t: Number
    status: Number
    stats: Stats
    steps: list[Step] = field(default_factory=list)


class Integration:
    """One solve of dy/dt = f(t, y) over the plan's times.

    Args:
        f: The right-hand side.
        y: Initial state.
        plan: The plan of the solve.
        slope: f at the start, if the caller has evaluated it. It is counted as an evaluation.
        keep_steps: Whether to keep the state at the start of every accepted step.
        keep_slopes: Number of accepted steps whose slopes are kept too.
        dense: Whether to keep everything that the dense output needs.
        event: The event that ends the solve. The last of the plan's times then stands for the event time.
        watch: A function that is called for every step.
        path: The noise to add to the state after every step.
    """

    def __init__(
        self,
        f: Rate,
        y: Tensor,
        plan: Plan,
        *,
        slope: Tensor | None = None,
        keep_steps: bool = False,
        keep_slopes: int = 0,
        dense: bool = False,
        event: Event | None = None,
        watch: Watch | None = None,
        path: Path | None = None,
    ) -> None:
        self.f, self.y, self.slope, self.plan, self.clock = f, y, slope, plan, clock_for(plan)
        self.rate = f
        self.keep_steps, self.keep_slopes, self.dense = keep_steps or dense, keep_slopes, dense
        self.event, self.watch, self.path = event, watch, path
        self.adams = None if plan.adams is None else AdamsSteps(plan.adams, plan)
        self.event_time: float | None = None
        self.slope_is_pieced = False
        self.steps: list[Step] = []
        self.set_aside: list[tuple[Tensor, Tensor]] = []
        self.failed: Tensor | None = None
        start = plan.times[0]
        self.outputs = {i: y.clone() if plan.times[i] == start else torch.full_like(y, torch.nan) for i in plan.wanted}

    def run(self) -> Trace:
        """Run the loop over steps and return its result."""
        clock = self.clock
        if self.event is not None and self.event.at_start:
            self.outputs[self.plan.wanted[-1]] = self.y.clone()
            self.event_time, clock.running = self.plan.times[0], False
        elif self.slope is not None and clock.running:
            self._check_slope(self.slope)
            self.slope_is_pieced = True  # it was not evaluated so that it can be pulled back
            clock.charge_first_slope()
        while clock.running:
            if clock.needs_slope:
                if self.slope is None:
                    clock.charge_first_slope()
                    self._check_slope(self.rate(clock.now(), self.y))
                    continue
                clock.begin(self.rate, self.y, self.slope)
            step = clock.propose()
            if step is not None:
                self._try(step)
            elif isinstance(clock, JointClock) and clock.can_extend:
                clock.extend(not is_hopeless(self.f, self.plan, clock.t, self.y, clock.stats))
        return self._trace()

    def _check_slope(self, slope: Tensor) -> None:
        """Start from this slope, and set aside the groups for which it is not finite."""
        self.slope, self.slope_is_pieced = slope, False
        unusable = self.clock.fail_without_slope(slope)
        if unusable is not None:
            self.set_aside.append((unusable, self.y))
            self.failed = unusable if self.failed is None else self.failed | unusable
            self.rate = self._without_failed
            self.y = stand_in(unusable, self.y)
            self.slope = self.rate(self.clock.now(), self.y)
            self.clock.stats.calls += 1

    def _without_failed(self, t: Tensor, y: Tensor) -> Tensor:
        """Return f(t, y) with zeros for the groups that were set aside, whose parameters may not be finite."""
        assert self.failed is not None
        return self.f(t, y).masked_fill(self.failed, 0.0)

    def _try(self, step: Interval) -> None:
        """Try a step, and advance if it is accepted."""
        if self.watch is not None:
            before = None if self.slope is None or self.plan.knots is None else self.y.detach().clone()
            self.watch("try", step, self.y)
            if before is not None and not torch.equal(before, self.y):  # changed in place, perhaps by way of NumPy
                self.slope = None
        tableau, clock, slope = self.plan.tableau, self.clock, self.slope
        y1, slopes = self._stepped(step)
        accepted = self._judge(step, y1, slopes)
        if self.watch is not None:
            self.watch("reject" if accepted is None else "accept", step, self.y)
        if accepted is None:
            return
        kept = clock.keep(step, accepted)
        whole = kept is step  # no group rejected the step; groups that are done had h = 0 anyway
        if not whole and torch.is_grad_enabled() and not all(map(is_finite, (y1, *slopes))):
            # Autograd would multiply a rejected group's infinities by zero and get NaN: repeat the step without it.
            y1, slopes = take_step(self.rate, tableau, kept, self.y, slope)
            clock.stats.calls += len(slopes) - 1
        if self.path is not None:
            y1 = self.path.after(kept, y1)
        emissions = clock.emissions(kept, accepted)
        if emissions or self.keep_steps or self.event is not None:
            self._emit(kept, accepted, emissions, y1, slopes, whole)
        has_end_slope = len(slopes) > len(tableau.b) or tableau.last_stage_ends
        has_end_slope = has_end_slope and self.path is None and not self.plan.is_jump(kept.t1)
        end_slope = slopes[-1]
        if not whole:
            moved = to_broadcast(self.plan, accepted)
            y1, end_slope = torch.where(moved, y1, self.y), torch.where(moved, end_slope, slopes[0])
        self.y, self.slope = y1, end_slope if has_end_slope else None
        self.slope_is_pieced = not whole

    def _stepped(self, step: Interval) -> tuple[Tensor, list[Tensor]]:
        """Take a step with the method of the plan, and count its evaluations."""
        if self.adams is not None:
            y1, slopes, evaluations = self.adams.take(self.rate, step, self.y, self.slope)
        else:
            y1, slopes = take_step(self.rate, self.plan.tableau, step, self.y, self.slope)
            evaluations = len(slopes) - (self.slope is not None)
        self.clock.charge(evaluations)
        return y1, slopes

    def _judge(self, step: Interval, y1: Tensor, slopes: list[Tensor]) -> Accepted:
        """Return which groups accept a step."""
        if self.plan.knots is not None:
            return self.clock.judge(step, None, self.y, y1)
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():  # nullcontext is faster
            return self.clock.judge(step, combine(self.plan.tableau.error_row, slopes), self.y, y1)

    def _emit(
        self,
        step: Interval,
        accepted: Accepted,
        emissions: list[Emission],
        y1: Tensor,
        slopes: list[Tensor],
        whole: bool,
    ) -> None:
        """Write the outputs inside an accepted step, and keep what later passes need of it."""
        plan, tableau = self.plan, self.plan.tableau
        happened = self.event is not None and self.event.has_happened(step.at_event(1.0), y1)
        inside = self.dense or happened or any(emission.fraction is not None for emission in emissions)
        if inside and tableau.dense_needs_end_slope and not tableau.fsal:
            slopes.append(self.rate(step.at(1.0), y1))
            self.clock.charge(1, accepted)
        if self.event is not None and happened:
            when = self.event.locate(step, partial(state_inside, tableau, step, self.y, slopes))
            if (plan.times[-1] - when) * plan.direction >= 0:
                emissions = [e for e in emissions if (when - plan.times[e.index]) * plan.direction > 0]
                emissions.append(Emission(plan.wanted[-1], (when - step.t) / step.h, given=False))
                self.event_time, self.clock.running = when, False
        for emission in emissions:
            at_end = emission.fraction is None
            value = y1.clone() if at_end else state_inside(tableau, step, self.y, slopes, emission.fraction)
            if emission.groups is not None:
                value = torch.where(emission.groups, value, self.outputs[emission.index])
            self.outputs[emission.index] = value
        if self.keep_steps:
            keep_slopes = self.dense or (whole and self.failed is None and len(self.steps) < self.keep_slopes)
            kept = slopes if keep_slopes else None
            self.steps.append(Step(step, self.y, emissions, kept, self.slope_is_pieced, self.failed))

    def _trace(self) -> Trace:
        y, t, status = self.y, self.clock.t, self.clock.status
        for groups, state in self.set_aside:
            y = torch.where(groups, state, y)
        if self.event is not None and status == Status.SUCCESS:
            t = self.event_time if self.event_time is not None else self.plan.times[-1]
            status = Status.NO_EVENT if self.event_time is None else status
            if self.event_time is None and math.isinf(self.plan.times[-1]):  # no step ends there
                self.outputs[self.plan.wanted[-1]] = y
        return Trace([self.outputs[i] for i in self.plan.wanted], y, t, status, self.clock.stats, self.steps)


def stand_in(groups: Tensor, x: Tensor) -> Tensor:
    """Replace the values of some groups by those of a healthy group, detached, so that f stays finite."""
    healthy = (~groups.flatten()).nonzero().flatten()
    if len(healthy) == 0:
        return x
    each = x.reshape(groups.numel(), -1)
    return torch.where(groups.reshape(-1, 1), each[healthy[0]].detach(), each).reshape(x.shape)
