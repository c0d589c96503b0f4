"""Whether the compiled engine can make the iterations of a training run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from anode.engine import native
from anode.engine.compiled import Compiled
from anode.models.augment import Zeros
from anode.models.ensemble import Stacked
from anode.models.fields import MLPField
from anode.models.flow import Flow
from anode.models.layers import LinearHead
from anode.models.model import Model
from anode.models.nets import NeuralODE
from anode.ode.control import PID
from anode.ode.field import is_hooked
from anode.train.followed import Followed, followed
from anode.train.optimizers import Adam
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.training import Training

TAKEN = {"method", "rtol", "atol", "controller", "control", "gradient", "max_steps", "step_size", "engine"}
"""The settings of a solver that the engine's training knows; others have to be the usual ones."""


def eligible(training: Training) -> Followed:
    """What the engine computes in place of the model's field, or why it cannot make the iterations of a run."""
    if why := _made_otherwise(training.network) or _done_otherwise(training):
        return Followed(None, obstacle=why)
    found = followed(training)  # last, as it may have to trace the field
    if found.obstacle or found.field is None:
        return found
    return replace(found, obstacle=_trained_otherwise(training, found.field))


def linear_of(head: nn.Module) -> nn.Linear | None:
    """The linear map with a bias that a head is; ``None`` for any other head."""
    inner = head.module if type(head) is Stacked else head
    return inner if type(inner) in (LinearHead, nn.Linear) and isinstance(inner.bias, Tensor) else None  # type: ignore[return-value]


def _made_otherwise(model: Model) -> str:
    """How a model is not a flow from zeros and a linear map; nothing if it is."""
    if type(model) is not NeuralODE:
        return "the model is no NeuralODE"
    flow = model.flow
    pieces = (model, flow, flow.augment, model.head, *([flow.field] if isinstance(flow.field, MLPField) else ()))
    checks = (
        (type(flow) is not Flow, "the flow is not anode's"),
        (type(flow.augment) is not Zeros or flow.augment.dim != -1, "the augmentation is not zeros"),
        (linear_of(model.head) is None, "the head is not a linear map with a bias"),
        (any(map(is_hooked, model.modules())), "the model has hooks"),
        (any({"run", "solve", "_solve"} & piece.__dict__.keys() for piece in pieces), "the model was changed"),
        (flow.norm is not None, "there is a norm"),
    )
    return next((text for applies, text in checks if applies), "")


def _done_otherwise(training: Training) -> str:
    """What is asked for that the engine's training lacks, whatever the field is."""
    protocol, parameters, data = training.protocol, training.parameters, training.protocol.data
    assert isinstance(training.network, NeuralODE)
    if not isinstance(data, Points):
        return "the batches are made by somebody else"
    like, alone, solver = parameters[0], protocol.members is None, training.network.flow.solver
    own = {id(p) for p in training.network.parameters()}
    checks = (
        (not native.instruction_sets(), native.MISSING),
        (solver.engine == "torch", 'engine is "torch"'),
        (solver.engine == "auto" and os.environ.get("ANODE_ENGINE") == "torch", "ANODE_ENGINE=torch is set"),
        (solver.noise is not None, "noise is added to the state after every step"),
        (solver.control not in ("auto", "joint" if alone else "member"), "control is not the usual one"),
        (not solver.gradient_method.compiled, f'gradient="{solver.gradient_method.name}" is not compiled'),
        (not all(isinstance(tol, float) for tol in (solver.rtol, solver.atol)), "a tolerance is no number"),
        (type(solver.step_controller) is not PID, "the controller is not a plain PID"),
        (bool(solver.changes().keys() - TAKEN), "the solver has settings that the engine's training lacks"),
        (like.device.type != "cpu" or like.dtype not in native.DTYPES, f"it is {like.dtype} on {like.device}"),
        (not all(p.is_contiguous() and p.dtype == like.dtype for p in parameters), "parameters lie scattered"),
        (not own.issuperset(map(id, parameters)), "some parameters are no longer those of the model"),
        (not all(p.requires_grad for p in parameters), "some parameters are frozen"),
        (any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters), "parameters have hooks"),
        (any(part.device != like.device for part in (data.x, data.y)), "the points are on another device"),
        (data.x.dtype != like.dtype or data.x.ndim != (2 if alone else 3), "points are no rows of numbers"),
        (not protocol.has_loss_of_ours, "the loss is none of ours"),
        (type(training.optimizer) is not Adam, f"the optimizer is {type(training.optimizer).__name__}"),
        (len(training.optimizer.param_groups) != 1, "the optimizer has several groups of parameters"),
        (not _has_moments(training), "the optimizer's state is not that of these parameters"),
        (protocol.scheduler is not None, "there is a scheduler"),
        (protocol.clip is not None, "gradients are clipped"),
        (protocol.transform is not None, "there is a transform"),
        (not training.ranks.alone, "there are several processes"),
        (not alone and protocol.on_failure != "stop", 'on_failure is not "stop"'),
    )
    return next((text for applies, text in checks if applies), "")


def _trained_otherwise(training: Training, field: Compiled) -> str:
    """How the parameters are not those that the engine moves, given what it computes in place of the field."""
    model = training.network
    assert isinstance(model, NeuralODE)
    head, trained = linear_of(model.head), {id(p) for p in training.parameters}
    assert head is not None
    moved = [id(p) for p in (*field.tensors, head.weight, head.bias) if id(p) in trained]
    front = () if training.protocol.members is None else (training.protocol.members,)
    checks = (
        (not trained.issuperset({id(head.weight), id(head.bias)}), "some parameters of the head are not trained"),
        (len(set(moved)) != len(moved), "parameters are shared"),
        (head.weight.shape != (*head.bias.shape, field.program.dim), "the linear map is of another size"),
        (head.bias.shape[:-1] != front, "the linear map is of another size"),
    )
    return next((text for applies, text in checks if applies), "")


def _has_moments(training: Training) -> bool:
    """Whether the optimiser holds moments that lie as the parameters do: the engine writes to their addresses."""
    for parameter in training.parameters:
        found = training.optimizer.state.get(parameter, {})
        if found.keys() != {"mean", "square"}:
            return False
        if any(m.shape != parameter.shape or m.dtype != parameter.dtype for m in found.values()):
            return False
        if not all(m.is_contiguous() for m in found.values()):
            return False
    return True
