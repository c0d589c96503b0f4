"""torchdiffeq's door: its functions, with its arguments, on this solver.

``from torchdiffeq import odeint, odeint_adjoint, odeint_event, odeint_dense`` becomes ``from anode import ...`` and
nothing else changes: all methods take the same steps. What differs is listed in
``docs/torchdiffeq.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import check_function, describe, names_arguments, tensors_in
from anode.engine.dispatch import compiled_again
from anode.engine.dispatch import run as engine_run
from anode.engine.sequential import as_function
from anode.interface.options import CALLBACKS, adjoint_norm, problem_from
from anode.ode.continuous import AdjointRate, ContinuousSolve, solve_backward
from anode.ode.field import AutogradDerivative, Derivative, parameters_of
from anode.ode.packing import FlatPacking
from anode.ode.solution import Solution, State, Stats
from anode.ode.stored import Stored
from anode.ode.tools import outside_graphs


@outside_graphs
@names_arguments
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
    problem = problem_from(func, y0, t, rtol, atol, method, options, event_fn)
    solution = engine_run(problem, Stored()).check()
    return solution.ys if event_fn is None else (torch.tensor(solution.t1, dtype=torch.float64).to(t), solution.ys)


@outside_graphs
@names_arguments
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
    params = parameters_of(func) if adjoint_params is None else tensors_in("adjoint_params", adjoint_params)  # type: ignore[arg-type]
    if not all(p.requires_grad for p in params) and callable(adjoint_options.get("norm")):
        warnings.warn(
            "parameters that need no gradient are not among the tensors given to the adjoint norm", stacklevel=4
        )
    params = tuple(p for p in params if p.requires_grad)
    problem = problem_from(func, y0, t, rtol, atol, method, options, event_fn)

    is_compiled = False

    def run() -> tuple[Tensor, Tensor | None, Stats]:
        nonlocal is_compiled
        solution = engine_run(problem, Stored()).check()  # nothing is recorded here
        is_compiled = solution.engine.compiled or not solution.engine.obstacle
        ys = torch.stack([problem.packing.pack(y) for y in solution.outputs])
        return ys, None if event_fn is None else torch.tensor(solution.t1, dtype=torch.float64).to(t), solution.stats

    def derivative() -> Derivative:
        own = compiled_again(problem, params) if is_compiled else None
        return own or AutogradDerivative(problem.rate, params, again=True)

    def solve_back(
        rate: AdjointRate, state: tuple[Tensor, ...], span: Tensor, back_options: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        for name in CALLBACKS.values():
            callback = getattr(func, f"{name}_adjoint", None)
            if callback is not None:
                setattr(rate, name, callback)
        if span[0] == span[1]:
            return state
        backward = problem_from(
            rate,
            state,
            span,
            rtol if adjoint_rtol is None else adjoint_rtol,
            atol if adjoint_atol is None else adjoint_atol,
            adjoint_method or method,
            back_options,
            None,
        )
        return solve_backward(backward)

    norm = adjoint_norm(adjoint_options.get("norm"), problem)
    result = ContinuousSolve.apply(  # type: ignore[no-untyped-call]
        derivative, run, solve_back, {**adjoint_options, "norm": norm}, problem.y0, t, *params
    )
    if event_fn is None:
        return problem.packing.unpack(result)
    event_time, ys = result
    return event_time, problem.packing.unpack(ys)


@outside_graphs
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
    if not isinstance(t0, Tensor) or t0.numel() != 1:
        raise TypeError(f"t0: takes a floating point tensor of one time, such as torch.tensor(0.0), got {describe(t0)}")
    check_function("event_fn", event_fn, "event_fn(t, y)")
    start = t0.reshape(1)
    span = torch.cat([start, start.detach() + (-1.0 if reverse_time else 1.0)])
    event_time, ys = odeint_interface(func, y0, span, event_fn=event_fn, **kwargs)
    packing = FlatPacking(y0)
    unpack = packing.unpack
    first, last = packing.pack(y0), packing.pack(_row(ys, -1))
    event_time = event_time.detach()

    with torch.no_grad():
        signs = torch.sign(event_fn(start[0], unpack(first)))
        velocity = packing.rate(as_function(func))(event_time.to(last.dtype), last)
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


@outside_graphs
@names_arguments
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
    """Solve from t0 to t1; the result can be called with any time in between.

    Args:
        func, y0, rtol, atol, method, options: As for :func:`odeint`.
        t0, t1: The start and the end time.
    """
    t = torch.stack([torch.as_tensor(t0), torch.as_tensor(t1)])
    problem = problem_from(func, y0, t, rtol, atol, method, options, None, dense=True)
    return engine_run(problem, Stored()).check()
