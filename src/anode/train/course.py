"""Iterations by the compiled engine: many in one call, with the same results up to rounding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from anode.engine import native
from anode.models.augment import Zeros
from anode.models.fields import MLPField
from anode.models.flow import Flow
from anode.models.layers import LinearHead
from anode.models.model import Model
from anode.models.nets import NeuralODE
from anode.ode.control import PID
from anode.ode.field import is_hooked
from anode.ode.inputs import even_steps
from anode.train.members import name_of
from anode.train.optimizers import Adam
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.training import Training

LOSSES = ("huber", "mse", "cross_entropy")
"""The losses that the engine has, in its order."""
TAKEN = {"method", "rtol", "atol", "controller", "control", "gradient", "max_steps", "step_size", "engine"}
"""The settings of a solver that the engine's training knows; others have to be the usual ones."""
SECONDS = 0.1
"""How long a call should take: short for those who wait for Ctrl-C or look at a progress bar, long for a processor."""


class Course:
    """A training run that the compiled engine can take over for some iterations at a time.

    Args:
        training: The run; :func:`obstacle` has found nothing against it.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.protocol = training, training.protocol
        model, protocol = training.network, training.protocol
        state, (group,) = training.optimizer.state, training.optimizer.param_groups
        assert isinstance(model, NeuralODE)
        assert isinstance(protocol.data, Points)
        field = model.flow.field.perceptron()  # type: ignore[operator]
        solver, data = model.flow.solver, protocol.data
        assert isinstance(solver.step_controller, PID)
        knots: list[float] = []
        if solver.step_size is not None:
            knots = even_steps(0.0, model.flow.t1, solver.step_size, solver.max_steps)
        # The engine works on these very tensors, and takes them in the order of its own.
        parameters = [*field.parameters, model.head.weight, model.head.bias]
        like = parameters[0]
        targets = data.y if protocol.classifies else data.y.to(like)
        weights = None if data.weights is None else data.weights.to(like)
        # Addresses are handed over, so everything has to live as long as this.
        self._kept = [None if part is None else self._laid_out(part) for part in (data.x, targets, weights)]
        self._signature = signature(training)
        training.optimizer.zero_grad()
        self._course = native.extension.Course(
            is_double=parameters[0].dtype == torch.float64,
            method=native.method_for(solver.tableau),
            t1=model.flow.t1,
            knots=knots,
            rtol=solver.rtol,
            atol=solver.atol,
            max_steps=min(solver.max_steps, 2**62),
            controller=solver.step_controller.numbers,
            grouped=protocol.members is not None,
            program=native.handle(field.program),
            members=protocol.members or 1,
            inputs=model.in_features,
            outputs=model.head.out_features,
            loss=LOSSES.index(protocol.loss_name),
            x=self._place(self._kept[0]),
            y=self._place(self._kept[1]),
            weights=self._place(self._kept[2]),
            parameters=[p.data_ptr() for p in parameters],
            means=[state[p]["mean"].data_ptr() for p in parameters],
            squares=[state[p]["square"].data_ptr() for p in parameters],
            lr=rates_of(training),
            weight_decay=group["weight_decay"],
            adam=(*group["betas"], group["eps"]),
        )
        self._at_once = 1

    def _laid_out(self, points: Tensor) -> Tensor:
        """The same with the points of a member one after the other; members may share them."""
        if self.protocol.members is not None and points.stride(0) == 0:
            return points[0].contiguous().expand_as(points)
        return points.contiguous()

    def _place(self, points: Tensor | None) -> tuple[int, int]:
        """Where the points of the first member lie, and how far from them those of the next."""
        if points is None:
            return 0, 0
        return points.data_ptr(), 0 if self.protocol.members is None else points.stride(0)

    @property
    def fits(self) -> bool:
        """Whether the model is still the one that this was made for."""
        return not obstacle(self.training) and signature(self.training) == self._signature

    def iterate(self, most: int) -> Iterator[dict[str, Tensor]]:
        """Make some iterations, and give what is recorded of each.

        There are none if the next iteration fails for a model by itself: somebody else has to deal with it.

        Args:
            most: How many there may be; fewer are made if that takes long, or at the end of an epoch.
        """
        protocol, training = self.protocol, self.training
        done, order, members = len(training.record), protocol.order, protocol.members or 1
        first = done % order.batches
        count = max(min(most, order.batches - first, self._at_once), 1)
        numbers = order.of_epoch(done // order.batches)
        numbers_of = partial(torch.empty, dtype=torch.int64, device="cpu")
        losses, accuracies = torch.empty(2, count, members, dtype=torch.float64, device="cpu")
        counts, (failed_at, why) = numbers_of(4, count, members), numbers_of(2, members)
        start = time.perf_counter()
        self._course.train(
            order=self._place(numbers),
            points=order.points,
            size=order.batch_size,
            first=first,
            count=count,
            steps=training.optimizer.param_groups[0]["steps"],
            frozen=training.members.frozen.data_ptr(),
            threads=torch.get_num_threads(),
            loss=losses.data_ptr(),
            accuracy=accuracies.data_ptr() if protocol.classifies else 0,
            counts=[each.data_ptr() for each in counts],
            failed_at=failed_at.data_ptr(),
            why=why.data_ptr(),
        )
        increment_version(training.parameters)  # as autograd has not seen that they were changed
        seconds = (time.perf_counter() - start) / count
        self._at_once = min(int(SECONDS / max(seconds, 1e-9)) + 1, 2 * self._at_once)
        made = int(failed_at[0]) if protocol.members is None else count
        failures: dict[int, dict[int, str]] = {}  # by iteration and member
        for member in (why != 0).nonzero().flatten().tolist() if protocol.members is not None else ():
            failures.setdefault(int(failed_at[member]), {})[member] = name_of(int(why[member]))
        for i in range(made):
            training.optimizer.param_groups[0]["steps"] += 1
            if i in failures:
                training.fail(failures[i])
            nfe, accepted, rejected, backward = (each[i] for each in counts)
            row = {"loss": losses[i], "nfe": nfe, "accepted": accepted, "rejected": rejected}
            if protocol.classifies:
                row["accuracy"] = accuracies[i]
            yield {**row, "nfe_backward": backward.max(), "seconds": torch.tensor(seconds)}
            if training.members.none_left:
                return


def obstacle(training: Training) -> str:
    """Why the compiled engine cannot make the iterations of a run; nothing if it can."""
    model, protocol = training.network, training.protocol
    if why := _made_otherwise(model):
        return why
    assert isinstance(model, NeuralODE)
    flow, parameters, data = model.flow, training.parameters, protocol.data
    assert isinstance(flow.field, MLPField)
    if not isinstance(data, Points):
        return "the batches are made by somebody else"
    like, alone = parameters[0], protocol.members is None
    own = [*flow.field.parameters(), model.head.weight, model.head.bias]
    checks = (
        (not native.instruction_sets(), native.MISSING),
        (flow.solver.engine == "torch", 'engine is "torch"'),
        (flow.field.perceptron() is None, "the field was changed"),
        (flow.solver.control not in ("auto", "joint" if alone else "member"), "control is not the usual one"),
        (not flow.solver.gradient_method.compiled, f'gradient="{flow.solver.gradient_method.name}" is not compiled'),
        (not all(isinstance(tol, float) for tol in (flow.solver.rtol, flow.solver.atol)), "a tolerance is no number"),
        (type(flow.solver.step_controller) is not PID, "the controller is not a plain PID"),
        (bool(flow.solver.changes().keys() - TAKEN), "the solver has settings that the engine's training lacks"),
        (like.device.type != "cpu" or like.dtype not in native.DTYPES, f"it is {like.dtype} on {like.device}"),
        (not all(p.is_contiguous() and p.dtype == like.dtype for p in parameters), "parameters lie scattered"),
        ([id(p) for p in model.parameters()] != [id(p) for p in parameters], "some parameters are not trained"),
        (not all(p.requires_grad for p in own), "some parameters are frozen"),
        (len({id(p) for p in own}) != len(own), "parameters are shared"),
        (any(p._backward_hooks or p._post_accumulate_grad_hooks for p in own), "parameters have hooks"),
        (model.head.weight.shape != (*own[-1].shape, flow.field.dim), "the linear map is of another size"),
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


def _made_otherwise(model: Model) -> str:
    """How a model is not what ``NeuralODE(in_features, out_features)`` puts together; nothing if it is."""
    if type(model) is not NeuralODE:
        return "the model is no NeuralODE"
    flow = model.flow
    pieces = (model, flow, flow.augment, flow.field, model.head)
    checks = (
        (type(flow) is not Flow, "the flow is not anode's"),
        (not isinstance(flow.field, MLPField), "the field is no MLPField"),
        (type(flow.augment) is not Zeros, "the augmentation is not zeros"),
        (type(model.head) is not LinearHead, "the head is not anode's linear map"),
        (any(map(is_hooked, model.modules())), "the model has hooks"),
        (any({"run", "solve", "_solve"} & piece.__dict__.keys() for piece in pieces), "the model was changed"),
        (flow.norm is not None, "there is a norm"),
    )
    return next((text for applies, text in checks if applies), "")


def rates_of(training: Training) -> list[float]:
    """The learning rate of each member, as the optimiser has it now."""
    rate, members = training.optimizer.param_groups[0]["lr"], training.protocol.members or 1
    return rate.tolist() if isinstance(rate, Tensor) and rate.ndim else [float(rate)] * members


def signature(training: Training) -> tuple[Any, ...]:
    """What has to stay as it is: where everything lies, what is trained and how, and how the flow is solved."""
    model, state = training.network, training.optimizer.state
    group = training.optimizer.param_groups[0]
    moved = (*rates_of(training), group["weight_decay"], *group["betas"], group["eps"])
    flow = getattr(model, "flow", None)
    solved = () if flow is None else (flow.t1, flow.solver)
    moments = (each.data_ptr() for p in training.parameters for each in state[p].values())
    places = ((p.data_ptr(), p.shape, p.requires_grad) for p in model.parameters())
    activations = (getattr(part, "activation", None) for part in model.modules())
    return (*places, *moments, *moved, *solved, *activations)


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
