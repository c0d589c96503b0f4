"""Stiffness: whether the step size is limited by stability instead of accuracy.

An explicit method is stable only with steps below a limit over the fastest rate at which f changes, whatever the
tolerances. Nothing here runs unless a solve has used up its steps, so that finding out costs other solves nothing.

References:
    Hairer and Wanner, *Solving Ordinary Differential Equations II*, 2nd edition, 1996 (section IV.2, "Stiffness
    Detection").
    Sommeijer, Shampine and Verwer, *RKC: an explicit solver for parabolic PDEs*, 1998 (the power method on f).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anode.ode.control import Number, rms
from anode.ode.field import Rate
from anode.ode.plan import Interval, Plan, to_broadcast
from anode.ode.solution import Stats

ITERATIONS = 12
"""Evaluations of f that the power method makes."""

NEAR_LIMIT = 0.7
"""Steps are limited by stability if they are, on average, longer than this fraction of the stable ones."""


@torch.no_grad()
def fastest_rates(f: Rate, plan: Plan, t: Number, y: Tensor) -> Tensor:
    """Estimate the spectral radius of df/dy by the power method, one value per group.

    The Jacobian is applied by finite differences, relative to the size of each element of y.
    """
    y = y.detach()
    if plan.group_dims:
        t = to_broadcast(plan, t)
    now = Interval(plan, t, t + plan.direction, None, None).at(0.0)
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


def stiff_step(f: Rate, plan: Plan, t: Number, y: Tensor, accepted: Number, group: int = 0) -> float | None:
    """Return the largest stable step where a solve has arrived, or ``None`` if its steps were not limited by that.

    Args:
        f: The right-hand side.
        plan: What the solve was asked to do.
        t, y: Where it has arrived.
        accepted: How many steps brought it there.
        group: Which of the groups, if they have step sizes of their own.
    """
    way, steps = (torch.as_tensor(x).flatten()[group].item() for x in (t - plan.times[0], accepted))
    rate = fastest_rates(f, plan, t, y).flatten()[group].item()
    if plan.knots is not None or steps == 0 or not 0 < rate < math.inf:
        return None
    largest = plan.tableau.stability / rate
    return largest if abs(way) / steps > NEAR_LIMIT * largest else None


def is_hopeless(f: Rate, plan: Plan, t: float, y: Tensor, stats: Stats) -> bool:
    """Whether a problem with one step size for all is stiff, and will take more steps than the plan allows then."""
    step = stiff_step(f, plan, t, y, stats.accepted)
    if step is None or plan.stiff_steps is None:
        return False
    left = abs(plan.times[-1] - t) / step
    return stats.accepted + stats.rejected + (left if math.isfinite(left) else 0) > plan.stiff_steps


def note(f: Rate, plan: Plan, t: Number, y: Tensor, accepted: Number, group: int) -> str:
    """Return what to tell a caller whose solve ran out of steps if the problem is stiff; else nothing."""
    step = stiff_step(f, plan, t, y, accepted, group)
    if step is None:
        return ""
    left = abs(plan.times[-1] - torch.as_tensor(t).flatten()[group].item()) / step
    rest = f", so that the rest needs at least {left:.2g} more" if math.isfinite(left) else ""
    return (
        f"the problem looks stiff: {plan.tableau.name} is unstable here with steps above {step:.2g}, whatever the "
        f"tolerances{rest}. Use an implicit method (such as SciPy's solve_ivp with method='Radau'), rescale or "
        "regularise f, shorten the span, or raise max_steps (in odeint, options={'max_num_steps': ...})"
    )
