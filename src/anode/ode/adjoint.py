"""The continuous adjoint: differentiate a solve by solving another ODE backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.ode.control import Norm, rms
from anode.ode.field import AutogradDerivative, Rate
from anode.ode.gradients import dot, only_once, prepare
from anode.ode.inputs import is_finite
from anode.ode.solution import SolveError, Stats

if TYPE_CHECKING:
    from anode.ode.problem import Problem


class ContinuousSolve(torch.autograd.Function):
    """A solve whose backward pass solves the adjoint ODE.

    With ``a(t)`` the cotangent of y(t), ``da/dt = -(df/dy)^T a``, and the gradients for parameters are integrals of
    ``-(df/dp)^T a``, solved for together with y itself, backwards from each output time to the one before. Moving an
    output time changes its state by f, and moving the start is like moving y0 by -f.
    """

    @staticmethod
    def forward(
        ctx: Any,
        f: Rate,
        run: Callable[[], tuple[Tensor, Tensor | None, Stats]],
        solve_back: Callable[[AdjointRate, tuple[Tensor, ...], Tensor, dict[str, Any]], tuple[Tensor, ...]],
        options: dict[str, Any],
        y0: Tensor,
        times: Tensor,
        *params: Tensor,
    ) -> Any:
        """Run the solve: the states at all times, preceded by the time of the event if there was one.

        Args:
            ctx: Autograd's.
            f: The right-hand side.
            run: Gives the states at all times, the event's time or ``None``, and the cost.
            solve_back: Solves the adjoint ODE from the first to the second of two times, with the options.
            options: Handed to ``solve_back`` as they are when the backward pass begins.
            y0: Initial state.
            times: The times of the outputs, the start first.
            params: The parameters of f.
        """
        ys, event_time, stats = run()
        prepare(ctx, y0)
        ctx.f, ctx.solve_back, ctx.adjoint_options, ctx.stats = f, solve_back, options, stats
        ctx.has_event = event_time is not None
        at = times if event_time is None else torch.stack([times[0], event_time.to(times)])
        ctx.save_for_backward(ys, at, y0, times, *params)
        return ys if event_time is None else (event_time, ys)

    @staticmethod
    @only_once
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Gradients for y0, the times and the parameters."""
        ys, at, _, times, *params = ctx.saved_tensors
        needs_time = ctx.needs_input_grad[5]
        cotangent = cotangents[-1]
        rate = AdjointRate(ctx.f, params)
        at_times = torch.zeros_like(at)
        zeros = (carried(torch.zeros_like(p), ys.dtype) for p in params)
        adjoint = (ys.new_zeros(()), ys[-1], cotangent[-1], *zeros)
        for i in range(len(at) - 1, 0, -1):
            if needs_time:
                at_times[i] = rate.along(at[i], ys[i], cotangent[i])
            adjoint = ctx.solve_back(rate, adjoint, at[[i, i - 1]], ctx.adjoint_options)
            if needs_time and i == 1:
                at_times[0] = -rate.along(at[0], ys[0], adjoint[2])
            # Go on from what the forward solve found there, not from where the backward solve drifted.
            adjoint = (adjoint[0], ys[i - 1], adjoint[2] + cotangent[i - 1], *adjoint[3:])
        ctx.stats.nfe_backward += rate.calls
        if ctx.has_event:  # only the start is a given time; the event's own time is not differentiated here
            at_times = torch.cat([at_times[:1], torch.zeros_like(times[1:])])
        at_params = (given_back(part, p) for part, p in zip(adjoint[3:], params, strict=True))
        return (None, None, None, None, adjoint[2], at_times if needs_time else None, *at_params)


def solve_backward(problem: Problem) -> tuple[Tensor, ...]:
    """Return the end of a backward solve, which has to succeed.

    A cotangent that is not finite becomes NaN, as elsewhere in autograd: no step size can be chosen for it.
    """
    if not problem.plan.keeps_non_finite and not is_finite(problem.y0):
        return problem.packing.unpack(torch.full_like(problem.y0, torch.nan))  # type: ignore[return-value]
    solution = problem.solve_plain("none", dense=False)
    try:
        return solution.check().y1  # type: ignore[return-value]
    except SolveError as error:
        raise SolveError(f"in the backward solve of the continuous adjoint, {error}", solution) from None


def largest_norm(state_norm: Norm, seminorm: bool) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """The norm of the adjoint's components: the largest of theirs, with a seminorm not those of the parameters."""

    def norm(parts: tuple[Tensor, ...]) -> Tensor:
        at_time, y, adjoint, *at_params = parts
        norms = [at_time.abs(), state_norm(y), state_norm(adjoint)]
        if not seminorm:
            norms += [rms(0, part.numel())(part) for part in at_params if part.numel()]
        return torch.stack(norms).amax()

    return norm


def carried(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter's gradient as the adjoint state has it: beside a real state, a complex one as pairs of numbers."""
    if gradient.is_complex() and not dtype.is_complex:
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient.to(dtype)


def given_back(part: Tensor, p: Tensor) -> Tensor:
    """What :func:`carried` made of a parameter's gradient, as that gradient again."""
    if p.is_complex() and not part.is_complex():
        part = torch.view_as_complex(part.clone())
    return (part if p.is_complex() else part.real).to(p.dtype)


class AdjointRate:
    """The right-hand side of the adjoint ODE, on the tuple (0, y, cotangent of y, *cotangents of the parameters).

    The first component is where torchdiffeq keeps a cotangent of time; norms written for it expect one.
    """

    def __init__(self, f: Rate, params: Sequence[Tensor]) -> None:
        self.f, self.params = f, tuple(params)
        self.calls = 0

    def __call__(self, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.calls += 1
        derivative = AutogradDerivative(self.f, self.params, again=True)
        slope = derivative.evaluate(t, state[1])
        at_state, _ = derivative.pull(slope, -state[2])
        if at_state is None:
            at_state = torch.zeros_like(slope)
        at_params = (carried(gradient, slope.dtype) for gradient in derivative.take_gradients())
        return (torch.zeros_like(state[0]), slope, at_state, *at_params)

    def along(self, t: Tensor, y: Tensor, cotangent: Tensor) -> Tensor:
        """The gradient for moving the time of a state along with the solution."""
        self.calls += 1
        return dot(self.f(t.to(y.real.dtype), y), cotangent)
