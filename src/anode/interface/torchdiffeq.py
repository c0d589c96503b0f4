"""Drop-in replacements for torchdiffeq's functions, with the same arguments.

Change ``from torchdiffeq import odeint, odeint_adjoint, odeint_event, odeint_dense`` to ``from anode import ...``. All
methods take the same steps as torchdiffeq's. ``docs/torchdiffeq.md`` lists the differences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import check_function, describe, names_arguments, tensors_in
from anode.engine.dispatch import compiled_again
from anode.engine.dispatch import run as engine_run
from anode.engine.timeless import as_function
from anode.interface.callbacks import CALLBACKS
from anode.interface.options import adjoint_norm, problem_from, signed
from anode.interface.packing import FlatPacking
from anode.ode.adjoint import AdjointRate, ContinuousSolve, solve_backward
from anode.ode.field import AutogradDerivative, Derivative, parameters_of
from anode.ode.gradient import dot
from anode.ode.packing import views
from anode.ode.problem import Problem
from anode.ode.solution import Solution, SolveError, State, Stats, Status
from anode.ode.stored import Stored
from anode.ode.transforms import outside_graphs

THEIR_MESSAGES = {
    Status.UNDERFLOW: "underflow in dt",
    Status.NON_FINITE: "underflow in dt",
    Status.MAX_STEPS: "max_num_steps exceeded",
}
"""What torchdiffeq says if a solve fails."""


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
    """Integrate dy/dt = func(t, y) and return the states at the times ``t``. Replaces ``torchdiffeq.odeint``.

    Args:
        func: The right-hand side, called as ``func(t, y)``. It may define ``callback_step``, ``callback_accept_step``
            and ``callback_reject_step``, which are called with ``(t, y, dt)``.
        y0: Initial state at ``t[0]``: a tensor or a tuple of tensors.
        t: Output times, strictly increasing or strictly decreasing. The first is the start.
        rtol, atol: Relative and absolute tolerance: numbers, tensors, or one per component of a tuple.
        method: One of ``anode.METHODS``, ``"explicit_adams"``, ``"implicit_adams"`` or ``"scipy_solver"``, which is not
            differentiable. Defaults to ``"dopri5"``.
        options: torchdiffeq's options for the method.
        event_fn: A function ``event_fn(t, y)``. The solve stops where it becomes zero. ``t`` then holds the start time
            and a second time that only gives the direction.

    Returns:
        The states, stacked along a new first dimension. With ``event_fn``, a tuple of the event time and the stacked
        states at the start and at the event.

    Raises:
        SolveError: If the solve fails.
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value.

    Example:
        >>> import torch
        >>> from anode import odeint
        >>> y = odeint(lambda t, y: -y, torch.tensor([1.0, 2.0]), torch.linspace(0, 1, 3))
        >>> y.shape
        torch.Size([3, 2])
    """
    solution = _solved(problem_from(func, y0, t, rtol, atol, method, options, event_fn))
    ys = solution.ys
    if isinstance(ys, Tensor):
        ys = ys.contiguous()
    return ys if event_fn is None else (torch.tensor(solution.t1, dtype=torch.float64).to(t), ys)


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
    """Integrate an ODE like :func:`odeint`, with gradients from the continuous adjoint.

    Replaces ``torchdiffeq.odeint_adjoint``. The backward pass solves the adjoint ODE, so the gradient approximates that
    of the exact solution to the adjoint's tolerances. :func:`anode.solve` and :func:`odeint` return the exact gradient
    of the numerical solution.

    Args:
        func, y0, t, rtol, atol, method, options, event_fn: See :func:`odeint`.
        adjoint_rtol, adjoint_atol, adjoint_method: Settings of the backward solve. Default to those of the forward
            solve.
        adjoint_options: Options of the backward solve. Defaults to ``options`` without its ``"norm"``. The option
            ``"norm"`` may be ``"seminorm"``, which leaves the parameters' gradients out of the error estimate.
        adjoint_params: Tensors to differentiate with respect to. Defaults to the parameters of ``func``; required if
            ``func`` is not an ``nn.Module``.

    Returns:
        The same as :func:`odeint`.

    Raises:
        SolveError: If the solve fails, or the backward solve does.
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value, or ``adjoint_params`` or ``adjoint_options`` is required.

    Example:
        >>> import torch
        >>> from anode import odeint_adjoint
        >>> rate = torch.tensor(0.5, requires_grad=True)
        >>> y = odeint_adjoint(lambda t, y: -rate * y, torch.ones(1), torch.tensor([0.0, 1.0]), adjoint_params=(rate,))
        >>> y[-1].sum().backward()
        >>> round(rate.grad.item(), 4)  # -exp(-1/2)
        -0.6065
    """
    params = _adjoint_params(func, adjoint_params, adjoint_options or {})
    if adjoint_options is None:
        if adjoint_method not in (None, method) and options is not None:
            raise ValueError("adjoint_options: required if options is given and adjoint_method differs from method")
        adjoint_options = {key: value for key, value in (options or {}).items() if key != "norm"}
    problem = problem_from(func, y0, t, rtol, atol, method, options, event_fn)

    is_compiled = False

    def run() -> tuple[Tensor, Tensor | None, Stats]:
        nonlocal is_compiled
        solution = _solved(problem)  # nothing is recorded here
        is_compiled = solution.engine.compiled or not solution.engine.obstacle
        ys = problem.packing.pack(solution.ys, stacked=True).contiguous()
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
        try:
            return solve_backward(backward, rate, back_options["norm"])
        except SolveError as error:
            raise _as_theirs(error) from None

    norm = adjoint_norm(adjoint_options.get("norm"), problem)
    result = ContinuousSolve.apply(  # type: ignore[no-untyped-call]
        derivative, run, solve_back, {**adjoint_options, "norm": norm}, problem.y0, t, *params
    )
    if event_fn is None:
        return problem.packing.unpack(result, views)
    event_time, ys = result
    return event_time, problem.packing.unpack(ys, views)


def _adjoint_params(func: Any, given: Iterable[Tensor] | None, options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the tensors to differentiate with respect to. Warn if the norm in ``options`` does not see them all."""
    if given is None and not isinstance(func, nn.Module):
        raise ValueError(
            "adjoint_params: required because func is not an nn.Module; pass its parameters, or () if it has none"
        )
    if given is not None:
        params = tensors_in("adjoint_params", given)
    elif getattr(func, "_is_replica", False):
        params = parameters_of(func)
    else:
        params = tuple(func.parameters())
    if not all(p.requires_grad for p in params) and callable(options.get("norm")):
        warnings.warn("parameters that do not require a gradient are not passed to the adjoint norm", stacklevel=5)
    return tuple({id(p): p for p in params if p.requires_grad}.values())


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
    """Integrate an ODE until an event and return the event time and states, both differentiable.

    Replaces ``torchdiffeq.odeint_event``. The event time T solves c(T, y(T)) = 0 with c = ``event_fn``. By the implicit
    function theorem, a change of c moves T by -change / (dc/dt along the solution), and the state by f times that.

    Args:
        func, y0: See :func:`odeint`.
        t0: Start time, a tensor with one element.
        event_fn: A function ``event_fn(t, y)`` that is zero at the event. If it returns several values, the first zero
            of any of them is the event.
        reverse_time: Whether to search backward in time.
        odeint_interface: The solving function: :func:`odeint` or :func:`odeint_adjoint`.
        **kwargs: Further arguments of ``odeint_interface``.

    Returns:
        A tuple of the event time and the stacked states at the start and at the event.

    Raises:
        SolveError: If the solve fails before the event.
        TypeError: If an argument has the wrong type.

    Example:
        >>> import torch
        >>> from anode import odeint_event
        >>> height, speed = torch.tensor([5.0]), torch.tensor([0.0])
        >>> def fall(t, state):
        ...     return state[1], torch.full_like(state[1], -10.0)
        >>> hit, states = odeint_event(fall, (height, speed), torch.tensor(0.0), event_fn=lambda t, state: state[0])
        >>> round(hit.item(), 4), round(states[1][-1].item(), 4)
        (1.0, -10.0)
    """
    if not isinstance(t0, Tensor) or t0.numel() != 1:
        raise TypeError(f"t0: takes a floating point tensor of one time, such as torch.tensor(0.0), got {describe(t0)}")
    check_function("event_fn", event_fn, "a function event_fn(t, y)")
    event_fn = signed(event_fn)
    start = t0.reshape(1)
    span = torch.cat([start, start.detach() + (-1.0 if reverse_time else 1.0)])
    event_time, ys = odeint_interface(func, y0, span, event_fn=event_fn, **kwargs)
    packing = FlatPacking(y0)
    unpack = packing.unpack
    first, last = packing.pack(y0), packing.pack(_row(ys, -1))
    event_time = event_time.detach()
    if not torch.is_grad_enabled():
        return event_time, ys

    with torch.no_grad():
        signs = torch.sign(event_fn(start[0], unpack(first)))
    velocity = packing.rate(as_function(func))(event_time.to(last.real.dtype), last.detach()).detach()
    at, y = event_time.clone().requires_grad_(), last.detach().requires_grad_()
    condition = (event_fn(at, unpack(y)) * signs).min()
    along = torch.autograd.grad(condition, (at, y), allow_unused=True) if condition.requires_grad else (None, None)
    speed = sum(dot(g, v) for g, v in zip(along, (torch.ones_like(at), velocity), strict=True) if g is not None)
    change = (event_fn(event_time, unpack(last)) * signs).min()
    change = change + last.flatten()[:0].real.sum().to(change.dtype)  # a gradient of zero, if it has no other
    delay = -(change - change.detach()) / (speed + 1e-12)
    ys = torch.stack([packing.pack(_row(ys, 0)), last + velocity * delay])
    return event_time + delay, unpack(ys, torch.unsafe_split_with_sizes)


