"""Translate torchdiffeq's methods, options and norms into settings of :class:`anode.Solver`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anode.checks import check_function, describe, lookup, require, whole_number
from anode.engine.timeless import as_function
from anode.interface import scipy_solver
from anode.interface.callbacks import CALLBACKS, watch_of
from anode.interface.packing import THEIRS, FlatPacking
from anode.ode import inputs
from anode.ode.adams import CARRIER, MOST_SLOPES, Adams
from anode.ode.control import PID, AdjointNorm
from anode.ode.packing import Packing
from anode.ode.plan import Plan
from anode.ode.plans import planned
from anode.ode.problem import Problem
from anode.ode.solution import Names, State
from anode.ode.solver import DEFAULT
from anode.ode.tableau import Tableau
from anode.ode.tableaus import ADAPTIVE_HEUN, DOPRI5, FEHLBERG2, TABLEAUS

UNSUPPORTED = (
    "adams",
    "implicit_euler",
    "implicit_midpoint",
    "trapezoid",
    "radauIIA3",
    "radauIIA5",
    "gl2",
    "gl4",
    "gl6",
    "sdirk2",
    "trbdf2",
    "yoshida4th",
)
"""Methods of other versions of torchdiffeq that are not supported."""

ADAPTIVE_OPTIONS = {
    "norm",
    "dtype",
    "first_step",
    "min_step",
    "max_step",
    "safety",
    "ifactor",
    "dfactor",
    "max_num_steps",
    "step_t",
    "jump_t",
    "grid_points",
    "eps",
}
FACTORS = {"safety": 0.9, "dfactor": 0.2, "ifactor": 10.0}
FIXED_OPTIONS = {"norm", "step_size", "grid_constructor", "interp", "perturb"}
FIXED_WORDS = THEIRS._replace(more_steps="enlarge options={'step_size': ...}")
ADAMS_OPTIONS = FIXED_OPTIONS | {"max_order", "max_iters", "implicit"}
STIFF_STEPS = 1_000_000  # the step budget once a problem turns out to be stiff, unless max_num_steps is given
MAX_FIXED_STEPS = 20_000  # the step budget of fixed steps towards an event, which may never occur


Settings = dict[str, Any]


class Call(NamedTuple):
    """The arguments of one call that the meaning of its options depends on.

    Attributes:
        tableau: The method's coefficients.
        options: torchdiffeq's options.
        func: The right-hand side.
        y0: The initial state; ``packing`` packs it.
        t: The times as they were given.
        times: The times from the start to the end, which is infinite if there is an event.
    """

    tableau: Tableau
    options: Settings
    func: Callable[[Tensor, Any], Any]
    y0: State
    packing: Packing
    t: Tensor
    times: list[float]


class Method(NamedTuple):
    """A method of torchdiffeq.

    Attributes:
        tableau: Its coefficients.
        options: The names of its options.
        callbacks: The events of a step for which it calls callbacks.
        translate: Returns the solver settings that the options of a call stand for, and the plan attributes that have
            no setting.
        words: The words of messages.
    """

    tableau: Tableau
    options: Set[str]
    callbacks: Set[str]
    translate: Callable[[Call], tuple[Settings, Settings]]
    words: Names = THEIRS


def problem_from(
    func: Callable[[Tensor, Any], Any],
    y0: State,
    t: Tensor,
    rtol: Any,
    atol: Any,
    method: str | None,
    options: Settings | None,
    event_fn: Callable[[Tensor, Any], Tensor] | None,
    dense: bool = False,
) -> Problem:
    """Build a :class:`Problem` from torchdiffeq's arguments."""
    check_function("func", func, "a function func(t, y)")
    y0 = inputs.tensors(y0, mixed=True)
    kind, times, options = _checked_method(method), _checked_times(t), _checked_options(options)
    by_scipy = method == scipy_solver.NAME
    if by_scipy:
        scipy_solver.check(options, only_at_times=event_fn is None and not dense)
    if event_fn is not None:
        require(len(times) == 2, "t", t, "two times with event_fn: the start, and a second one for the direction")
        times = [times[0], math.copysign(math.inf, times[1] - times[0])]
        check_function("event_fn", event_fn, "a function event_fn(t, y)")
        event_fn = signed(event_fn)
    unknown = options.keys() - kind.options
    if unknown:
        warnings.warn(f"options: method {method or kind.tableau.name!r} ignores {sorted(unknown)}", stacklevel=5)

    def plan() -> tuple[Plan, Packing]:
        packing = FlatPacking(y0, not kind.tableau.adaptive, kind.words)
        settings, special = kind.translate(Call(kind.tableau, options, func, y0, packing, t, times))
        special |= {name: _checked_tolerance(name, each, packing) for name, each in (("rtol", rtol), ("atol", atol))}
        special["times_move"] = t.requires_grad
        solver = DEFAULT.but(control="joint", **settings)
        wanted = list(range(len(times)))
        return solver.plan(packing.pack(y0), packing, times, wanted, norm=options.get("norm"), **special), packing

    given = (method, rtol, atol, t.requires_grad, *options, *options.values())
    made, packing = planned(plan, y0, tuple(times), given)
    y = packing.pack(y0)
    moving = t[: len(times)].to(y.device, torch.float64) if t.requires_grad else None
    watch, writes = watch_of(func, packing, method or kind.tableau.name, kind.callbacks, kind.tableau.adaptive, t)
    problem = Problem(
        as_function(func), y, moving, made, packing, made.wanted, event_fn, watch, writes, engine="auto", dense=dense
    )
    if by_scipy:
        problem.obstacle = "SciPy integrates"
        problem.loop = lambda y0, slope: scipy_solver.integrate(problem, options, y0)
    return problem


