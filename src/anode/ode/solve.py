"""``anode.solve``: check what was asked, choose how it is differentiated, run it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anode.ode import inputs
from anode.ode.clocks import clock_for
from anode.ode.control import CONTROLLERS, PID, rms
from anode.ode.dense import DenseOutput
from anode.ode.events import Event
from anode.ode.field import AutogradDerivative, Derivative, Field, Rate, captured_tensors
from anode.ode.gradients import GRADIENTS, Continuous, ContinuousSolve, DiscreteSolve, Gradient, Stored
from anode.ode.integrate import Trace, Watch, integrate
from anode.ode.packing import Packing
from anode.ode.plan import Plan
from anode.ode.solution import Solution, State, Stats, Status
from anode.ode.tableaus import TABLEAUS

Time = float | Tensor
Tolerance = float | Tensor | tuple[float | Tensor, ...]


def solve(
    f: Callable[[Tensor, Any], Any],
    y0: State,
    t_span: Sequence[Time] | Tensor,
    *,
    method: str = "dopri5",
    rtol: Tolerance = 1e-3,
    atol: Tolerance = 1e-6,
    save_at: Sequence[Time] | Tensor | None = None,
    dense: bool = False,
    control: str | int = "joint",
    controller: str | PID = "integral",
    gradient: str | Gradient = "discrete",
    params: Iterable[Tensor] | None = None,
    max_steps: int = 10_000,
    first_step: float | None = None,
    min_step: float = 0.0,
    max_step: float = math.inf,
    step_size: float | None = None,
    step_at: Sequence[float] | Tensor = (),
    event: Callable[[Tensor, Any], Tensor] | None = None,
    norm: Callable[[Any], Tensor] | None = None,
) -> Solution:
    """Solve dy/dt = f(t, y) with y(t0) = y0.

    Args:
        f: The right-hand side. It is given t, a tensor that broadcasts against the state (a scalar, or one entry a
            group, see ``control``), and the state, and returns its derivative, of the same shape and dtype.
        y0: The state at the start: a float32 or float64 tensor of any shape, or a tuple of such tensors.
        t_span: Start and end time; the end may come before the start. Tensors may require a gradient.
        method: One of ``anode.METHODS``. Those without an error estimate need ``step_size``.
        rtol, atol: A step's error is kept below ``atol + rtol * |y|``, in the root mean square. Numbers, tensors that
            broadcast against the state, or a tuple of either for a tuple state.
        save_at: Times whose states are wanted in ``Solution.ys``, in the order of the span and within it.
        dense: Keep the slopes, so that ``solution(t)`` gives the state at any time.
        control: Who shares a step size. ``"joint"``: everybody. ``"member"``: each index of the leading dimension
            has its own. ``"sample"``: each sample has its own, y0 being ``[batch, features]`` or ``[batch, channels,
            height, width]``, or either with a dimension of members in front. A number n: each index of the first n
            dimensions has its own.
        controller: ``"integral"`` (torchdiffeq's decisions), ``"pi"``, ``"pid"`` or an :class:`anode.PID`.
        gradient: ``"discrete"``, ``"stored"``, ``"continuous"``, or an object from :mod:`anode.ode.gradients`. What was
            done is in ``Solution.gradient``: ``"stored"`` takes the place of ``"discrete"`` with ``dense``, and where f
            uses tensors computed from others that need a gradient, unless ``params`` names them.
        params: The tensors, besides y0 and the times, whose gradients are wanted; by default all that f depends on.
        max_steps: How many steps, rejected ones included, the whole solve may try.
        first_step: Size of the first step; chosen by Hairer's rule if not given.
        min_step, max_step: Bounds of the step size. A step of the smallest size is accepted whatever its error.
        step_size: Take steps of this size (the last may be shorter) instead of adapting it.
        step_at: Times where a step must end, because f jumps there or must not be evaluated beyond. Without it the
            last step passes the end time, and the state there is a point of the dense output.
        event: ``event(t, y)``; the solve ends where it first becomes zero. The end time may then be infinite.
        norm: Maps a scaled error, shaped like the state, to one number; only for ``control="joint"``.

    Returns:
        A :class:`Solution`. A solve that fails returns the part it solved; :meth:`Solution.check` raises instead.

    Raises:
        TypeError, ValueError: An argument is not what it should be.

    Example:
        >>> import torch, anode
        >>> solution = anode.solve(lambda t, y: -y, torch.ones(3), (0.0, 1.0), rtol=1e-6)
        >>> round(solution.y1[0].item(), 4)
        0.3679
        >>> solution.status.name, solution.stats.nfe
        ('SUCCESS', 32)
    """
    y0 = inputs.state(y0)
    group_dims = inputs.group_dims(control, y0)
    packing = Packing(y0, group_dims)
    y = packing.pack(y0)
    tableau = inputs.lookup("method", method, TABLEAUS)
    times, values, wanted = inputs.times(t_span, save_at, y.device)
    inputs.require(math.isfinite(values[-1]) or event is not None, "t_span", values[-1], "a finite end time")
    inputs.tolerance("rtol", rtol)
    inputs.tolerance("atol", atol)
    inputs.require(max_steps > 0, "max_steps", max_steps, "a whole number above 0")
    inputs.require(first_step is None or first_step > 0, "first_step", first_step, "a number above 0")
    inputs.require(0 <= min_step <= max_step, "min_step", min_step, "a number from 0 to max_step")
    inputs.require(step_size is None or step_size > 0, "step_size", step_size, "a number above 0")
    if step_size is None and not tableau.adaptive:
        raise ValueError(
            f"step_size: method {method!r} has no error estimate to choose its steps by; pass step_size=..."
        )
    landings = [float(t) for t in step_at]
    for name, given in (("norm", norm is not None), ("event", event is not None), ("step_at", bool(landings))):
        inputs.require(group_dims == 0 or not given, name, control, 'control="joint" beside it')
    knots = None
    if step_size is not None:
        *steps, end = inputs.even_steps(values[0], values[-1], step_size)
        knots = [*((t, 0) for t in steps), (end, len(values) - 1)]
    plan = Plan(
        tableau=tableau,
        times=values,
        wanted=wanted,
        like=y.detach(),
        rtol=packing.pack_tolerance("rtol", rtol),
        atol=packing.pack_tolerance("atol", atol),
        norm=packing.norm() if norm is None else (lambda error: norm(packing.unpack(error))),
        max_steps=max_steps,
        controller=controller if isinstance(controller, PID) else inputs.lookup("controller", controller, CONTROLLERS),
        group_dims=group_dims,
        first_step=first_step,
        min_step=min_step,
        max_step=max_step,
        knots=knots,
        times_move=times is not None,
        step_at=sorted(landings, reverse=values[-1] < values[0]),
        jump_at=frozenset(landings),
    )
    gradient = gradient if isinstance(gradient, Gradient) else inputs.lookup("gradient", gradient, GRADIENTS)
    shown = [0, len(values) - 1] if save_at is None else wanted[: len(values) - 2]
    problem = Problem(f, y, times, plan, packing, shown, event)
    return problem.solve(gradient, None if params is None else tuple(params), dense)


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
    """

    f: Callable[[Tensor, Any], Any]
    y0: Tensor
    times: Tensor | None
    plan: Plan
    packing: Packing
    shown: list[int]
    event: Callable[[Tensor, Any], Tensor] | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.rate = self.packing.rate(self.f)

    def solve(self, gradient: Gradient, params: tuple[Tensor, ...] | None, dense: bool) -> Solution:
        """Run the solve so that autograd can differentiate it in the way asked for, if it has to at all."""
        if not torch.is_grad_enabled():
            return self.solve_plain("none", dense)
        if isinstance(gradient, Stored):
            return self.solve_plain("stored", dense)
        slope, computed = None, False
        if params is None:
            params, computed, slope = self.dependencies()
            if computed and isinstance(gradient, Continuous):
                raise ValueError(
                    "params: f uses tensors that were computed from others which need a gradient, and the continuous "
                    'adjoint cannot find them by itself; pass them in params=, or use gradient="discrete"'
                )
        params = tuple(p for p in params if p.requires_grad)
        if not (params or computed or self.y0.requires_grad or self.times is not None):
            with torch.no_grad():
                return self.solve_plain("none", dense, slope)
        if isinstance(gradient, Continuous):
            inputs.require(not dense, "dense", dense, 'False beside gradient="continuous", which keeps no steps')
            inputs.require(self.event is None, "event", self.event, 'None beside gradient="continuous"')
            return self.solve_continuous(gradient, params)
        if computed or dense:
            return self.solve_plain("stored", dense)
        return self.solve_discrete(params, slope)

    def dependencies(self) -> tuple[tuple[Tensor, ...], bool, Tensor | None]:
        """What f depends on: its tensors, whether some could not be named, and f at the start if it was evaluated."""
        known = tuple(self.f.parameters()) if isinstance(self.f, nn.Module) else ()
        if isinstance(self.f, Field):
            return known, False, None
        leaves, computed, slope = captured_tensors(self.rate, clock_for(self.plan).now(), self.y0, known)
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
            if isinstance(self.f, Field) and not self.packing.is_tuple and not torch.is_grad_enabled():
                rate = self.f.derivative().rate
        return integrate(rate, y0, self.plan, event=event, watch=self.watch, **keep)

    def derivative(self, params: tuple[Tensor, ...]) -> Derivative:
        """F's own derivative if it is the one that is wanted, otherwise autograd's."""
        if isinstance(self.f, Field) and not self.packing.is_tuple and self.times is None:
            own = tuple(self.f.parameters())
            if len(own) == len(params) and all(a is b for a, b in zip(own, params, strict=True)):
                return self.f.derivative()
        return AutogradDerivative(self.rate, params, time=self.times is not None)

    def solve_plain(self, gradient: str, dense: bool, slope: Tensor | None = None) -> Solution:
        """The loop as it is, recorded by autograd if that is on."""
        if self.times is not None and torch.is_grad_enabled():
            self.plan = replace(self.plan, moving_times=self.times)
        trace = self.integrate(self.y0, slope=slope, dense=dense)
        if not trace.y.requires_grad:
            gradient = "none"
        return self.solution(trace, trace.outputs, trace.y, gradient, dense)

    def solve_discrete(self, params: tuple[Tensor, ...], slope: Tensor | None) -> Solution:
        """The loop unrecorded, with a backward pass that walks over its steps."""
        report: list[Trace] = []

        derivative = self.derivative(params)
        kept = 0 if self.plan.group_dims else derivative.steps_to_keep(self.y0, len(self.plan.tableau.stages))

        def run(y0: Tensor) -> Trace:
            rate = derivative.evaluate if kept else derivative.rate
            return self.integrate(y0, rate=rate, slope=slope, keep_steps=True, keep_slopes=kept)

        *outputs, last = DiscreteSolve.apply(  # type: ignore[no-untyped-call]
            run, derivative, self.plan, report, self.y0, self.times, *params
        )
        return self.solution(report[0], outputs, last, "discrete")

    def solve_continuous(self, gradient: Continuous, params: tuple[Tensor, ...]) -> Solution:
        """The loop unrecorded, with a backward pass that solves the adjoint ODE with one step size for everybody."""
        plan = self.plan
        report: list[Trace] = []
        state_norm = rms(0, self.y0.numel()) if plan.group_dims else plan.norm

        later = [0, *(i for i in plan.wanted if i)]

        def run() -> tuple[Tensor, None, Stats]:
            trace = self.integrate(self.y0.detach())
            report.append(trace)
            return torch.stack([self.y0, *(trace.outputs[plan.wanted.index(i)] for i in later[1:])]), None, trace.stats

        def rate(t: Tensor, y: Tensor) -> Tensor:
            return self.rate(t.reshape((1,) * y.ndim).expand(*plan.groups, *(1,) * (y.ndim - plan.group_dims)), y)

        def norm(error: tuple[Tensor, ...]) -> Tensor:
            at_time, y, adjoint, *at_params = error
            parts = [at_time.abs(), state_norm(y), state_norm(adjoint)]
            if not gradient.seminorm:
                parts += [rms(0, part.numel())(part) for part in at_params]
            return torch.stack(parts).amax()

        def solve_back(
            adjoint_rate: Any, state: tuple[Tensor, ...], span: Tensor, options: dict[str, Any]
        ) -> tuple[Tensor, ...]:
            solution = solve(adjoint_rate, state, span, gradient="stored", **options).check()
            return solution.y1  # type: ignore[return-value]

        options = {
            "method": gradient.method or plan.tableau.name,
            "rtol": gradient.rtol or _smallest(plan.rtol),
            "atol": gradient.atol or _smallest(plan.atol),
            "max_steps": plan.max_steps,
            "norm": norm,
        }
        if plan.knots is not None:
            options["step_size"] = abs(plan.knots[1][0] - plan.knots[0][0])
        times = torch.tensor(plan.times, dtype=torch.float64) if self.times is None else self.times
        ys = ContinuousSolve.apply(  # type: ignore[no-untyped-call]
            rate, run, solve_back, options, self.y0, times[later], *params
        )
        return self.solution(report[0], [ys[later.index(i)] for i in plan.wanted], report[0].y, "continuous")

    def solution(
        self, trace: Trace, outputs: Sequence[Tensor], last: Tensor, gradient: str, dense: bool = False
    ) -> Solution:
        """Put the result together for the caller."""
        plan, unpack = self.plan, self.packing.unpack
        done = trace.status == Status.SUCCESS
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
        )


def _smallest(tol: float | Tensor) -> float:
    return float(torch.as_tensor(tol).min())
