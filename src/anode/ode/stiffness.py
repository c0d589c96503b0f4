"""Stiffness detection: whether stability limits the step size instead of accuracy.

An explicit method is stable only if the step size times the spectral radius of df/dy is below a limit, whatever the
tolerances. This code runs only if a solve has used up its steps, so other solves do not pay for it.

References:
    Hairer and Wanner, *Solving Ordinary Differential Equations II*, 2nd edition, 1996 (section IV.2, "Stiffness
    Detection").
    Sommeijer, Shampine and Verwer, *RKC: an explicit solver for parabolic PDEs*, 1998 (the power method on f).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anode.ode.control import Number, rms
from anode.ode.field import Rate
from anode.ode.plan import Interval, Plan, to_broadcast
from anode.ode.solution import Names, Stats

ITERATIONS = 12
"""Number of iterations of the power method."""

NEAR_LIMIT = 0.7
"""Stability limits the steps if their average size exceeds this fraction of the largest stable step."""


@torch.no_grad()
def fastest_rates(f: Rate, plan: Plan, t: Number, y: Tensor) -> Tensor:
    """Estimate the spectral radius of df/dy by the power method, one value per group.

    The Jacobian is applied by finite differences, relative to the size of each element of y.
    """
    y = y.detach()
    now = _moment(plan, t)
    norm = rms(plan.group_dims, math.prod(y.shape[plan.group_dims :]))
    small = math.sqrt(torch.finfo(y.dtype).eps)
    size = y.abs()
    size = size + small * to_broadcast(plan, norm(size)) + plan.atol
    base = f(now, y)
    direction = torch.arange(y.numel(), dtype=size.dtype, device=y.device).cos().reshape(y.shape).to(y.dtype)
    rate = norm(direction)
    for _ in range(ITERATIONS):
        direction = direction / to_broadcast(plan, rate)
        direction = (f(now, y + small * size * direction) - base) / (small * size)
        rate = norm(direction)
    return rate


def _moment(plan: Plan, t: Number) -> Any:
    """Return a time as f takes it."""
    t = to_broadcast(plan, t) if plan.group_dims else t
    return Interval(plan, t, t + plan.direction, None, None).at(0.0)


@torch.no_grad()
def is_random(f: Rate, plan: Plan, t: Number, y: Tensor) -> bool:
    """Whether f returns different values for the same arguments."""
    now, y = _moment(plan, t), y.detach()
    return not torch.allclose(f(now, y), f(now, y), rtol=0.0, atol=0.0, equal_nan=True)


def stiff_step(f: Rate, plan: Plan, t: Number, y: Tensor, accepted: Number, group: int = 0) -> float | None:
    """Return the largest stable step size at (t, y), or ``None`` if stability did not limit the steps.

    Args:
        f: The right-hand side.
        plan: The plan of the solve.
        t, y: The time and state that the solve has reached.
        accepted: Number of accepted steps so far.
        group: Index of the group, if groups have their own step sizes.
    """
    way, steps = (torch.as_tensor(x).flatten()[group].item() for x in (t - plan.times[0], accepted))
    rate = fastest_rates(f, plan, t, y).flatten()[group].item()
    if plan.knots is not None or steps == 0 or not 0 < rate < math.inf:
        return None
    largest = plan.tableau.stability / rate
    return largest if abs(way) / steps > NEAR_LIMIT * largest else None


def is_hopeless(f: Rate, plan: Plan, t: float, y: Tensor, stats: Stats) -> bool:
    """Whether a problem with one step size is stiff and will need more steps than ``plan.stiff_steps``."""
    step = stiff_step(f, plan, t, y, stats.accepted)
    if step is None or plan.stiff_steps is None:
        return False
    left = abs(plan.times[-1] - t) / step
    return stats.accepted + stats.rejected + (left if math.isfinite(left) else 0) > plan.stiff_steps


def note(f: Rate, plan: Plan, t: Number, y: Tensor, accepted: Number, group: int, names: Names) -> str:
    """Return a message for a solve that ran out of steps because f is random or stiff; empty if it is neither."""
    if is_random(f, plan, t, y):
        return (
            f"{names.f} returns different values for the same t and y, as dropout does in training, so its errors do "
            "not shrink with the steps. Call .eval() on the layers that draw random numbers, move them out of "
            f"{names.f}, or use fixed steps (such as method='rk4' and {names.step_size})"
        )
    step = stiff_step(f, plan, t, y, accepted, group)
    if step is None:
        return ""
    left = abs(plan.times[-1] - torch.as_tensor(t).flatten()[group].item()) / step
    rest = f", so the rest of the span needs at least {left:.2g} more" if math.isfinite(left) else ""
    return (
        f"the problem looks stiff: {plan.tableau.name} is unstable here with steps above {step:.2g}, whatever the "
        f"tolerances{rest}. Use an implicit method (such as {names.implicit}), rescale or regularise {names.f}, "
        f"shorten the span, or {names.more_steps}"
    )