def _row(ys: State, i: int) -> State:
    """Return the i-th of the stacked states."""
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
    """Integrate an ODE from t0 to t1 and return a solution that can be called with any time in between.

    Args:
        func, y0, rtol, atol, method, options: See :func:`odeint`.
        t0, t1: Start and end time.

    Returns:
        A :class:`anode.Solution` with dense output.

    Raises:
        SolveError: If the solve fails.

    Example:
        >>> import torch
        >>> from anode import odeint_dense
        >>> y = odeint_dense(lambda t, y: -y, torch.ones(1), torch.tensor(0.0), torch.tensor(1.0))
        >>> round(y(0.5).item(), 4)
        0.6065
    """
    t = torch.stack([torch.as_tensor(t0).reshape(()), torch.as_tensor(t1).reshape(())])
    return _solved(problem_from(func, y0, t, rtol, atol, method, options, None, dense=True))


def _solved(problem: Problem) -> Solution:
    """Solve a problem, and raise :class:`SolveError` if that fails."""
    if problem.loop is not None:  # SciPy's, which cannot be differentiated, as in torchdiffeq
        return problem.unrecorded().check()
    solution = engine_run(problem, Stored())
    try:
        return solution.check()
    except SolveError as error:
        raise _as_theirs(error) from None


def _as_theirs(error: SolveError) -> SolveError:
    """Return an error whose message also contains that of torchdiffeq, which some programs look for."""
    theirs = THEIR_MESSAGES.get(error.solution.status)
    return SolveError(f"{error} (torchdiffeq: {theirs})", error.solution) if theirs else error
