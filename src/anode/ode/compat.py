"""torchdiffeq's door: its functions, with its arguments, on this solver.

``from torchdiffeq import odeint, odeint_adjoint, odeint_event, odeint_dense`` becomes ``from anode import ...`` and
nothing else changes. The same methods take the same steps; what differs:

* ``odeint`` is differentiated exactly, through the accepted steps, as torchdiffeq's is except that it also
  differentiates the size of the first step.
* ``adaptive_heun`` and ``fehlberg2`` evaluate f at the start of a step, where torchdiffeq takes the last stage for it.
* ``max_num_steps`` is a budget for the whole solve, not for each output time.
* A failed solve raises :class:`anode.SolveError`, which is an ``AssertionError`` too and carries what was solved.
* ``odeint_event`` also differentiates with respect to what ``event_fn`` depends on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from anode.ode import inputs
from anode.ode.control import PID, rms
from anode.ode.gradients import AdjointRate, ContinuousSolve
from anode.ode.integrate import Watch
from anode.ode.packing import Packing, describe
from anode.ode.plan import Interval, Plan
from anode.ode.solution import Solution, State, Stats
from anode.ode.solve import Problem
from anode.ode.tableaus import TABLEAUS, Tableau

UNSUPPORTED = (
    *(
        "explicit_adams",
        "implicit_adams",
        "fixed_adams",
        "adams",
        "scipy_solver",
        "implicit_euler",
        "implicit_midpoint",
    ),
    *("trapezoid", "radauIIA3", "radauIIA5", "gl2", "gl4", "gl6", "sdirk2", "trbdf2", "yoshida4th"),
)
"""Methods of torchdiffeq that are not explicit Runge-Kutta methods."""

CALLBACKS = {"try": "callback_step", "accept": "callback_accept_step", "reject": "callback_reject_step"}

ADAPTIVE_OPTIONS = {
    *("norm", "dtype", "first_step", "min_step", "max_step", "safety", "ifactor", "dfactor", "max_num_steps"),
    *("step_t", "jump_t", "grid_points", "eps"),
}
FIXED_OPTIONS = {"norm", "step_size", "grid_constructor", "interp", "perturb"}
MAX_FIXED_STEPS = 20_000  # towards an event, which may never happen


def odeint(
    func: Callable[[Tensor, Any], Any],
    y0: State,
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[[Tensor, Any], Tensor] | None = None,
) -> Any:
    """Solve dy/dt = func(t, y) and return y at all of ``t``, as ``torchdiffeq.odeint`` does.

    Args:
        func: The right-hand side; may have the attributes ``callback_step``, ``callback_accept_step`` and
            ``callback_reject_step``, called with (t, y, dt).
        y0: State at ``t[0]``, a tensor or a tuple of tensors.
        t: Times, increasing or decreasing.
        rtol, atol: Tolerances: numbers, tensors, or one for each component of a tuple.
        method: A method of ``anode.METHODS``; dopri5 if not given.
        options: torchdiffeq's options of the method.
        event_fn: Stop where ``event_fn(t, y)`` becomes zero; of ``t`` only the start and the direction count then.

    Returns:
        The states, stacked along a new first dimension; with ``event_fn`` the event's time, and the states at the
        start and at the event.

    Example:
        >>> import torch
        >>> from anode import odeint
        >>> y = odeint(lambda t, y: -y, torch.tensor([1.0, 2.0]), torch.linspace(0, 1, 3))
        >>> y.shape
        torch.Size([3, 2])
    """
    problem = _problem(func, y0, t, rtol, atol, method, options, event_fn)
    solution = problem.solve_plain("stored", dense=False).check()
    return solution.ys if event_fn is None else (torch.as_tensor(solution.t1).to(t), solution.ys)


def odeint_adjoint(
    func: Callable[[Tensor, Any], Any],
    y0: State,
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[[Tensor, Any], Tensor] | None = None,
    adjoint_rtol: Any = None,
    adjoint_atol: Any = None,
    adjoint_method: str | None = None,
    adjoint_options: dict[str, Any] | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
) -> Any:
    """The same, differentiated by the continuous adjoint, as ``torchdiffeq.odeint_adjoint`` is.

    The gradient is that of the exact flow, solved for with its own tolerances; :func:`anode.solve` and :func:`odeint`
    give the exact gradient of the numerical solution.

    Args:
        func, y0, t, rtol, atol, method, options, event_fn: As for :func:`odeint`.
        adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options: The same for the backward solve; those of the
            forward solve by default. ``adjoint_options["norm"]`` may be ``"seminorm"``.
        adjoint_params: The tensors whose gradients are wanted; by default the parameters of ``func``.
    """
    if adjoint_params is None and not isinstance(func, nn.Module):
        raise ValueError(
            "adjoint_params: func is not an nn.Module, so its parameters are unknown; pass them, or () for none"
        )
    if adjoint_options is None:
        if adjoint_method not in (None, method) and options is not None:
            raise ValueError("adjoint_options: must be given beside options when adjoint_method differs from method")
        adjoint_options = {key: value for key, value in (options or {}).items() if key != "norm"}
    params = tuple(func.parameters()) if adjoint_params is None else tuple(adjoint_params)  # type: ignore[attr-defined]
    if not all(p.requires_grad for p in params) and callable(adjoint_options.get("norm")):
        warnings.warn(
            "parameters that need no gradient are not among the tensors given to the adjoint norm", stacklevel=2
        )
    params = tuple(p for p in params if p.requires_grad)
    problem = _problem(func, y0, t, rtol, atol, method, options, event_fn)

    def run() -> tuple[Tensor, Tensor | None, Stats]:
        solution = problem.solve_plain("none", dense=False).check()
        ys = torch.stack([problem.packing.pack(y) for y in solution.outputs])
        return ys, None if event_fn is None else torch.as_tensor(solution.t1).to(t), solution.stats

    def solve_back(
        rate: AdjointRate, state: tuple[Tensor, ...], span: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        for name in CALLBACKS.values():
            callback = getattr(func, f"{name}_adjoint", None)
            if callback is not None:
                setattr(rate, name, callback)
        if span[0] == span[1]:
            return state
        back = odeint(
            rate,
            state,
            span,
            rtol=rtol if adjoint_rtol is None else adjoint_rtol,
            atol=atol if adjoint_atol is None else adjoint_atol,
            method=adjoint_method or method,
            options=options,
        )
        return tuple(component[1] for component in back)

    norm = _adjoint_norm(adjoint_options.get("norm"), problem)
    result = ContinuousSolve.apply(  # type: ignore[no-untyped-call]
        problem.rate, run, solve_back, {**adjoint_options, "norm": norm}, problem.y0, t, *params
    )
    if event_fn is None:
        return problem.packing.unpack(result)
    event_time, ys = result
    return event_time, problem.packing.unpack(ys)


def odeint_event(
    func: Callable[[Tensor, Any], Any],
    y0: State,
    t0: Tensor,
    *,
    event_fn: Callable[[Tensor, Any], Tensor],
    reverse_time: bool = False,
    odeint_interface: Callable[..., Any] = odeint,
    **kwargs: Any,
) -> tuple[Tensor, State]:
    """Solve until an event, and differentiate its time, as ``torchdiffeq.odeint_event`` does.

    With c = ``event_fn``, the event's time T is where c(T, y(T)) = 0, so that a change of c at fixed time moves it by
    -change / (dc/dt along the solution), and the state there by f times that.

    Args:
        func, y0: As for :func:`odeint`.
        t0: The start time.
        event_fn: Zero at the event. May return a tensor: the first zero of any element counts.
        reverse_time: Search backward in time.
        odeint_interface: :func:`odeint` or :func:`odeint_adjoint`.
        **kwargs: Passed on to it.

    Returns:
        The time of the event, and the states at the start and at the event.
    """
    start = t0.reshape(1)
    span = torch.cat([start, start.detach() + (-1.0 if reverse_time else 1.0)])
    event_time, ys = odeint_interface(func, y0, span, event_fn=event_fn, **kwargs)
    packing = Packing(y0, 0)
    unpack = packing.unpack
    first, last = packing.pack(y0), packing.pack(_row(ys, -1))
    event_time = event_time.detach()

    with torch.no_grad():
        signs = torch.sign(event_fn(start[0], unpack(first)))
        velocity = packing.rate(func)(event_time.to(last.dtype), last)
    with torch.enable_grad():
        at, y = event_time.clone().requires_grad_(), last.detach().requires_grad_()
        condition = (event_fn(at, unpack(y)) * signs).min()
        along = torch.autograd.grad(condition, (at, y), allow_unused=True) if condition.requires_grad else (None, None)
    speed = sum((g * v).sum() for g, v in zip(along, (torch.ones_like(at), velocity), strict=True) if g is not None)
    change = (event_fn(event_time, unpack(last)) * signs).min()
    delay = -(change - change.detach()) / (speed + 1e-12)
    return event_time + delay, unpack(torch.stack([packing.pack(_row(ys, 0)), last + velocity * delay]))


def _row(ys: State, i: int) -> State:
    """One of the stacked states."""
    return tuple(y[i] for y in ys) if isinstance(ys, tuple) else ys[i]


def odeint_dense(
    func: Callable[[Tensor, Any], Any],
    y0: State,
    t0: Tensor,
    t1: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
) -> Solution:
    """Solve from t0 to t1; the result can be called with any time in between."""
    t = torch.stack([torch.as_tensor(t0), torch.as_tensor(t1)])
    return _problem(func, y0, t, rtol, atol, method, options, None).solve_plain("stored", dense=True).check()


def _problem(
    func: Callable[[Tensor, Any], Any],
    y0: State,
    t: Tensor,
    rtol: Any,
    atol: Any,
    method: str | None,
    options: dict[str, Any] | None,
    event_fn: Callable[[Tensor, Any], Tensor] | None,
) -> Problem:
    """Torchdiffeq's arguments in this solver's terms."""
    y0 = inputs.state(y0)
    packing = Packing(y0, 0)
    y = packing.pack(y0)
    times = _checked_times(t)
    if event_fn is not None:
        inputs.require(len(times) == 2, "t", t, "a start time and a second one for the direction, beside event_fn")
        times = [times[0], math.copysign(math.inf, times[1] - times[0])]
    tableau = _checked_method(method)
    options = dict(options or {})
    norm = options.get("norm")
    unknown = options.keys() - (ADAPTIVE_OPTIONS if tableau.adaptive else FIXED_OPTIONS)
    if unknown:
        warnings.warn(f"options: {tableau.name} does not know {sorted(unknown)}, which are ignored", stacklevel=3)

    def scaled_error_norm(error: Tensor) -> Tensor:
        return torch.as_tensor(norm(packing.unpack(error)))  # type: ignore[misc]

    settings: dict[str, Any] = {
        "tableau": tableau,
        "times": times,
        "wanted": list(range(len(times))),
        "like": y.detach(),
        "rtol": _checked_tolerance("rtol", rtol, packing),
        "atol": _checked_tolerance("atol", atol, packing),
        "norm": packing.norm() if norm is None else scaled_error_norm,
        "times_move": t.requires_grad,
    }
    if tableau.adaptive:
        settings |= _adaptive_settings(options, times)
    else:
        settings |= _fixed_settings(options, tableau, times, func, y0, t)
    moving = t[: len(times)].to(torch.float64) if t.requires_grad else None
    watch = _watch(func, packing, tableau)
    return Problem(func, y, moving, Plan(**settings), packing, settings["wanted"], event_fn, watch)


def _checked_times(t: Tensor) -> list[float]:
    if not isinstance(t, Tensor) or not t.is_floating_point():
        raise TypeError(f"t: takes a floating point tensor, got {describe(t)}")
    inputs.require(t.ndim == 1 and len(t) > 0, "t", t, "one dimension and at least one time")
    times: list[float] = t.detach().tolist()
    steps = [b - a for a, b in pairwise(times)]
    ordered = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    inputs.require(ordered, "t", times, "strictly increasing or strictly decreasing times")
    return times


def _checked_method(method: str | None) -> Tableau:
    if method in UNSUPPORTED:
        raise ValueError(
            f"method: torchdiffeq's {method!r} is not an explicit Runge-Kutta method and is not supported here; "
            f"takes one of {', '.join(TABLEAUS)}"
        )
    return inputs.lookup("method", method or "dopri5", TABLEAUS)


def _checked_tolerance(name: str, tolerance: Any, packing: Packing) -> float | Tensor:
    if packing.is_tuple and isinstance(tolerance, Tensor) and tolerance.ndim > 0:
        tolerance = tuple(tolerance)
    packed = packing.pack_tolerance(name, tolerance)
    inputs.require(bool((torch.as_tensor(packed) >= 0).all()), name, tolerance, "numbers from 0")
    return packed.detach() if isinstance(packed, Tensor) else packed


def _adaptive_settings(options: dict[str, Any], times: list[float]) -> dict[str, Any]:
    def numbers(name: str) -> list[float]:
        return [float(value) for value in options.get(name, ())]

    jumps = numbers("jump_t") + numbers("grid_points")
    landings = numbers("step_t") + jumps
    inputs.require(len(set(landings)) == len(landings), "step_t, jump_t", landings, "times without repetition")
    first_step = options.get("first_step")
    return {
        "controller": PID(
            safety=float(options.get("safety", 0.9)),
            min_factor=float(options.get("dfactor", 0.2)),
            max_factor=float(options.get("ifactor", 10.0)),
        ),
        "max_steps": int(options.get("max_num_steps", 2**31 - 1)),
        "first_step": None if first_step is None else float(first_step),
        "min_step": float(options.get("min_step", 0.0)),
        "max_step": float(options.get("max_step", math.inf)),
        "step_at": sorted(landings, reverse=times[-1] < times[0]),
        "jump_at": frozenset(jumps),
    }


def _fixed_settings(
    options: dict[str, Any], tableau: Tableau, times: list[float], func: Any, y0: State, t: Tensor
) -> dict[str, Any]:
    step_size, constructor = options.get("step_size"), options.get("grid_constructor")
    inputs.require(
        step_size is None or constructor is None, "options", options, "step_size or grid_constructor, not both"
    )
    if math.isinf(times[-1]):
        inputs.require(
            step_size is not None, "options", options, "step_size beside event_fn and a method of fixed steps"
        )
        step = math.copysign(float(step_size), times[-1])  # type: ignore[arg-type]
        grid = [times[0] + i * step for i in range(MAX_FIXED_STEPS + 1)]
    elif step_size is not None and len(times) > 1:
        grid = inputs.even_steps(times[0], times[-1], float(step_size))
    else:
        grid = times if constructor is None else constructor(func, y0, t.detach()).tolist()
    ends = (grid[0], grid[-1]) == (times[0], times[-1]) or math.isinf(times[-1])
    inputs.require(ends, "grid_constructor", grid, f"times from {times[0]} to {times[-1]}")
    interp = options.get("interp", "linear")
    given = {time: i for i, time in enumerate(times)}
    return {
        "tableau": inputs.lookup("interp", interp, {"linear": tableau.linear(), "cubic": tableau}),
        "knots": [(time, given.get(time, 0)) for time in grid],
        "max_steps": max(len(grid) - 1, 1),
        "controller": PID(),
        "nudge": bool(options.get("perturb", False)),
    }


def _watch(func: Any, packing: Packing, tableau: Tableau) -> Watch | None:
    """The callbacks of ``func``, if it has any."""
    callbacks = {event: callback for event, name in CALLBACKS.items() if (callback := getattr(func, name, None))}
    missing = {CALLBACKS[event] for event in callbacks.keys() - {"try"}} if not tableau.adaptive else set()
    if missing:
        warnings.warn(f"method {tableau.name!r} does not support the callbacks {sorted(missing)}", stacklevel=4)
    if not callbacks:
        return None

    def watch(event: str, step: Interval, y: Tensor) -> None:
        if event in callbacks and (event == "try" or tableau.adaptive):
            t, dt = (torch.as_tensor(value, dtype=torch.float64, device=y.device) for value in (step.t, step.h))
            callbacks[event](t, packing.unpack(y), dt.abs())

    return watch


def _adjoint_norm(norm: Any, problem: Problem) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """The norm of the backward solve, of (cotangent of t, y, cotangent of y, *cotangents of parameters)."""
    state_norm, unpack = problem.plan.norm, problem.packing.unpack

    def largest(parts: tuple[Tensor, ...]) -> Tensor:
        at_time, y, adjoint, *at_params = parts
        norms = [at_time.abs(), state_norm(y), state_norm(adjoint)]
        if norm != "seminorm":
            norms += [rms(0, part.numel())(part) for part in at_params if part.numel()]
        return torch.stack(norms).amax()

    def custom(parts: tuple[Tensor, ...]) -> Tensor:
        at_time, y, adjoint, *at_params = parts
        return norm((at_time, *unpack(y), *unpack(adjoint), *at_params))

    if norm is None or norm == "seminorm":
        return largest
    return custom if problem.packing.is_tuple else norm
