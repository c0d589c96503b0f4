"""``anode.solve``: check what was asked and run it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from anode.ode import inputs
from anode.ode.control import CONTROLLERS, Controller
from anode.ode.gradients import GRADIENTS, Gradient
from anode.ode.native import ENGINES
from anode.ode.packing import Packing
from anode.ode.plan import Plan
from anode.ode.problem import Problem
from anode.ode.solution import Solution, State
from anode.ode.tableaus import TABLEAUS
from anode.ode.tools import outside_graphs

Time = float | Tensor
Tolerance = float | Tensor | tuple[float | Tensor, ...]


@outside_graphs
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
    controller: str | Controller = "integral",
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
    engine: str = "auto",
) -> Solution:
    """Solve dy/dt = f(t, y) with y(t0) = y0.

    Args:
        f: The right-hand side. It is given t, a tensor that broadcasts against the state (a scalar, or one entry a
            group, see ``control``), and the state, and returns its derivative, of the same shape and dtype. An
            ``nn.Sequential`` is given the state only.
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
        controller: ``"integral"`` (torchdiffeq's decisions), ``"pi"``, ``"pid"``, an :class:`anode.PID`, or a
            :class:`anode.Controller` of your own.
        gradient: ``"discrete"``, ``"stored"``, ``"continuous"``, or an object from :mod:`anode.ode.gradients`. What was
            done is in ``Solution.gradient``: ``"stored"`` takes the place of ``"discrete"`` with ``dense``, within
            ``torch.func``, and where f uses tensors computed from others that need a gradient, unless ``params`` names
            them.
        params: The tensors, besides y0 and the times, whose gradients are wanted; by default all that f depends on.
        max_steps: How many steps, rejected ones included, the whole solve may try.
        first_step: Size of the first step; chosen by Hairer's rule if not given.
        min_step, max_step: Bounds of the step size. A step of the smallest size is accepted whatever its error.
        step_size: Take steps of this size (the last may be shorter) instead of adapting it.
        step_at: Times where a step must end, because f jumps there or must not be evaluated beyond. Without it the
            last step passes the end time, and the state there is a point of the dense output.
        event: ``event(t, y)``; the solve ends where it first becomes zero. The end time may then be infinite.
        norm: Maps a scaled error, shaped like the state, to one number; only for ``control="joint"``.
        engine: ``"native"``: the compiled engine, which integrates an :class:`anode.MLPField` on a CPU without Python
            between its steps. ``"torch"``: the loop in Python, which does everything else. ``"auto"``: the compiled
            engine where it applies. They take the same steps and differ by rounding.

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
    times, values, wanted = inputs.times(t_span, save_at, y.device, has_event=event is not None)
    inputs.require(math.isfinite(values[-1]) or event is not None, "t_span", values[-1], "a finite end time")
    inputs.tolerance("rtol", rtol, y0)
    inputs.tolerance("atol", atol, y0)
    inputs.number("max_steps", max_steps, whole=True)
    first_step = inputs.number("first_step", first_step, optional=True, finite=True)
    inputs.number("max_step", max_step)
    inputs.number("min_step", min_step, zero=True)
    inputs.require(min_step <= max_step, "min_step", min_step, f"at most max_step = {max_step}")
    step_size = inputs.number("step_size", step_size, optional=True, finite=True)
    if step_size is None and not tableau.adaptive:
        raise ValueError(
            f"step_size: method {method!r} has no error estimate to choose its steps by; pass step_size=..."
        )
    landings = [float(t) for t in step_at]
    inputs.require(all(map(math.isfinite, landings)), "step_at", landings, "finite times")
    for name, given in (("norm", norm is not None), ("event", event is not None), ("step_at", bool(landings))):
        inputs.require(group_dims == 0 or not given, name, control, 'control="joint" beside it')
    knots = None
    if step_size is not None:
        grid = {*inputs.even_steps(values[0], values[-1], step_size, max_steps), *landings}
        order = sorted(grid, reverse=values[-1] < values[0])
        moves_with = {**dict.fromkeys(landings), values[0]: 0, values[-1]: len(values) - 1}
        knots = [(t, moves_with.get(t, 0)) for t in order if inputs.between(t, values)]
    plan = Plan(
        tableau=tableau,
        times=values,
        wanted=wanted,
        like=y.detach(),
        rtol=packing.pack_tolerance("rtol", rtol),
        atol=packing.pack_tolerance("atol", atol),
        norm=packing.norm() if norm is None else (lambda error: norm(packing.unpack(error))),
        own_norm=norm is not None,
        max_steps=max_steps,
        controller=controller
        if isinstance(controller, Controller)
        else inputs.lookup("controller", controller, CONTROLLERS),
        group_dims=group_dims,
        first_step=first_step,
        min_step=min_step,
        max_step=max_step,
        knots=knots,
        times_move=times is not None,
        step_at=sorted(set(landings), reverse=values[-1] < values[0]),
        jump_at=frozenset(landings),
    )
    gradient = gradient if isinstance(gradient, Gradient) else inputs.lookup("gradient", gradient, GRADIENTS)
    shown = [0, len(values) - 1] if save_at is None else wanted[: len(values) - 2]
    inputs.require(engine in ENGINES, "engine", engine, ", ".join(map(repr, ENGINES)))
    problem = Problem(f, y, times, plan, packing, shown, event, engine=engine)
    return problem.solve(gradient, None if params is None else tuple(params), dense)