def signed(event_fn: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Return an event function with its booleans as numbers: 1 for true, -1 for false."""

    def numbers(t: Tensor, y: Any) -> Tensor:
        found = event_fn(t, y)
        return 2.0 * found - 1.0 if isinstance(found, Tensor) and found.dtype == torch.bool else found

    return numbers


def _checked_options(options: Any) -> Settings:
    if not isinstance(options, Mapping | None):
        raise TypeError(f"options: takes a dictionary of torchdiffeq's options, got {describe(options)}")
    found = dict(options or {})
    if found.get("norm") is not None:
        check_function('options["norm"]', found["norm"], "a function of the state that returns one number")
    return found


class TimesError(ValueError, AssertionError):
    """The times are not in order. Also an ``AssertionError``, which is what torchdiffeq raises."""


def _checked_times(t: Tensor) -> list[float]:
    if not isinstance(t, Tensor) or not t.is_floating_point():
        raise TypeError(f"t: takes a floating point tensor, got {describe(t)}")
    require(t.ndim == 1 and t.numel() > 0, "t", t, "a tensor with one dimension and at least one time")
    times: list[float] = t.tolist()
    steps = [b - a for a, b in pairwise(times)]
    ordered = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    if not ordered:
        raise TimesError(f"t: takes strictly increasing or strictly decreasing times, got {times}")
    return times


def _checked_method(method: str | None) -> Method:
    if method in UNSUPPORTED:
        raise ValueError(
            f"method: {method!r} is not supported here and not in torchdiffeq 0.2.5; takes one of {', '.join(METHODS)}"
        )
    return lookup("method", method or "dopri5", METHODS)


def _checked_tolerance(name: str, tolerance: Any, packing: Packing) -> float | Tensor:
    if type(tolerance) is float and tolerance >= 0:  # the common case, which skips the slower checks below
        return tolerance
    require(not isinstance(tolerance, str | None), name, tolerance, "numbers from 0")
    if not isinstance(tolerance, int | float):
        if packing.is_tuple and np.ndim(tolerance) > 0:
            tolerance = tuple(tolerance)
        elif not packing.is_tuple:
            tolerance = torch.as_tensor(tolerance)
            inputs.broadcasts(name, tolerance, packing.shapes[0])
    packed = packing.pack_tolerance(name, tolerance)
    require(bool((torch.as_tensor(packed) >= 0).all()), name, tolerance, "numbers from 0")
    return packed.detach() if isinstance(packed, Tensor) else packed


def _number(options: Settings, name: str, usual: float | None = None) -> float:
    """Return an option as a float; tensors and arrays with one element are accepted."""
    value: Any = options.get(name, usual)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"options[{name!r}]: takes a number, got {value!r}") from None


def _adaptive(call: Call) -> tuple[Settings, Settings]:
    """Translate the options of a method that adapts its steps, see :class:`Method`."""
    options, times = call.options, call.times

    def numbers(name: str) -> list[float]:
        values = options.get(name)
        if values is None:
            return []
        try:
            return torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"options[{name!r}]: takes a tensor or a list of times, got {values!r}") from None

    jumps = numbers("jump_t") + numbers("grid_points")
    landings = numbers("step_t") + jumps
    require(len(set(landings)) == len(landings), "step_t, jump_t", landings, "times without repetition")
    safety, dfactor, ifactor = (_number(options, name, usual) for name, usual in FACTORS.items())
    budget = _number(options, "max_num_steps", 2**31 - 1)
    require(budget >= 1, 'options["max_num_steps"]', budget, "a number from 1")
    takes = "0 < dfactor < 1 <= ifactor and 0 < safety <= 1"
    require(0 < dfactor < 1 <= ifactor and 0 < safety <= 1, "options", options, takes)
    settings = {
        "method": call.tableau,
        "controller": PID(safety=safety, min_factor=dfactor, max_factor=ifactor),
        # torchdiffeq's budget is per interval between outputs; the sum over all intervals is never stricter.
        "max_steps": int(budget) * max(1, len(times) - 1),
        "first_step": None if options.get("first_step") is None else _number(options, "first_step"),
        "min_step": _number(options, "min_step", 0.0),
        "max_step": _number(options, "max_step", math.inf),
    }
    special = {
        "stiff_steps": None if "max_num_steps" in options else STIFF_STEPS,
        "step_at": sorted(landings, reverse=times[-1] < times[0]),
        "jump_at": frozenset(jumps),
        "precise_events": True,
    }
    return settings, special


def _fixed(call: Call) -> tuple[Settings, Settings]:
    """Translate the options of a method with fixed steps."""
    options, tableau, times = call.options, call.tableau, call.times
    step_size, constructor = options.get("step_size"), options.get("grid_constructor")
    moves_with = {times[-1]: len(times) - 1}  # the gradient of every other knot goes to the start time
    require(step_size is None or constructor is None, "options", options, "only one of step_size and grid_constructor")
    if math.isinf(times[-1]):
        require(step_size is not None, "options", options, "step_size if event_fn is given and the steps are fixed")
    size = 1.0 if step_size is None else _number(options, "step_size")  # any value: the knots fix the steps
    require(size > 0, 'options["step_size"]', step_size, "a number above 0")
    if step_size is not None and len(times) > 1:
        most = MAX_FIXED_STEPS if math.isinf(times[-1]) else 2**31 - 1
        grid = inputs.even_steps(times[0], times[-1], size, most)
    elif step_size is not None:
        grid = times
    else:
        grid = times
        if constructor is not None:
            rate, y0 = call.packing.rate(as_function(call.func)), call.packing.pack(call.y0)
            grid = constructor(rate, y0, call.t.detach()).tolist()
        moves_with |= {time: i for i, time in enumerate(times)}
    ends = (grid[0], grid[-1]) == (times[0], times[-1]) or math.isinf(times[-1])
    require(ends, "grid_constructor", grid, f"times from {times[0]} to {times[-1]}")
    interp = options.get("interp", "linear")
    settings = {
        "method": lookup("interp", interp, {"linear": tableau.linear, "cubic": tableau}),
        "max_steps": max(len(grid) - 1, 1),
        "step_size": size,
    }
    special = {
        "knots": [(time, moves_with.get(time, 0)) for time in grid],
        "nudge": bool(options.get("perturb", False)),
        "keeps_non_finite": True,
    }
    return settings, special


def _adams(usual: Adams, call: Call) -> tuple[Settings, Settings]:
    """Translate the options of an Adams method: those of fixed steps, and its own."""
    options = call.options

    def limit(name: str, largest: float) -> int:
        value = options.get(name, getattr(usual, name))
        found = int(value) if isinstance(value, float) and value.is_integer() else whole_number(value)
        takes = f"a whole number from 1{f' to {largest}' if math.isfinite(largest) else ''}"
        require(found is not None and 1 <= found <= largest, f"options[{name!r}]", value, takes)
        assert found is not None
        return found

    settings, special = _fixed(call)
    adams = Adams(
        implicit=bool(options.get("implicit", usual.implicit)),
        max_order=limit("max_order", MOST_SLOPES),
        max_iters=limit("max_iters", math.inf),
    )
    return settings, {**special, "adams": adams}


def _methods(tableaus: Iterable[Tableau]) -> dict[str, Method]:
    adaptive, fixed = (ADAPTIVE_OPTIONS, set(CALLBACKS), _adaptive), (FIXED_OPTIONS, {"try"}, _fixed, FIXED_WORDS)
    return {tableau.name: Method(tableau, *(adaptive if tableau.adaptive else fixed)) for tableau in tableaus}


METHODS: dict[str, Method] = {
    **_methods(TABLEAUS.values()),
    **_methods([ADAPTIVE_HEUN.reusing_last_stage((1 / 2, 0.0)), FEHLBERG2.reusing_last_stage((0.0, 1 / 2, 0.0))]),
    **{
        name: Method(replace(CARRIER, name=name), ADAMS_OPTIONS, {"try"}, partial(_adams, usual), FIXED_WORDS)
        for name, usual in (
            ("explicit_adams", Adams(False)),
            ("implicit_adams", Adams(True)),
            ("fixed_adams", Adams(True)),  # an older name
        )
    },
    scipy_solver.NAME: Method(
        DOPRI5, scipy_solver.OPTIONS, set(), lambda call: ({}, {}), scipy_solver.WORDS
    ),  # its tableau is not used
}
"""The supported methods by name, with the coefficients that torchdiffeq uses."""


def adjoint_norm(norm: Any, problem: Problem) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """Return the norm of the backward solve's state (cotangent of t, y, cotangent of y, *cotangents of parameters)."""
    plan, unpack = problem.plan, problem.packing.unpack

    def custom(parts: tuple[Tensor, ...]) -> Tensor:
        at_time, y, adjoint, *at_params = parts
        return norm((at_time, *unpack(y), *unpack(adjoint), *at_params))

    if norm is None or norm == "seminorm":
        return AdjointNorm(plan.norm, norm is not None, plan.own_norm)
    takes = 'a function of a tuple of tensors that returns one number, or "seminorm"'
    check_function('adjoint_options["norm"]', norm, takes)
    return custom if problem.packing.is_tuple else norm
