"""Dense output: the solution at any time, from the polynomials of its steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from anode.ode.control import Number
from anode.ode.integrate import Trace
from anode.ode.plan import Plan, as_float
from anode.ode.runge_kutta import combine, state_inside, weighted_sum
from anode.ode.solution import State


class DenseOutput:
    """Evaluates the dense output of a solve that kept its slopes.

    Args:
        plan: The plan of the solve.
        trace: The result of the loop over steps.
        unpack: Returns the states in a tensor of packed states.
    """

    def __init__(self, plan: Plan, trace: Trace, unpack: Callable[[Tensor], State]) -> None:
        self._plan, self._trace, self._unpack = plan, trace, unpack
        reached = (torch.as_tensor(trace.t, dtype=plan.time_dtype) * plan.direction).max().item() * plan.direction
        end = min(reached, plan.times[-1], key=lambda t: t * plan.direction)
        self._first, self._last = sorted((plan.times[0], end))
        self._ends = [] if plan.group_dims else [as_float(step.interval.t1) * plan.direction for step in trace.steps]

    def __call__(self, t: Tensor) -> State:
        """Return the states at the times ``t``."""
        slack = torch.finfo(t.dtype).eps * max(abs(self._first), abs(self._last)) if t.is_floating_point() else 0.0
        inside = (t >= self._first - slack) & (t <= self._last + slack)
        if not inside.all():
            raise ValueError(
                f"t: takes times from {self._first:.6g} to {self._last:.6g}, the part that was solved, "
                f"got t = {t[~inside].flatten()[0].item():.6g}"
            )
        times = t.to(self._plan.like.device, self._plan.time_dtype).clamp(self._first, self._last).flatten()
        states = [self._state_at(time) for time in times.unbind()]
        return self._unpack(torch.stack(states).reshape(t.shape + self._plan.like.shape))

    def errors(self) -> list[tuple[Number, Tensor]]:
        """Return the size of every step and the root mean square of its error estimate, see :class:`Solution`."""
        plan = self._plan
        if not plan.tableau.adaptive:
            raise ValueError(f"method: takes one with an error estimate, got {plan.tableau.name!r}; use dopri5")
        found = []
        for step in self._trace.steps:
            assert step.slopes is not None
            row, h = plan.tableau.error_row, step.interval.h
            error = weighted_sum([(row.scale, combine(row, step.slopes))], h)
            # The error of a group that takes no part in the step is 0, where the square root has no derivative.
            mean = error.square().reshape(*plan.groups, -1).mean(-1)
            size = h.detach().reshape(plan.groups).to(error.dtype) if isinstance(h, Tensor) and plan.groups else h
            found.append((size, (mean + torch.finfo(error.dtype).tiny).sqrt()))
        return found

    def _state_at(self, time: Tensor) -> Tensor:
        plan = self._plan
        if not self._trace.steps:
            return self._trace.y
        if plan.group_dims == 0:
            inside = self._trace.steps[bisect_left(self._ends, time.item() * plan.direction)]
            assert inside.slopes is not None
            fraction = (time - inside.interval.t) / inside.interval.h
            return state_inside(plan.tableau, inside.interval, inside.y, inside.slopes, fraction)
        state = torch.full_like(plan.like, torch.nan)
        for step in self._trace.steps:
            interval: Number = step.interval
            inside = ((time - interval.t) * plan.direction >= 0) & ((interval.t1 - time) * plan.direction >= 0)
            inside = inside & (interval.h != 0)
            if inside.any():
                assert step.slopes is not None
                fraction = torch.where(inside, (time - interval.t) / torch.where(inside, interval.h, 1.0), 0.0)
                state = torch.where(inside, state_inside(plan.tableau, interval, step.y, step.slopes, fraction), state)
        return state
