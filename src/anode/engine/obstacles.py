"""The reasons why the compiled engine cannot run a solve, as texts for ``Solution.engine``."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from anode.engine import native
from anode.engine.compiled import Compiled
from anode.engine.extension import extension
from anode.ode.control import PID
from anode.ode.gradient import Gradient
from anode.ode.plan import Plan
from anode.ode.problem import Problem
from anode.ode.transforms import is_followed, may_be_followed

FOLLOWED = "a transform of torch follows the computation"


def obstacle(problem: Problem, gradient: Gradient) -> str:
    """Return why the engine cannot run a solve, whatever f is; empty if it can."""
    return of_field(problem) or of_loop(problem) or of_gradient(problem, gradient)


def of_field(problem: Problem) -> str:
    """Return why the engine cannot evaluate f, even if Python takes the steps; empty if it can."""
    return _obstacle_around(problem) or problem.plan.prepared.get("field", lambda: _field_obstacle_in(problem.plan))


def of_loop(problem: Problem) -> str:
    """Return why the engine cannot take the steps although it can evaluate f; empty if it can."""
    if problem.dense:
        return "dense=True keeps slopes"
    if problem.event is not None:
        return "there is an event"
    if problem.watch is not None:
        return "there are callbacks"
    return problem.plan.prepared.get("loop", lambda: _loop_obstacle_in(problem.plan))


def of_gradient(problem: Problem, gradient: Gradient) -> str:
    """Return why the engine cannot differentiate a solve although it can take the steps; empty if it can."""
    if not torch.is_grad_enabled():
        return ""
    if problem.times is not None:
        return "gradients for times are wanted"
    if not gradient.compiled:
        return f'gradient="{gradient.name}" is not compiled'
    if problem.params is not None:
        return "params are given"
    return ""


def _obstacle_around(problem: Problem) -> str:
    """Return an obstacle outside of the solve itself."""
    if problem.engine == "torch":
        return 'engine="torch" was asked for'
    if problem.engine == "auto" and os.environ.get("ANODE_ENGINE") == "torch":
        return "ANODE_ENGINE=torch is set"
    if extension is None:
        return native.MISSING
    if torch.compiler.is_compiling():
        return "torch compiles what it is called from"
    if may_be_followed() and is_followed(problem.y0, *problem.module_parameters):
        return FOLLOWED
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return ""


def _field_obstacle_in(plan: Plan) -> str:
    """Return what in a plan prevents the engine from evaluating f."""
    device, dtype = plan.like.device, plan.like.dtype
    obstacles = [
        (device.type != "cpu", f"the state is on {device}"),
        (dtype not in native.DTYPES, f"the state is of {dtype}"),
        (not plan.like.numel(), "the state is empty"),
        (0 < plan.group_dims == plan.like.ndim, "every number has a step size of its own"),
        (plan.times[0] == plan.times[-1], "the span is empty"),
    ]
    return next((why for applies, why in obstacles if applies), "")


def _loop_obstacle_in(plan: Plan) -> str:
    """Return what in a plan prevents the engine from taking the steps."""
    numbers = (float, int)
    obstacles = [
        (bool(plan.step_at) or plan.nudge, "there are times where a step has to end"),
        (plan.own_norm, "there is a norm"),
        (plan.adams is not None, "each step of an Adams method uses the slopes of earlier steps"),
        (plan.noise, "noise is added to the state after every step"),
        (plan.tableau.last_stage_ends, "each step begins with the last stage of the one before, as in torchdiffeq"),
        (type(plan.controller) is not PID, "the controller is not a plain PID"),
        (not isinstance(plan.rtol, numbers) or not isinstance(plan.atol, numbers), "a tolerance is a tensor"),
    ]
    return next((why for applies, why in obstacles if applies), "")


def unfit(field: Compiled, y0: Tensor) -> str:
    """Return why the engine cannot integrate a field from such a state; empty if it can."""
    if any(p.dtype != y0.dtype or p.device != y0.device for p in (*field.tensors, *field.context)):
        return "the field's parameters are of another dtype or on another device than the state"
    sizes = (n * (1 if one else field.members or 1) for n, one in zip(field.program.sizes, field.shared, strict=True))
    if any(x.numel() != size for x, size in zip(field.tensors, sizes, strict=True)):
        return "the field's parameters have another size than before"
    return ""
