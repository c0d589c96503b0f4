"""``anode.solve``, the main interface to the solver."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anode.checks import check_function, flag, require, tensors_in
from anode.engine.dispatch import run
from anode.engine.timeless import as_function
from anode.ode import inputs
from anode.ode.field import Field
from anode.ode.noise import Noise
from anode.ode.packing import Packing
from anode.ode.plan import Plan
from anode.ode.plans import planned
from anode.ode.problem import Problem
from anode.ode.solution import Solution, State
from anode.ode.solver import DEFAULT, Solver, as_solver
from anode.ode.transforms import outside_graphs

Time = float | Tensor


@outside_graphs
def solve(
    f: Callable[[Tensor, Any], Any],
    y0: State,
    t_span: Sequence[Time] | Tensor,
    *,
    solver: Solver | None = None,
    save_at: Sequence[Time] | Tensor | None = None,
    dense: bool = False,
    params: Iterable[Tensor] | None = None,
    step_at: Sequence[float] | Tensor = (),
    event: Callable[[Tensor, Any], Tensor] | None = None,
    norm: Callable[[Any], Tensor] | None = None,
    **settings: Any,
) -> Solution:
    """Integrate dy/dt = f(t, y) from y(t0) = y0 and return the solution.

    Args:
        f: The right-hand side, called as ``f(t, y)``. ``t`` is a tensor that broadcasts against the state: a scalar, or
            one entry per group (see ``control`` of :class:`anode.Solver`). ``f`` returns the derivative, with the shape
            and dtype of the state. An ``nn.Sequential`` is called with the state only.
        y0: Initial state: a float32 or float64 tensor of any shape, or a tuple of such tensors.
        t_span: Start and end time. The end may lie before the start. Both may be tensors that require a gradient.
        solver: An :class:`anode.Solver`. Defaults to ``anode.Solver()``.
        save_at: Times to save in ``Solution.ys``, within the span and in its direction. Defaults to both ends of the
            span.
        dense: Whether to keep the dense output, so that ``solution(t)`` returns the state at any time.
        params: Tensors to differentiate with respect to, besides ``y0`` and the times. Defaults to all tensors that f
            depends on.
        step_at: Times where a step must end, for example because f jumps there or must not be evaluated beyond. Times
            outside the span are ignored. By default the last step may pass the end time, and the state at the end time
            is interpolated from the dense output.
        event: A function ``event(t, y)``. The solve stops where it first becomes zero; the end time may be infinite.
        norm: A function that maps the scaled error, shaped like the state, to one number. Defaults to the root mean
            square. Requires ``control="joint"``.
        **settings: Settings of :class:`anode.Solver`, such as ``rtol``. They override those of ``solver``.

    Returns:
        A :class:`Solution`. If the solve fails, it holds the part that was solved. Call :meth:`Solution.check` to raise
        an error instead.

    Raises:
        TypeError: If an argument has the wrong type, or a setting is unknown.
        ValueError: If an argument has an invalid value.

    Example:
        >>> import torch, anode
        >>> solution = anode.solve(lambda t, y: -y, torch.ones(3), (0.0, 1.0), rtol=1e-6)
        >>> round(solution.y1[0].item(), 4)
        0.3679
        >>> solution.status.name, solution.stats.nfe
        ('SUCCESS', 32)
        >>> str(solution.engine)
        'native'
    """
    check_function("f", f, "a function f(t, y)")
    for name, function, call in (("event", event, "event(t, y)"), ("norm", norm, "norm(error)")):
        if function is not None:
            check_function(name, function, f"a function {call}")
    solver = as_solver(solver, DEFAULT, settings)
    y0 = inputs.state(y0)
    by_member = isinstance(f, Field) and f.members is not None
    times = inputs.times(t_span, save_at)
    landings = () if isinstance(step_at, tuple) and not step_at else inputs.sequence("step_at", step_at)[1]

    def prepare() -> Prepared:
        return _prepared(solver, y0, by_member, times, landings, dense, event, norm)

    given = (solver, solver.rtol, solver.atol, by_member, dense, norm, event is None, bool(times.moving))
    made = planned(prepare, y0, (times.ends, times.saved, landings), given)
    problem = Problem(
        as_function(f),
        made.packing.pack(y0),
        times.as_tensor(y0),
        made.plan,
        made.packing,
        made.shown,
        event,
        engine=solver.engine,
        dense=dense,
        params=None if params is None else tensors_in("params", params),
    )
    if isinstance(solver.noise, Noise):
        problem.noise, problem.seed = solver.noise, int(torch.randint(2**62, (), device="cpu"))
    return run(problem, solver.gradient_method)


class Prepared(NamedTuple):
    """Everything about a solve that its arguments determine, except the values of the initial state."""

    plan: Plan
    packing: Packing
    shown: list[int]


def _prepared(
    solver: Solver,
    y0: State,
    by_member: bool,
    times: inputs.Times,
    landings: tuple[float, ...],
    dense: bool,
    event: Callable[..., Any] | None,
    norm: Callable[..., Any] | None,
) -> Prepared:
    """Check the arguments of a solve together, and plan it."""
    control = solver.control
    if control == "auto":
        control = "member" if by_member else "joint"
    values, wanted = times.checked(has_event=event is not None)
    require(math.isfinite(values[-1]) or event is not None, "t_span", values[-1], "a finite end time")
    require(all(map(math.isfinite, landings)), "step_at", list(landings), "finite times")
    flag("dense", dense)
    group_dims = inputs.group_dims(control, y0)
    packing = Packing(y0, group_dims)
    for name in ("rtol", "atol"):
        inputs.tolerance(name, getattr(solver, name), y0)
    for name, given in (("norm", norm is not None), ("event", event is not None), ("step_at", bool(landings))):
        require(group_dims == 0 or not given, name, control, 'only control="joint"')
    plan = solver.plan(
        packing.pack(y0),
        packing,
        values,
        wanted,
        norm=norm,
        knots=_knots(solver, values, landings),
        times_move=bool(times.moving),
        step_at=sorted(set(landings), reverse=values[-1] < values[0]),
        jump_at=frozenset(landings),
    )
    return Prepared(plan, packing, [0, len(values) - 1] if times.saved is None else wanted[: len(values) - 2])


def _knots(solver: Solver, times: list[float], landings: Sequence[float]) -> list[tuple[float, int | None]] | None:
    """Return where steps of a fixed size end, each with the index of the time it moves with; ``None`` if adaptive."""
    if solver.step_size is None:
        return None
    grid = {*inputs.even_steps(times[0], times[-1], solver.step_size, solver.max_steps), *landings}
    moves_with = {**dict.fromkeys(landings), times[0]: 0, times[-1]: len(times) - 1}
    order = sorted(grid, reverse=times[-1] < times[0])
    return [(t, moves_with.get(t, 0)) for t in order if inputs.between(t, times)]


def with_settings(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with its ``**settings`` replaced by the settings of :class:`Solver`."""
    signature = inspect.signature(function)
    known = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    listed = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(Solver)
    ]
    return signature.replace(parameters=[*known, *listed])


solve.__signature__ = with_settings(solve)  # type: ignore[attr-defined]  # so that help() lists the settings
