"""A checked problem, and the construction of its solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from anode.ode import stiffness
from anode.ode.clocks import clock_for
from anode.ode.dense import DenseOutput
from anode.ode.dependencies import Dependencies, captured_tensors, refuse_others
from anode.ode.events import Event
from anode.ode.field import AutogradDerivative, Derivative, Field, Rate, parameters_of
from anode.ode.integrate import Integration, Trace, Watch
from anode.ode.noise import Noise, Path
from anode.ode.packing import Packing
from anode.ode.plan import Interval, Plan, smallest
from anode.ode.solution import Engine, Solution, Status, first_failure, unstacked
from anode.ode.solves import noted
from anode.ode.transforms import is_followed

NOT_ASKED = "the engine was not asked"
NATIVE = Engine()


@dataclass
class Problem:
    """A problem whose arguments have been checked.

    Attributes:
        f: The right-hand side.
        y0: The packed initial state.
        times: The plan's times as a tensor with a gradient; ``None`` if they are not differentiated.
        plan: The plan of the solve.
        packing: The packing of the state.
        shown: Indices of the times whose states the solution contains.
        event: The function whose first zero ends the solve.
        watch: A function that is called for every step.
        watch_writes: Whether ``watch`` may change the state in place.
        engine: What integrates: one of :data:`anode.ode.solver.ENGINES`.
        dense: Whether the solution has dense output.
        params: The tensors to differentiate with respect to; ``None`` to find them.
        noise: The noise to add to the state after every step.
        seed: Random seed of the noise, so that repeating the solve gives the same result.
        obstacle: Why the compiled engine does not run the solve.
        slope: f at the start, if it has been evaluated.
        compiled: The compiled derivative of f, if there is one.
        loop: The compiled loop over steps, if there is one. It takes a state, and f there if it has been evaluated. It
            does not record gradients.
        found: What f depends on, once :meth:`dependencies` has been called.
        rate: f on packed states, with its result checked.
    """

    f: Callable[[Tensor, Any], Any]
    y0: Tensor
    times: Tensor | None
    plan: Plan
    packing: Packing
    shown: list[int]
    event: Callable[[Tensor, Any], Tensor] | None = None
    watch: Watch | None = None
    watch_writes: bool = False
    engine: str = "torch"
    dense: bool = False
    params: tuple[Tensor, ...] | None = None
    noise: Noise | None = None
    seed: int = 0
    obstacle: str = field(default=NOT_ASKED, init=False)
    slope: Tensor | None = field(default=None, init=False)
    compiled: Derivative | None = field(default=None, init=False)
    loop: Callable[[Tensor, Tensor | None], Trace] | None = field(default=None, init=False)
    found: Dependencies | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.rate = self.packing.rate(self.f)
        if isinstance(self.f, Field) and not self.packing.is_tuple:
            self.f.check(self.y0)

    def start(self) -> Tensor:
        """Evaluate f at the start, so that every engine and gradient method can use the result."""
        if torch.is_grad_enabled():
            self.dependencies()
        if self.slope is None:
            self.slope = self.rate(self.now, self.y0)
        return self.slope

    @cached_property
    def now(self) -> Tensor:
        """The start time, as f is given it."""
        return clock_for(self.plan if self.times is None else replace(self.plan, moving_times=self.times)).now()

    def unrecorded(self) -> Solution:
        """Solve without recording gradients."""
        with torch.no_grad():
            slope = None if self.slope is None else self.slope.detach()
            trace = self.integrate(self.y0, slope=slope, dense=self.dense)
        return self.solution(trace, trace.outputs, trace.y, "none")

    @cached_property
    def module_parameters(self) -> tuple[Tensor, ...]:
        """The parameters of f, if it is a module."""
        return parameters_of(self.f) if isinstance(self.f, nn.Module) else ()

    @property
    def is_followed(self) -> bool:
        """Whether ``torch.func`` or forward-mode autograd is in use, which compiled derivatives do not support."""
        return is_followed(self.y0, *self.module_parameters)

    def dependencies(self) -> Dependencies:
        """Return what f depends on: the tensors in ``params`` if given, otherwise those that are found."""
        if self.found is None:
            self.found = self._find_dependencies()
        return self.found

    def _find_dependencies(self) -> Dependencies:
        if self.params is not None:
            return Dependencies(tuple({id(p): p for p in self.params if p.requires_grad}.values()))
        if (own := self.best_derivative) is not None:
            params = tuple(p for p in own.parameters if p.requires_grad)
            others = [p for p in params if p.grad_fn is not None] if self.compiled is not None else []
            mine = {id(p) for p in self.module_parameters} if others else set()
            return Dependencies(params, computed=any(id(p) not in mine for p in others))
        known = self.module_parameters
        leaves, computed, self.slope, saved = captured_tensors(self.rate, self.now, self.y0, known)
        params = tuple(p for p in (*known, *leaves) if p.requires_grad)
        return Dependencies(params, computed, saved)

    def refuse_others(self, params: Sequence[Tensor]) -> None:
        """Make f raise an error if it depends on a tensor that is not in ``params``."""
        if self.params is None and self.best_derivative is None:
            self.rate = refuse_others(self.rate, params)

    def is_differentiated(self, found: Dependencies) -> bool:
        """Whether the solve has anything to differentiate with respect to."""
        return bool(found.params) or found.computed or self.y0.requires_grad or self.times is not None

    def integrate(
        self, y0: Tensor, *, rate: Rate | None = None, slope: Tensor | None = None, dense: bool = False, **keep: Any
    ) -> Trace:
        """Run the loop over steps and return its trace."""
        if self.loop is not None and rate is None and not (dense or keep or torch.is_grad_enabled()):
            return self.loop(y0, slope)
        event = None
        if self.event is not None:
            fn, unpack = self.event, self.packing.unpack
            start = self.plan.times[0]
            now = Interval(self.plan, start, start + self.plan.direction).at_event(0.0)
            event = Event(lambda t, y: fn(t, unpack(y)), smallest(self.plan.atol), now, y0, self.packing.names.event)
        if rate is None:
            rate, own = self.rate, self.best_derivative
            if own is not None and not (torch.is_grad_enabled() or self.is_followed):
                rate = own.rate
        how = {"slope": slope, "dense": dense, **keep}
        path = None if self.noise is None else Path(self.noise, self.seed, y0.device, self._noisy(y0))
        return Integration(rate, y0, self.plan, event=event, watch=self.watch, path=path, **how).run()

    @torch.no_grad()
    def _noisy(self, y: Tensor) -> Tensor | None:
        """Return where noise is added to a packed state; ``None`` for everywhere."""
        return self.packing.pack(self.f.noisy(self.packing.unpack(y))) if isinstance(self.f, Field) else None

    def derivative(self, params: tuple[Tensor, ...]) -> Derivative:
        """Return the derivative that f provides if it covers ``params``, otherwise autograd's."""
        own = None if self.best_derivative is None else self.best_derivative.wanted(params, self.times is not None)
        if own is not None:
            return own
        module = self.f if isinstance(self.f, nn.Module) else None
        saved = None if self.found is None else self.found.saved
        return AutogradDerivative(self.rate, params, time=self.times is not None, module=module, saved=saved)

    @property
    def best_derivative(self) -> Derivative | None:
        """A derivative that is faster than autograd's, if there is one."""
        return self.own_derivative if self.compiled is None else self.compiled

    @cached_property
    def own_derivative(self) -> Derivative | None:
        """The derivative that f provides; ``None`` if it provides none that is faster than autograd's."""
        if not isinstance(self.f, Field) or self.packing.is_tuple:
            return None
        derivative = self.f.derivative()
        if derivative is None or isinstance(derivative, AutogradDerivative):
            return None
        return derivative if self.engine == "torch" else derivative.compiled(self.y0)

    def solution(self, trace: Trace, outputs: Sequence[Tensor] | Tensor, last: Tensor, gradient: str) -> Solution:
        """Build the :class:`Solution`.

        Args:
            trace: The result of the loop over steps.
            outputs: Its outputs, connected to autograd's graph; a tensor if they are stacked.
            last: Its last state, likewise.
            gradient: The name of the gradient method.
        """
        plan, unpack = self.plan, self.packing.unpack
        done = (trace.status == Status.SUCCESS) | (trace.status == Status.NO_EVENT)
        stacked = unpack(outputs, torch.unsafe_split_with_sizes) if isinstance(outputs, Tensor) else None
        states = list(map(unpack, outputs)) if stacked is None else unstacked(stacked)
        if isinstance(done, Tensor):
            shaped = done.reshape(done.shape + (1,) * (last.ndim - plan.group_dims))
            y1 = states[-1] if done.all() else unpack(torch.where(shaped, outputs[-1], last))
            t1: Any = torch.where(done, plan.times[-1], trace.t)
        else:
            y1 = states[-1] if done else unpack(last)
            t1 = plan.times[-1] if done and self.event is None else trace.t
        values = dict(zip(plan.wanted, states, strict=True))
        if 0 in self.shown and 0 not in values:
            values[0] = unpack(self.y0)
        found = Solution(
            times=[plan.times[i] for i in self.shown],
            outputs=[values[i] for i in self.shown],
            y1=y1,
            t1=t1,
            status=trace.status,
            stats=trace.stats,
            gradient=gradient,
            engine=Engine(self.obstacle, self.compiled is not None) if self.obstacle else NATIVE,
            interpolant=DenseOutput(plan, trace, unpack) if self.dense else None,
            note=self.note(trace),
            names=self.packing.names,
            stacked=stacked if self.shown == plan.wanted else None,
        )
        return noted(found)

    def note(self, trace: Trace) -> str:
        """Return a note on the first group that failed, if more is known than its status; otherwise empty."""
        failed = first_failure(trace.status)
        if failed is None or failed[1] != Status.MAX_STEPS:
            return ""
        return stiffness.note(
            self.rate, self.plan, trace.t, trace.y, trace.stats.accepted, failed[0], self.packing.names
        )
