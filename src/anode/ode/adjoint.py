"""The adjoint ODE, whose solution backward in time is the gradient of a solve.

References:
    Chen et al., *Neural Ordinary Differential Equations*, NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.checks import is_finite
from anode.ode.control import AdjointNorm
from anode.ode.field import Derivative, Rate
from anode.ode.gradient import dot, only_once, prepare
from anode.ode.packing import OnPacked
from anode.ode.solution import SolveError, Stats, Status

if TYPE_CHECKING:
    from anode.ode.integrate import Trace
    from anode.ode.problem import Problem


class ContinuousSolve(torch.autograd.Function):
    """A solve whose backward pass solves the adjoint ODE.

    With ``a(t)`` the cotangent of y(t), ``da/dt = -(df/dy)^T a``, and the gradients of the parameters are integrals of
    ``-(df/dp)^T a``. Both are solved together with y, backward from each output time to the previous one. Moving an
    output time changes its state by f, and moving the start time is like moving y0 by -f.
    """

    @staticmethod
    def forward(
        ctx: Any,
        derivative: Callable[[], Derivative],
        run: Callable[[], tuple[Tensor, Tensor | None, Stats]],
        solve_back: Callable[[AdjointRate, tuple[Tensor, ...], Tensor, dict[str, Any]], tuple[Tensor, ...]],
        options: dict[str, Any],
        y0: Tensor,
        times: Tensor,
        *params: Tensor,
    ) -> Any:
        """Run the solve and return the states at all times, preceded by the event time if there is an event.

        Args:
            ctx: Autograd's context.
            derivative: Returns the derivative of f with respect to the state and ``params``. Called when the backward
                pass begins.
            run: Returns the states at all times, the event time or ``None``, and the cost.
            solve_back: Solves the adjoint ODE from the first to the second of two times, with the options.
            options: Options for ``solve_back``, read when the backward pass begins.
            y0: Initial state.
            times: Times of the outputs, starting with the start time.
            params: Parameters of f.
        """
        ys, event_time, stats = run()
        prepare(ctx, y0)
        ctx.derivative, ctx.solve_back, ctx.adjoint_options, ctx.stats = derivative, solve_back, options, stats
        ctx.has_event = event_time is not None
        at = times if event_time is None else torch.stack([times[0], event_time.to(times)])
        ctx.save_for_backward(ys, at, y0, times, *params)
        return ys if event_time is None else (event_time, ys)

    @staticmethod
    @only_once
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Return the gradients of y0, the times and the parameters."""
        ys, at, _, times, *params = ctx.saved_tensors
        needs_time = ctx.needs_input_grad[5]
        cotangent = cotangents[-1]
        rate = AdjointRate(ctx.derivative())
        at_times = torch.zeros_like(at)
        zeros = (carried(torch.zeros_like(p), ys.dtype) for p in params)
        adjoint = (ys.new_zeros(()), ys[-1], cotangent[-1], *zeros)
        for i in range(len(at) - 1, 0, -1):
            if needs_time:
                at_times[i] = rate.along(at[i], ys[i], cotangent[i])
            adjoint = ctx.solve_back(rate, adjoint, at[[i, i - 1]], ctx.adjoint_options)
            if needs_time and i == 1:
                at_times[0] = -rate.along(at[0], ys[0], adjoint[2])
            # Continue from the state of the forward solve, not from that of the backward solve, which has drifted.
            adjoint = (adjoint[0], ys[i - 1], adjoint[2] + cotangent[i - 1], *adjoint[3:])
        ctx.stats.nfe_backward += rate.calls
        if ctx.has_event:  # only the start time is an input; odeint_event differentiates the event time
            at_times = torch.cat([at_times[:1], torch.zeros_like(times[1:])])
        at_params = (given_back(part, p) for part, p in zip(adjoint[3:], params, strict=True))
        return (None, None, None, None, adjoint[2], at_times if needs_time else None, *at_params)


def solve_backward(problem: Problem, rate: AdjointRate, norm: Any) -> tuple[Tensor, ...]:
    """Return the final state of a backward solve, or raise :class:`SolveError`.

    If the cotangent is not finite, no step size can be chosen, and the result is NaN, as elsewhere in autograd.

    Args:
        problem: The backward solve.
        rate: Its right-hand side.
        norm: The norm of its state.
    """
    if not problem.plan.keeps_non_finite and not is_finite(problem.y0):
        return problem.packing.unpack(torch.full_like(problem.y0, torch.nan))  # type: ignore[return-value]
    if problem.loop is None and isinstance(norm, AdjointNorm) and not norm.is_own:
        problem.loop = rate.loop(problem, norm.seminorm)
    with torch.no_grad():
        trace = problem.integrate(problem.y0)
    if trace.status == Status.SUCCESS:
        return problem.packing.unpack(trace.outputs[-1])  # type: ignore[return-value]
    solution = problem.solution(trace, trace.outputs, trace.y, "none")
    try:
        return solution.check().y1  # type: ignore[return-value]
    except SolveError as error:
        raise SolveError(f"in the backward solve of the continuous adjoint, {error}", solution) from None


def carried(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a parameter's gradient in the dtype of the adjoint state; a complex one becomes pairs of real numbers."""
    if gradient.is_complex() and not dtype.is_complex:
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient.to(dtype)


def given_back(part: Tensor, p: Tensor) -> Tensor:
    """Invert :func:`carried`: return the gradient of parameter ``p`` in the dtype of ``p``."""
    if p.is_complex() and not part.is_complex():
        part = torch.view_as_complex(part.clone())
    return (part if p.is_complex() else part.real).to(p.dtype)


class AdjointRate(OnPacked):
    """The right-hand side of the adjoint ODE, on the tuple (0, y, cotangent of y, *cotangents of the parameters).

    The first component holds the cotangent of time in torchdiffeq. It is kept because custom norms expect it.
    """

    def __init__(self, derivative: Derivative) -> None:
        self.derivative = derivative
        self.calls = 0

    def __call__(self, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.calls += 1
        slope = self.derivative.evaluate(t, state[1])
        at_state, _ = self.derivative.pull(slope, -state[2])
        if at_state is None:
            at_state = torch.zeros_like(slope)
        at_params = (carried(gradient, slope.dtype) for gradient in self.derivative.take_gradients())
        return (torch.zeros_like(state[0]), slope, at_state, *at_params)

    def on_packed(self, sizes: Sequence[int]) -> Rate | None:
        rate = self.derivative.adjoint(sizes)
        if rate is None:
            return None

        def counted(t: Tensor, state: Tensor) -> Tensor:
            self.calls += 1
            return rate(t, state)

        return counted

    def loop(self, problem: Problem, seminorm: bool) -> Callable[[Tensor, Tensor | None], Trace] | None:
        """Return the compiled loop over the steps of a backward solve, if there is one. See :class:`Problem`."""
        run = self.derivative.adjoint_loop(problem, seminorm)
        if run is None:
            return None

        def counted(state: Tensor, slope: Tensor | None) -> Trace:
            trace = run(state)
            self.calls += trace.stats.calls
            return trace

        return counted

    def along(self, t: Tensor, y: Tensor, cotangent: Tensor) -> Tensor:
        """Return the gradient with respect to the time of a state that moves along the solution."""
        self.calls += 1
        return dot(self.derivative.rate(t.to(y.real.dtype), y), cotangent)
