"""The integration loop: the only loop over solver steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from anode.checks import is_finite
from anode.ode.clocks import Accepted, JointClock, clock_for
from anode.ode.control import Number
from anode.ode.events import Event
from anode.ode.field import Rate
from anode.ode.noise import Path
from anode.ode.plan import Emission, Interval, Plan, to_broadcast
from anode.ode.solution import Stats, Status
from anode.ode.stiffness import is_hopeless
from anode.ode.tableau import Row, Tableau

Watch = Callable[[str, Interval, Tensor], None]
"""Told of every step: "try", then "accept" or "reject", with the interval and the state at its start."""


def combine(row: Row, slopes: Sequence[Tensor]) -> Tensor:
    """The sum of slopes that a row describes, without its scale."""
    total = slopes[row.first]
    if row.rest:
        i, weight = row.rest[0]
        total = total + slopes[i] if weight == 1 else torch.add(total, slopes[i], alpha=weight)
        for i, weight in row.rest[1:]:
            total.add_(slopes[i], alpha=weight)
    return total


def weighted_sum(parts: Sequence[tuple[Number, Tensor]], factor: Number = 1.0) -> Tensor:
    """``factor`` times a sum of (weight, tensor) pairs; weights and factor are numbers, or tensors that broadcast."""
    last = factor if isinstance(factor, Tensor) else 1.0  # one product with a tensor is cheaper than one a part
    first = 1.0 if isinstance(factor, Tensor) else factor
    weight, part = parts[0]
    weight = weight * first
    total = part * (weight.to(part.dtype) if isinstance(weight, Tensor) else weight)
    for weight, part in parts[1:]:
        weight = weight * first
        if isinstance(weight, Tensor):
            total = torch.addcmul(total, part, weight.to(part.dtype))
        else:
            total.add_(part, alpha=weight)
    return total if isinstance(last, float) else total * last.to(total.dtype)


def take_step(
    f: Rate, tableau: Tableau, step: Interval, y: Tensor, slope: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """One step of the method: the new state and the slopes, with the end slope last if the method is FSAL.

    ``slope`` is that at the start, ``None`` to evaluate it.
    """
    slopes = [f(step.at(0.0), y) if slope is None else slope]
    for c, row in tableau.stages[:-1]:
        slopes.append(f(step.at(c), step.move(y, combine(row, slopes), row.scale)))
    c, row = tableau.stages[-1]
    y1 = step.move(y, combine(row, slopes), row.scale)
    if tableau.fsal:
        slopes.append(f(step.at(c), y1))
    return y1, slopes


def dense_weights(tableau: Tableau, fraction: Number | None) -> Sequence[tuple[int, Number]]:
    """The weights of the slopes in the dense output at a fraction of the step; ``None`` for its end."""
    if fraction is None:
        return tableau.weights
    return [(i, horner(p, fraction) * fraction) for i, p in enumerate(tableau.polynomials) if any(p)]


def dense_slope_weights(tableau: Tableau, fraction: Number) -> Sequence[tuple[int, Number]]:
    """The weights of the slopes in the time derivative of the dense output."""
    return [
        (i, horner([n * c for n, c in enumerate(p, start=1)], fraction))
        for i, p in enumerate(tableau.polynomials)
        if any(p)
    ]


def state_inside(
    tableau: Tableau, step: Interval, y: Tensor, slopes: Sequence[Tensor], fraction: Number | None
) -> Tensor:
    """The dense output at a fraction of the step; ``None`` for its end."""
    return step.move(y, weighted_sum([(weight, slopes[i]) for i, weight in dense_weights(tableau, fraction)]))


def horner(coefficients: Sequence[float], x: Number) -> Number:
    """The polynomial c0 + c1 x + c2 x^2 + ..."""
    value: Number = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


@dataclass
class Step:
    """An accepted step: enough to take it again and, with its slopes, to evaluate anywhere inside it.

    Attributes:
        pieced: Whether the first slope was put together from two evaluations, because some groups rejected a step.
        failed: The groups that had been set aside, shaped to broadcast against the state; ``None`` if there are none.
    """

    interval: Interval
    y: Tensor
    emissions: list[Emission]
    slopes: list[Tensor] | None = None
    pieced: bool = False
    failed: Tensor | None = None


@dataclass
class Trace:
    """What the loop leaves behind.

    Attributes:
        outputs: The state at each of the plan's wanted times; NaN where it was not reached.
        y: The state where the last accepted step ended.
        t: The time reached.
        steps: The accepted steps, if they were to be kept.
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
        y: The state at the start.
        plan: What to do.
        slope: f at the start, if the caller has evaluated it; it counts as an evaluation all the same.
        keep_steps: Keep the state at the start of every accepted step.
        keep_slopes: Of how many accepted steps to keep the slopes as well.
        dense: Keep all that the dense output needs.
        event: End the solve where this happens; the last of the plan's times is then the event's.
        watch: Told of every step.
        path: The noise that is added to the state after every step.
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
        self.event_time: float | None = None
        self.slope_is_pieced = False
        self.steps: list[Step] = []
        self.set_aside: list[tuple[Tensor, Tensor]] = []
        self.failed: Tensor | None = None
        start = plan.times[0]
        self.outputs = {i: y.clone() if plan.times[i] == start else torch.full_like(y, torch.nan) for i in plan.wanted}

    def run(self) -> Trace:
        """The loop over steps."""
        clock = self.clock
        if self.event is not None and self.event.at_start:
            self.outputs[self.plan.wanted[-1]] = self.y.clone()
            self.event_time, clock.running = self.plan.times[0], False
        elif self.slope is not None and clock.running:
            self._check_slope(self.slope)
            self.slope_is_pieced = True  # as it was not made for being pulled back
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
        """Begin with this slope, without the groups for which it is not finite."""
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
        """f(t, y), with zeros for the groups that were set aside: their own parameters may be what is not finite."""
        assert self.failed is not None
        return self.f(t, y).masked_fill(self.failed, 0.0)

    def _try(self, step: Interval) -> None:
        """Take a step, and keep it if it is good enough."""
        tableau, clock, slope = self.plan.tableau, self.clock, self.slope
        if self.watch is not None:
            self.watch("try", step, self.y)
        y1, slopes = take_step(self.rate, tableau, step, self.y, slope)
        clock.charge(len(slopes) if slope is None else len(slopes) - 1)
        accepted = self._judge(step, y1, slopes)
        if self.watch is not None:
            self.watch("reject" if accepted is None else "accept", step, self.y)
        if accepted is None:
            return
        kept = clock.keep(step, accepted)
        whole = kept is step  # groups that are done have stood still by themselves; did others have to be held back?
        if not whole and torch.is_grad_enabled() and not all(map(is_finite, (y1, *slopes))):
            # Autograd would multiply a rejected group's infinities by zero and get NaN: take the step without it.
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

    def _judge(self, step: Interval, y1: Tensor, slopes: list[Tensor]) -> Accepted:
        """Who keeps a step."""
        if self.plan.knots is not None:
            return self.clock.judge(step, None, self.y, y1)
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():  # which takes less time
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
        """Put out the states that were wanted inside an accepted step, and keep what has to be kept of it."""
        plan, tableau = self.plan, self.plan.tableau
        happened = self.event is not None and self.event.has_happened(step.at(1.0), y1)
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
        return Trace([self.outputs[i] for i in self.plan.wanted], y, t, status, self.clock.stats, self.steps)


def stand_in(groups: Tensor, x: Tensor) -> Tensor:
    """Give some groups the values of another, so that f stays finite for them; no gradient flows to those values."""
    healthy = (~groups.flatten()).nonzero().flatten()
    if len(healthy) == 0:
        return x
    each = x.reshape(groups.numel(), -1)
    return torch.where(groups.reshape(-1, 1), each[healthy[0]].detach(), each).reshape(x.shape)
