"""How a solve is differentiated.

* ``discrete``: the exact gradient of the steps that were taken, by walking back over them. Memory holds the state at
  every accepted step; the slopes of one step at a time are computed again. (A field that brings its own derivative may
  keep those of its first steps, as many as fit into a memory budget: 16 MB for ``MLPField`` in single precision, a
  share of the available memory for ``ConvField``, see :mod:`anode.models.memory`.)
* ``stored``: the same gradient, with autograd recording the whole solve. More memory, no second evaluation of f, and
  derivatives of any order.
* ``continuous``: the adjoint ODE, solved backwards with tolerances of its own. Memory does not grow with the steps; the
  gradient is that of the exact flow and agrees with the other two only as far as the tolerances say.

Step sizes are not differentiated: they are decisions, not values.

References:
    Chen et al., *Neural Ordinary Differential Equations*, NeurIPS 2018 (the continuous adjoint).
    Hager, *Runge-Kutta methods in optimal control and the transformed adjoint system*, Numer. Math. 87 (2000)
    (the discrete adjoint of a Runge-Kutta step).
    Kidger, Chen and Lyons, *"Hey, that's not an ODE": faster ODE adjoints via seminorms*, ICML 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from anode.ode.control import Number
from anode.ode.field import Derivative
from anode.ode.integrate import Step, Trace, combine, dense_slope_weights, dense_weights, weighted_sum
from anode.ode.plan import Emission, Plan
from anode.ode.solution import Stats
from anode.ode.tableaus import Tableau


@dataclass(frozen=True)
class Discrete:
    """The exact gradient of the accepted steps, their slopes computed again: little memory. The default."""


@dataclass(frozen=True)
class Stored:
    """The exact gradient of the accepted steps, everything kept by autograd: fast, and differentiable again."""


@dataclass(frozen=True)
class Continuous:
    """The continuous adjoint.

    Attributes:
        rtol, atol: Tolerances of the backward solve; ``None`` for those of the forward solve.
        method: Method of the backward solve; ``None`` for that of the forward solve.
        seminorm: Leave the parameters' gradients out of the error estimate; they do not feed back into the solve, so
            this saves steps at no loss of stability.
    """

    rtol: float | None = None
    atol: float | None = None
    method: str | None = None
    seminorm: bool = False


Gradient = Discrete | Stored | Continuous
GRADIENTS: dict[str, Gradient] = {"discrete": Discrete(), "stored": Stored(), "continuous": Continuous()}


def autocast_like_now(y: Tensor) -> dict[str, Any]:
    """The arguments of ``torch.autocast`` that restore its present state, for evaluating f again as it was."""
    device = y.device.type
    enabled = torch.is_autocast_enabled(device)
    return {"device_type": device, "enabled": enabled, "dtype": torch.get_autocast_dtype(device)}


def prepare(ctx: Any, y: Tensor) -> None:
    """What :func:`only_once` needs in the backward pass."""
    ctx.autocast, ctx.lock = autocast_like_now(y), Lock()


class NoSecondDerivative(torch.autograd.Function):
    """The identity on gradients, which says so when they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, inputs: int, *inputs_and_gradients: Tensor) -> Any:
        """The first ``inputs`` tensors are what the gradients are functions of."""
        return tuple(gradient.clone() for gradient in inputs_and_gradients[inputs:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Always an error."""
        raise RuntimeError('only gradient="stored" can be differentiated twice; this solve used another gradient')


def only_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Let a backward pass compute without autograd, and its gradients refuse to be differentiated.

    torch's ``once_differentiable`` refuses only where the cotangents need a gradient, and else is silently wrong.
    ``ctx.autocast`` says in which precision f was evaluated. Two threads may walk back over one graph: one after the
    other, as gradients are summed up on the way.
    """

    @wraps(backward)
    def once(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        recording = torch.is_grad_enabled()
        with ctx.lock, torch.no_grad(), torch.autocast(**ctx.autocast):
            gradients = backward(ctx, *cotangents)
        if not recording:
            return gradients
        inputs = [x for x in ctx.saved_tensors if x is not None and x.requires_grad]
        found = [g for g in gradients if g is not None]
        rest = iter(NoSecondDerivative.apply(len(inputs), *inputs, *found))  # type: ignore[no-untyped-call]
        return tuple(None if g is None else next(rest) for g in gradients)

    return once


def is_last_pass() -> bool:
    """Whether the graph that is walked back over is freed on the way; a second pass is then refused by autograd."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # from torch 2.5 on
    return keeps_graph is not None and not keeps_graph()


# ------------------------------------------------------------------------------------------------------------ discrete


class DiscreteSolve(torch.autograd.Function):
    """A solve whose backward pass walks over its steps in reverse."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Tensor], Trace],
        derivative: Derivative,
        plan: Plan,
        report: list[Trace],
        y0: Tensor,
        times: Tensor | None,
        *params: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the solve and put its trace into ``report``; returns the wanted outputs and the last state.

        ``times`` is ``None`` where no gradient is wanted for them.
        """
        trace = run(y0)
        report.append(trace)
        prepare(ctx, y0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y0, times, *params)  # so that autograd notices if they are changed in between
        ctx.plan, ctx.derivative, ctx.steps, ctx.stats = plan, derivative, trace.steps, trace.stats
        return (*trace.outputs, trace.y.clone())

    @staticmethod
    @only_once
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        """Gradients for y0, the times and the parameters."""
        y0, times, *_ = ctx.saved_tensors
        plan, derivative = ctx.plan, ctx.derivative
        cotangents = tuple(None if g is None else _laid_out(g, y0) for g in cotangents)
        wanted = dict(zip(plan.wanted, cotangents[:-1], strict=True))
        sweep = Sweep(plan.tableau, derivative, None if times is None else torch.zeros_like(times), ctx.stats)
        adjoint = cotangents[-1]
        for step in reversed(ctx.steps):
            arriving = [(e, _masked(g, e.groups)) for e in step.emissions if (g := wanted[e.index]) is not None]
            adjoint = sweep.back_over(step, adjoint, arriving)
        at_start = [g for i, g in wanted.items() if g is not None and plan.times[i] == plan.times[0]]
        if adjoint is not None:
            at_start.append(adjoint)
        at_y0 = plain_sum(at_start) if at_start else None
        if is_last_pass():
            ctx.steps = ctx.derivative = None  # what is kept of the solve need not wait for the output to go
        return (None, None, None, None, at_y0, sweep.times, *derivative.take_gradients())


class Sweep:
    """The adjoint of a Runge-Kutta step, step after step.

    A step is ``x_i = y + h sum_j a_ij k_j``, ``k_i = f(t_i, x_i)``, ``y1 = y + h sum_i b_i k_i``. With ``v`` the
    cotangent of y1 the chain rule reads, from the last stage to the first,

        cotangent of k_i  =  h (b_i v + sum_{j > i} a_ji u_j),      u_i = (df/dy)^T (cotangent of k_i),

    and ``v + sum_i u_i`` is the cotangent of y. Outputs inside the step enter like y1, with the weights of the dense
    output in place of b.

    Attributes:
        times: Gradients for the plan's times.
    """

    def __init__(self, tableau: Tableau, derivative: Derivative, times: Tensor | None, stats: Stats) -> None:
        self.tableau, self.derivative, self.times, self.stats = tableau, derivative, times, stats

    def back_over(self, step: Step, adjoint: Tensor | None, arriving: list[tuple[Emission, Tensor]]) -> Tensor | None:
        """The cotangent of the state at the start of a step.

        Args:
            step: The step.
            adjoint: The cotangent of the state at its end; ``None`` for zero.
            arriving: The outputs inside the step, each with its cotangent.
        """
        tableau = self.tableau
        # Everything the step made of its slopes: their weights in it, and its cotangent.
        made: list[tuple[dict[int, Number], Tensor]] = []
        if adjoint is not None:
            made.append((tableau.weights_by_slope, adjoint))
        made += [(dict(dense_weights(tableau, e.fraction)), cotangent) for e, cotangent in arriving]
        if not made:
            return None

        slopes = self._slopes(step, 1 + max(max(weights) for weights, _ in made))
        h = step.interval.h
        pulled: dict[int, Tensor] = {}
        for i in reversed(range(len(slopes))):
            parts = [(weights[i], cotangent) for weights, cotangent in made if i in weights]
            parts += [(a, pulled[j]) for j, a in tableau.feeds[i] if j in pulled]
            if not parts:
                continue
            at_state, at_time = self.derivative.pull(slopes[i], weighted_sum(parts, h))
            if at_state is not None:
                pulled[i] = _without(step.failed, at_state)
            if self.times is not None:
                self._times_of_stage(step, i, at_time, weighted_sum(parts), slopes[i])
        if self.times is not None:
            for emission, cotangent in arriving:
                self._times_of_output(step, emission, cotangent, slopes)
        return plain_sum([*(cotangent for _, cotangent in made), *pulled.values()])

    def _slopes(self, step: Step, count: int) -> list[Tensor]:
        """The slopes that were kept, or so many computed again."""
        interval, evaluate = step.interval, self.derivative.evaluate
        if step.slopes is not None:
            if step.pieced:
                step.slopes[0] = evaluate(interval.at(0.0), step.y)
                self.stats.nfe_backward += 1
            return step.slopes
        slopes = [evaluate(interval.at(0.0), step.y)]
        usable = [_without(step.failed, slopes[0])]
        for c, row in self.tableau.stages[: count - 1]:
            slopes.append(evaluate(interval.at(c), interval.move(step.y, combine(row, usable), row.scale)))
            usable.append(_without(step.failed, slopes[-1]))
        self.stats.nfe_backward += count
        return slopes

    def _times_of_stage(self, step: Step, i: int, at_time: Tensor | None, part: Tensor, slope: Tensor) -> None:
        """A slope is evaluated at ``t + c h`` and enters everything multiplied by h."""
        interval, c = step.interval, (*self.tableau.c, 1.0)[i]
        when = 0.0 if at_time is None else at_time.sum()
        self._add(interval.start, when)
        if interval.start != interval.end:
            moved = part.masked_fill(interval.h == 0, 0.0) if isinstance(interval.h, Tensor) else part
            size = c * when + dot(moved, slope)
            self._add(interval.end, size)
            self._add(interval.start, -size)

    def _times_of_output(self, step: Step, emission: Emission, cotangent: Tensor, slopes: list[Tensor]) -> None:
        """An output lies at the fraction ``(T - t) / h`` of its step."""
        interval, fraction = step.interval, emission.fraction
        if fraction is None:
            return  # it is the end of a step of given size, whatever that size
        slope = weighted_sum([(weight, slopes[i]) for i, weight in dense_slope_weights(self.tableau, fraction)])
        self._add(emission.index if emission.given else None, dot(slope, cotangent))
        if interval.start == interval.end:
            self._add(interval.start, -dot(slope, cotangent))
        else:
            self._add(interval.start, -dot(slope * (1 - fraction), cotangent))
            self._add(interval.end, -dot(slope * fraction, cotangent))

    def _add(self, index: int | None, gradient: Number) -> None:
        """Add to the gradient of one of the times; ``None`` for a time that does not move."""
        if index is not None:
            assert self.times is not None
            self.times[index] += gradient


def _laid_out(cotangent: Tensor, y: Tensor) -> Tensor:
    """A cotangent in the memory layout of the state, as sums of tensors that are laid out alike are the fastest."""
    return cotangent if cotangent.stride() == y.stride() else torch.empty_like(y).copy_(cotangent)


def _masked(cotangent: Tensor, groups: Tensor | None) -> Tensor:
    return cotangent if groups is None else cotangent.masked_fill(~groups, 0.0)


def _without(failed: Tensor | None, x: Tensor) -> Tensor:
    """x, with zeros for the groups that had failed before the step: theirs may be NaN, and they stand still."""
    return x if failed is None else x.masked_fill(failed, 0.0)


def plain_sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of some tensors."""
    total = parts[0]
    for n, part in enumerate(parts[1:]):
        total = total.add_(part) if n else total + part
    return total


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The real inner product over all elements."""
    return (x.conj() * y).real.sum()
