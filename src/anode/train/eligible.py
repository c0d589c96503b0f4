"""Whether the compiled engine can run a training run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.optim.optimizer as torch_optimizer
from torch.optim import Optimizer

from anode.engine import native
from anode.models.fields import MLPField
from anode.models.flow import Flow
from anode.models.model import Model
from anode.models.nets import NeuralODE
from anode.ode.control import PID
from anode.ode.field import is_hooked
from anode.train.optimizers import Adam
from anode.train.parts import Parts, compiled_parts
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.protocol import Protocol
    from anode.train.training import Training

TAKEN = {"method", "rtol", "atol", "controller", "control", "gradient", "max_steps", "step_size", "engine"}
"""The solver settings that the engine supports in training; all others must have their defaults."""

SOLVE = {"run", "_run_once", "solve", "start_and_solve", "solve_from"}
"""The methods of models and flows that run a solve. The engine calls none of them."""


def parts_of(training: Training) -> Parts:
    """Return the compiled parts of the model, or why the engine cannot run the training."""
    if why := model_obstacle(training.network) or _settings_obstacle(training):
        return Parts(obstacle=why)
    found = compiled_parts(training)  # last, because it may have to trace the parts
    return found if found.obstacle else replace(found, obstacle=_parts_obstacle(training, found))


def model_obstacle(model: Model) -> str:
    """Return why a model does more than augmentation, flow and head; empty if it does not."""
    if type(model) is not NeuralODE:
        return "the model is not a NeuralODE"
    flow = model.flow
    pieces = (model, flow, flow.augment, model.head, *([flow.field] if isinstance(flow.field, MLPField) else ()))
    checks = (
        (type(flow) is not Flow, "the flow is not an anode.Flow"),
        (any(map(is_hooked, model.modules())), "the model has hooks"),
        (any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters()), "parameters have hooks"),
        (any(SOLVE & piece.__dict__.keys() for piece in pieces), "the model was modified"),
        (flow.norm is not None, "there is a norm"),
    )
    return next((text for applies, text in checks if applies), "")


def _settings_obstacle(training: Training) -> str:
    """Return which setting of the run the engine does not support in training, whatever the field; empty if none."""
    protocol, parameters, data = training.protocol, training.parameters, training.protocol.data
    assert isinstance(training.network, NeuralODE)
    like, alone, solver = parameters[0], protocol.members is None, training.network.flow.solver
    own = {id(p) for p in training.network.parameters()}
    checks = (
        (not native.instruction_sets(), native.MISSING),
        (solver.engine == "torch", 'engine is "torch"'),
        (solver.engine == "auto" and os.environ.get("ANODE_ENGINE") == "torch", "ANODE_ENGINE=torch is set"),
        (solver.noise is not None, "noise is added to the state after every step"),
        (solver.control not in ("auto", "joint" if alone else "member"), "control is not the usual one"),
        (not solver.gradient_method.compiled, f'gradient="{solver.gradient_method.name}" is not compiled'),
        (not all(isinstance(tol, float) for tol in (solver.rtol, solver.atol)), "a tolerance is not a number"),
        (type(solver.step_controller) is not PID, "the controller is not a plain PID"),
        (bool(solver.changes().keys() - TAKEN), "the solver has settings that the engine does not support in training"),
        (torch.is_autocast_enabled("cpu"), "autocast is on"),
        (like.device.type != "cpu" or like.dtype not in native.DTYPES, f"it is {like.dtype} on {like.device}"),
        (not all(p.is_contiguous() and p.dtype == like.dtype for p in parameters), "parameters are not contiguous"),
        (not own.issuperset(map(id, parameters)), "some parameters of the model were replaced"),
        (not all(p.requires_grad for p in parameters), "some parameters are frozen"),
        (isinstance(data, Points) and data.x.device != like.device, "the points are on another device"),
        (not protocol.has_loss_of_ours, "the loss is not a built-in one"),
        (not training.ranks.alone, "there are several processes"),
        (not alone and protocol.on_failure != "stop", 'on_failure is not "stop"'),
    )
    return next((text for applies, text in checks if applies), "")


def _parts_obstacle(training: Training, parts: Parts) -> str:
    """Return why the engine cannot train the compiled parts together on such batches; empty if it can."""
    trained = {id(p) for p in training.parameters}
    moved = [id(p) for p in parts.tensors if id(p) in trained]
    if len(set(moved)) != len(moved):
        return "parameters are shared"
    data, size = training.protocol.data, training.protocol.batch_size
    sizes = {size, len(data) % size} - {0} if isinstance(data, Points) else ()
    return next(filter(None, map(parts.unlike, sizes)), "")


def in_memory(protocol: Protocol) -> Points | None:
    """Return the points of a run if batches are taken from them as they are; otherwise ``None``."""
    return protocol.data if isinstance(protocol.data, Points) and protocol.transform is None else None


def moves_by_adam(training: Training) -> bool:
    """Whether the engine can update the parameters itself, by our Adam without schedule and clipping."""
    protocol, optimizer = training.protocol, training.optimizer
    plain = protocol.scheduler is None and protocol.clip is None and in_memory(protocol) is not None
    plain = plain and type(optimizer) is Adam and not _is_hooked(optimizer)
    return plain and len(optimizer.param_groups) == 1 and _has_moments(training)


def _is_hooked(optimizer: Optimizer) -> bool:
    """Whether a step of an optimizer does something other than its class's ``step``, such as running hooks."""
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    of_all = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return any(hooks) or any(of_all) or "step" in optimizer.__dict__


def _has_moments(training: Training) -> bool:
    """Whether the optimizer's moments have the parameters' memory layout: the engine writes to their addresses."""
    for parameter in training.parameters:
        found = training.optimizer.state.get(parameter, {})
        if found.keys() != {"mean", "square"}:
            return False
        if any(m.shape != parameter.shape or m.dtype != parameter.dtype for m in found.values()):
            return False
        if not all(m.is_contiguous() for m in found.values()):
            return False
    return True
