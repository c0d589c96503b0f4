"""The integration loop: the only loop over solver steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from anode.ode.clocks import GroupClock, clock_for
from anode.ode.events import Event
from anode.ode.plan import Emission, Interval, Number, Plan, Rate
from anode.ode.solution import Stats, Status
from anode.ode.tableaus import Row, Tableau

Watch = Callable[[str, Interval, Tensor], None]
"""Told of every step: "try", then "accept" or "reject", with the interval and the state at its start."""


def combine(row: Row, slopes: Sequence[Tensor]) -> Tensor:
    """The sum of slopes that a row describes, without its scale."""
    total = slopes[row.first]
    if row.rest:
        (i, weight), *others = row.rest
        total = torch.add(total, slopes[i], alpha=weight)
        for i, weight in others:
            total.add_(slopes[i], alpha=weight)
    return total


def weighted_sum(parts: Sequence[tuple[Number, Tensor]], factor: Number = 1.0) -> Tensor:
    """``factor`` times a sum of (weight, tensor) pairs; weights are numbers, or tensors that broadcast."""
    weight, part = parts[0]
    total = part * _like(weight * factor, part)
    for weight, part in parts[1:]:
        weight = _like(weight * factor, part)
        if isinstance(weight, Tensor):
            total = torch.addcmul(total, part, weight)
        else:
            total.add_(part, alpha=weight)
    return total


def _like(weight: Number, part: Tensor) -> Number:
    return weight.to(part.dtype) if isinstance(weight, Tensor) else weight


def take_step(f: Rate, tableau: Tableau, step: Interval, y: Tensor, slope: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One step of the method: the new state and the slopes, with the end slope last if the method is FSAL."""
    slopes = [slope]
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
    """An accepted step: enough to take it again and, with its slopes, to evaluate anywhere inside it."""

    interval: Interval
    y: Tensor
    emissions: list[Emission]
    slopes: list[Tensor] | None = None


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


def integrate(
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
) -> Trace:
    """Solve dy/dt = f(t, y) over the plan's times.

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
    """
    tableau, clock = plan.tableau, clock_for(plan)
    outputs = {i: y.clone() if plan.times[i] == plan.times[0] else torch.full_like(y, torch.nan) for i in plan.wanted}
    steps: list[Step] = []
    event_time: float | None = None
    if event is not None and event.at_start:
        event_time, clock.running = plan.times[0], False
        outputs[plan.wanted[-1]] = y.clone()
    if slope is not None and clock.running:
        clock.charge(1)
    aside: list[tuple[Tensor, Tensor]] = []
    known = None
    while clock.running:
        if slope is None:
            slope = f(clock.now(), y)
            clock.charge_first_slope()
        if isinstance(clock, GroupClock) and slope is not known:
            unusable = clock.fail_without_slope(slope)
            if unusable is not None:
                aside.append((unusable, y))
                y = _stand_in(unusable, y)
                slope = f(clock.now(), y)
                clock.stats.calls += 1
                continue
        clock.begin(f, y, slope)
        step = clock.propose()
        if step is None:
            break
        if watch:
            watch("try", step, y)
        y1, slopes = take_step(f, tableau, step, y, slope)
        clock.charge(len(slopes) - 1)
        with torch.no_grad():
            error = combine(tableau.error_row, slopes) if plan.knots is None else None
            accepted = clock.judge(step, error, y, y1)
        if watch:
            watch("reject" if accepted is None else "accept", step, y)
        if accepted is None:
            continue

        step, attempted = clock.keep(step, accepted), step
        if step is not attempted and torch.is_grad_enabled() and not y1.isfinite().all():
            # Autograd would multiply a rejected group's infinities by zero and get NaN: take the step without it.
            y1, slopes = take_step(f, tableau, step, y, slope)
            clock.stats.calls += len(slopes) - 1
        emissions = clock.emissions(step, accepted)
        happened = event is not None and event.has_happened(step.at(1.0), y1)
        inside = dense or happened or any(e.fraction is not None for e in emissions)
        if inside and tableau.dense_needs_end_slope and not tableau.fsal:
            slopes.append(f(step.at(1.0), y1))
            clock.charge(1, accepted)
        if event is not None and happened:
            when = event.locate(step, partial(state_inside, tableau, step, y, slopes))
            if (plan.times[-1] - when) * plan.direction >= 0:
                emissions = [e for e in emissions if (when - plan.times[e.index]) * plan.direction > 0]
                emissions.append(Emission(plan.wanted[-1], (when - step.t) / step.h))
                event_time, clock.running = when, False
        for emission in emissions:
            value = state_inside(tableau, step, y, slopes, emission.fraction)
            if emission.groups is not None:
                value = torch.where(emission.groups, value, outputs[emission.index])
            outputs[emission.index] = value
        if keep_steps or dense:
            steps.append(Step(step, y, emissions, slopes if dense or len(steps) < keep_slopes else None))

        y = clock.choose(accepted, y1, y)
        has_end_slope = len(slopes) > len(tableau.b) and not plan.is_jump(step.t1)
        slope = known = clock.choose(accepted, slopes[-1], slope) if has_end_slope else None
    for groups, state in aside:
        y = torch.where(groups, state, y)
    t, status = clock.t, clock.status
    if event is not None and status == Status.SUCCESS:
        t, status = (plan.times[-1], Status.NO_EVENT) if event_time is None else (event_time, status)
    return Trace([outputs[i] for i in plan.wanted], y, t, status, clock.stats, steps)


def _stand_in(groups: Tensor, x: Tensor) -> Tensor:
    """Give some groups the values of another, so that f stays finite and autograd is not fed NaN for them."""
    healthy = (~groups.flatten()).nonzero().flatten()
    if len(healthy) == 0:
        return x
    each = x.reshape(groups.numel(), -1)
    return torch.where(groups.reshape(-1, 1), each[healthy[0]], each).reshape(x.shape)
