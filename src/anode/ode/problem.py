"""A solve that has been checked, run so that autograd can differentiate it in the way asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from anode.ode import inputs, native, stiffness
from anode.ode.adjoint import AdjointRate, ContinuousSolve, largest_norm, solve_backward
from anode.ode.clocks import clock_for
from anode.ode.control import rms
from anode.ode.dense import DenseOutput
from anode.ode.events import Event
from anode.ode.field import (
    AutogradDerivative,
    Derivative,
    Field,
    Perceptron,
    Rate,
    captured_tensors,
    parameters_of,
    refuse_others,
)
from anode.ode.gradients import Continuous, DiscreteSolve, Gradient, Stored
from anode.ode.integrate import Integration, Trace, Watch
from anode.ode.packing import Packing
from anode.ode.plan import Plan
from anode.ode.sequential import as_function
from anode.ode.solution import Solution, Status, first_failure
from anode.ode.tableaus import TABLEAUS
from anode.ode.tools import in_functorch, is_followed


@dataclass
class Problem:
    """A solve that has been checked.

    Attributes:
        f: The right-hand side.
        y0: The initial state, packed.
        times: The plan's times as a tensor that autograd follows; ``None`` if it need not.
        plan: What to do.
        packing: How states are packed.
        shown: The indices of the times whose states the solution is to show.
        event: What ends the solve.
        watch: Told of every step.
        engine: Who integrates, one of :data:`anode.ode.native.ENGINES`.
    """

    f: Callable[[Tensor, Any], Any]
    y0: Tensor
    times: Tensor | None
    plan: Plan
    packing: Packing
    shown: list[int]
    event: Callable[[Tensor, Any], Tensor] | None = None
    watch: Watch | None = None
    engine: str = "torch"

    def __post_init__(self) -> None:
        self.f = as_function(self.f)
        self.rate = self.packing.rate(self.f)
        self.perceptron: Perceptron | None = None
        if isinstance(self.f, Field) and not self.packing.is_tuple:
            self.f.check(self.y0)
            self.perceptron = self.f.perceptron() if self.engine != "torch" else None

    def solve(self, gradient: Gradient, params: tuple[Tensor, ...] | None, dense: bool) -> Solution:
        """Run the solve so that autograd can differentiate it in the way asked for, if it has to at all."""
        if self.engine != "torch":
            obstacle = native.obstacle(self, gradient, params, dense)
            if not obstacle:
                return self.solve_native()
            if self.engine == "native":
                raise ValueError(f'engine: takes "auto" or "torch" here, got "native", and {obstacle}')
        if not torch.is_grad_enabled():
            return self.solve_plain("none", dense)
        if isinstance(gradient, Stored) or (not isinstance(gradient, Continuous) and (dense or in_functorch())):
            return self.solve_plain("stored", dense)
        if in_functorch():
            raise ValueError('gradient: takes "stored" or "discrete" within torch.func, got "continuous"')
        inputs.require(not dense, "dense", dense, 'False beside gradient="continuous", which keeps no steps')
        slope, computed, found = None, False, params is None
        if params is None:
            params, computed, slope = self.dependencies()
        params = tuple(p for p in params if p.requires_grad)
        if found and not computed and self.own_derivative is None:
            self.rate = refuse_others(self.rate, params)
        if not (params or computed or self.y0.requires_grad or self.times is not None):
            with torch.no_grad():
                return self.solve_plain("none", dense, slope)
        if isinstance(gradient, Continuous):
            inputs.require(self.event is None, "event", self.event, 'None beside gradient="continuous"')
            if computed:
                raise ValueError(
                    "params: f uses tensors that were computed from others which need a gradient, and the continuous "
                    'adjoint cannot find them by itself; pass them in params=, or use gradient="discrete"'
                )
            return self.solve_continuous(gradient, params, slope)
        if computed:
            return self.solve_plain("stored", dense, slope)
        return self.solve_discrete(params, slope)

    @cached_property
    def module_parameters(self) -> tuple[Tensor, ...]:
        """The parameters of f, if it is a module."""
        return parameters_of(self.f) if isinstance(self.f, nn.Module) else ()

    @property
    def is_traced(self) -> bool:
        """Whether something follows the computation that derivatives of our own know nothing of."""
        return is_followed(self.y0, *self.module_parameters)

    def dependencies(self) -> tuple[tuple[Tensor, ...], bool, Tensor | None]:
        """What f depends on: its tensors, whether some could not be named, and f at the start if it was evaluated."""
        if self.own_derivative is not None:
            return self.own_derivative.parameters, False, None
        known = self.module_parameters
        now = clock_for(replace(self.plan, moving_times=self.times)).now()
        leaves, computed, slope = captured_tensors(self.rate, now, self.y0, known)
        return (*known, *leaves), computed, slope

    def integrate(self, y0: Tensor, *, rate: Rate | None = None, **keep: Any) -> Trace:
        """The solve itself."""
        event = None
        if self.event is not None:
            fn, unpack = self.event, self.packing.unpack
            tol = float(torch.as_tensor(self.plan.atol).min())
            event = Event(lambda t, y: fn(t, unpack(y)), tol, clock_for(self.plan).now(), y0)
        if rate is None:
            rate = self.rate
            if self.own_derivative is not None and not (torch.is_grad_enabled() or self.is_traced):
                rate = self.own_derivative.rate
        return Integration(rate, y0, self.plan, event=event, watch=self.watch, **keep).run()

    def derivative(self, params: tuple[Tensor, ...]) -> Derivative:
        """The derivative that f brings, if it is the one that is wanted; otherwise autograd's."""
        own = self.own_derivative
        if own is not None and self.times is None:
            wanted = {id(p) for p in params}
            if {id(p) for p in own.parameters if p.requires_grad} == wanted:
                return own
        return AutogradDerivative(self.rate, params, time=self.times is not None)

    @cached_property
    def own_derivative(self) -> Derivative | None:
        """The derivative that f brings; ``None`` if it brings none that is faster than autograd's."""
        if not isinstance(self.f, Field) or self.packing.is_tuple:
            return None
        derivative = self.f.derivative()
        if isinstance(derivative, AutogradDerivative):
            return None
        return derivative if self.engine == "torch" else derivative.compiled(self.y0)

    def solve_plain(self, gradient: str, dense: bool, slope: Tensor | None = None) -> Solution:
        """The loop as it is, recorded by autograd if that is on."""
        if self.times is not None and torch.is_grad_enabled():
            self.plan = replace(self.plan, moving_times=self.times)
        trace = self.integrate(self.y0, slope=slope, dense=dense)
        if not any(y.requires_grad for y in (trace.y, *trace.outputs)):
            gradient = "none"
        return self.solution(trace, trace.outputs, trace.y, gradient, dense)

    def solve_discrete(self, params: tuple[Tensor, ...], slope: Tensor | None) -> Solution:
        """The loop unrecorded, with a backward pass that walks over its steps."""
        report: list[Trace] = []

        derivative = self.derivative(params)
        slope = None if slope is None else slope.detach()
        kept = derivative.steps_to_keep(self.y0, len(self.plan.tableau.stages))

        def run(y0: Tensor) -> Trace:
            rate = derivative.evaluate if kept else derivative.rate
            return self.integrate(y0, rate=rate, slope=slope, keep_steps=True, keep_slopes=kept)

        *outputs, last = DiscreteSolve.apply(  # type: ignore[no-untyped-call]
            run, derivative, self.plan, report, self.y0, self.times, *derivative.parameters
        )
        return self.solution(report[0], outputs, last, "discrete")

    def solve_native(self) -> Solution:
        """The whole solve by the compiled engine."""
        params = self.perceptron.parameters if self.perceptron is not None else ()
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in (self.y0, *params)):
            trace, _ = native.run(self, keep=False)
            return self.solution(trace, trace.outputs, trace.y, "none")
        report: list[Trace] = []
        *outputs, last = native.NativeSolve.apply(self, report, self.y0, *params)  # type: ignore[no-untyped-call]
        return self.solution(report[0], outputs, last, "discrete")

    def solve_continuous(self, gradient: Continuous, params: tuple[Tensor, ...], slope: Tensor | None) -> Solution:
        """The loop unrecorded, with a backward pass that solves the adjoint ODE with one step size for everybody."""
        plan = self.plan
        with torch.no_grad():
            trace = self.integrate(self.y0.detach(), slope=slope)
        done = bool(torch.as_tensor(trace.status == Status.SUCCESS).all())
        if plan.group_dims and not done:
            return self.solution(trace, trace.outputs, trace.y, "none")  # there is no one end to go back from
        outputs = dict(zip(plan.wanted, trace.outputs, strict=True))
        reached = [0, *(i for i in plan.wanted if i and (done or (trace.t - plan.times[i]) * plan.direction >= 0))]
        states = [self.y0.detach(), *(outputs[i] for i in reached[1:])]
        times = torch.tensor(plan.times, dtype=torch.float64) if self.times is None else self.times
        times = times[reached]
        if not done:
            states.append(trace.y)
            times = torch.cat([times, times.new_tensor([trace.t])])

        def rate(t: Tensor, y: Tensor) -> Tensor:
            return self.rate(t.reshape((1,) * y.ndim).expand(*plan.groups, *(1,) * (y.ndim - plan.group_dims)), y)

        def solve_back(
            rate: AdjointRate, state: tuple[Tensor, ...], span: Tensor, options: dict[str, Any]
        ) -> tuple[Tensor, ...]:
            return solve_backward(self.adjoint_problem(gradient, rate, state, span))

        ys = ContinuousSolve.apply(  # type: ignore[no-untyped-call]
            rate if plan.group_dims else self.rate,
            lambda: (torch.stack(states), None, trace.stats),
            solve_back,
            {},
            self.y0,
            times,
            *params,
        )
        outputs |= {index: ys[n] for n, index in enumerate(reached) if index in outputs}
        return self.solution(trace, list(outputs.values()), ys[-1], "continuous")

    def adjoint_problem(
        self, gradient: Continuous, rate: AdjointRate, state: tuple[Tensor, ...], span: Tensor
    ) -> Problem:
        """The backward solve from one output time to the one before."""
        plan, packing = self.plan, Packing(state, 0)
        y, times = packing.pack(state), span.tolist()
        tableau = inputs.lookup("gradient.method", gradient.method or plan.tableau.name, TABLEAUS)
        between = [knot for knot, _ in plan.knots or () if min(times) < knot < max(times)]
        if plan.knots is None and not tableau.adaptive:
            raise ValueError(
                f"gradient: method {tableau.name!r} cannot choose its own steps, as the forward solve does"
            )
        state_norm = rms(0, self.y0.numel()) if plan.group_dims else plan.norm
        norm = largest_norm(state_norm, gradient.seminorm)
        backward = replace(
            plan,
            tableau=tableau,
            times=times,
            wanted=[1],
            like=y,
            rtol=gradient.rtol or _smallest(plan.rtol),
            atol=gradient.atol or _smallest(plan.atol),
            norm=lambda error: norm(packing.unpack(error)),  # type: ignore[arg-type]
            group_dims=0,
            first_step=None,
            knots=None if plan.knots is None else [(t, 0) for t in (times[0], *reversed(between), times[1])],
            step_at=plan.step_at[::-1],
            times_move=False,
        )
        return Problem(rate, y, None, backward, packing, shown=[1])

    def solution(
        self, trace: Trace, outputs: Sequence[Tensor], last: Tensor, gradient: str, dense: bool = False
    ) -> Solution:
        """Put the result together for the caller."""
        plan, unpack = self.plan, self.packing.unpack
        done = (trace.status == Status.SUCCESS) | (trace.status == Status.NO_EVENT)
        if isinstance(done, Tensor):
            shaped = done.reshape(done.shape + (1,) * (last.ndim - plan.group_dims))
            y1 = outputs[-1] if done.all() else torch.where(shaped, outputs[-1], last)
            t1: Any = torch.where(done, plan.times[-1], trace.t)
        else:
            y1 = outputs[-1] if done else last
            t1 = plan.times[-1] if done and self.event is None else trace.t
        values = {0: self.y0, **dict(zip(plan.wanted, outputs, strict=True))}
        interpolant = DenseOutput(plan, trace) if dense else None
        return Solution(
            times=[plan.times[i] for i in self.shown],
            outputs=[unpack(values[i]) for i in self.shown],
            y1=unpack(y1),
            t1=t1,
            status=trace.status,
            stats=trace.stats,
            gradient=gradient,
            interpolant=None if interpolant is None else lambda t: unpack(interpolant(t)),
            note=self.note(trace),
        )

    def note(self, trace: Trace) -> str:
        """Return what is to be said about the first group that failed, besides its status."""
        failed = first_failure(trace.status)
        if failed is None or failed[1] != Status.MAX_STEPS:
            return ""
        return stiffness.note(self.rate, self.plan, trace.t, trace.y, trace.stats.accepted, failed[0])


def _smallest(tol: float | Tensor) -> float:
    return float(torch.as_tensor(tol).min())
