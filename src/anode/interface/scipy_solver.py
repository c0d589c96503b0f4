"""torchdiffeq's method ``"scipy_solver"``: integration by ``scipy.integrate.solve_ivp``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.checks import is_finite, lookup, require
from anode.extras import needs
from anode.interface.packing import THEIRS
from anode.ode.integrate import Trace
from anode.ode.problem import Problem
from anode.ode.solution import Stats, Status

NAME = "scipy_solver"
SOLVERS = ("LSODA", "RK23", "RK45", "DOP853", "Radau", "BDF")
"""SciPy's methods, as the option ``"solver"`` names them."""
MOST_EVALUATIONS = 1_000_000
"""Number of evaluations after which a solve stops. LSODA would take ever smaller steps towards a pole."""
WORDS = THEIRS._replace(more_steps="shorten the span", at_jumps="solve from jump to jump")
"""The words of its messages: it has no options for these."""
OPTIONS = {"solver", "min_step", "max_step", "norm", "grid_points", "eps"}
"""The options that torchdiffeq accepts. It ignores the last three."""


class _StoppedError(Exception):
    """A solve stops. The arguments are its status and the time."""


def check(options: dict[str, Any], only_at_times: bool) -> None:
    """Raise ``ValueError`` unless SciPy can do what is asked for.

    Args:
        options: torchdiffeq's options.
        only_at_times: Whether only the states at given times are wanted, and no event or dense output.
    """
    require(only_at_times, "method", NAME, "a method of anode, with events or dense output")
    lookup('options["solver"]', options.get("solver", "LSODA"), dict.fromkeys(SOLVERS))


def integrate(problem: Problem, options: dict[str, Any], y0: Tensor) -> Trace:
    """Integrate a problem with SciPy.

    Args:
        problem: The problem.
        options: torchdiffeq's options: ``"solver"``, one of :data:`SOLVERS`, and ``"min_step"`` and ``"max_step"``.
        y0: The packed initial state.
    """
    needs(f'method="{NAME}"', "sklearn", "scipy")
    from scipy.integrate import solve_ivp

    plan, stats = problem.plan, Stats()

    def slope(t: float, y: Any) -> Any:
        stats.nfe += 1
        state = torch.as_tensor(y).to(y0).reshape(y0.shape)
        with torch.no_grad():
            found = problem.rate(torch.tensor(t, **plan.time_type), state)
        if not is_finite(found):
            raise _StoppedError(Status.NON_FINITE, t)
        if stats.nfe == MOST_EVALUATIONS:
            raise _StoppedError(Status.MAX_STEPS, t)
        return found.cpu().numpy().reshape(-1)

    wanted = [i for i in plan.wanted if plan.times[i] != plan.times[0]]
    if not wanted:
        return Trace([y0.clone() for _ in plan.wanted], y0, plan.times[0], Status.SUCCESS, stats)
    states: list[Tensor] = []
    try:
        result = solve_ivp(
            slope,
            (plan.times[0], plan.times[-1]),
            y0.detach().cpu().numpy().reshape(-1),
            method=options.get("solver", "LSODA"),
            t_eval=[plan.times[i] for i in wanted],
            rtol=_numbers(plan.rtol, y0),
            atol=_numbers(plan.atol, y0),
            **{name: float(options[name]) for name in ("min_step", "max_step") if name in options},
        )
        states = [torch.from_numpy(row.copy()).to(y0).reshape(y0.shape) for row in np.transpose(result.y)]
        status = Status.SUCCESS if result.success else Status.UNDERFLOW
        t = plan.times[wanted[len(states) - 1]] if states else plan.times[0]
    except _StoppedError as stop:
        status, t = stop.args
    reached = dict(zip(wanted, states, strict=False))
    outputs = [y0.clone() if i not in wanted else reached.get(i, torch.full_like(y0, torch.nan)) for i in plan.wanted]
    stats.calls = stats.nfe
    return Trace(outputs, states[-1] if states else y0, t, status, stats)


def _numbers(tolerance: float | Tensor, y0: Tensor) -> Any:
    """Return a tolerance as a number, or as an array with one number per element of the state."""
    return tolerance.expand(y0.shape).cpu().numpy().reshape(-1) if isinstance(tolerance, Tensor) else tolerance
