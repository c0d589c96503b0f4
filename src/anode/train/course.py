"""Iterations by the compiled engine: many in one call, with the same results up to rounding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anode.models.augment import Zeros
from anode.models.flow import Flow
from anode.models.layers import Linear
from anode.models.nets import NeuralODE
from anode.ode import native
from anode.ode.gradients import GRADIENTS, Discrete
from anode.ode.inputs import even_steps
from anode.ode.solution import Status
from anode.ode.tableaus import TABLEAUS
from anode.train.failures import LOSS

if TYPE_CHECKING:
    from anode.train.fit import Training

LOSSES = ("huber", "mse", "cross_entropy")
"""The losses that the engine has, in its order."""
GRADIENT = LOSS + 1
"""Comes after the status of a loss that is not finite: a gradient is not."""
SECONDS = 0.1
"""How long a call should take: short for those who wait for Ctrl-C or look at a progress bar, long for a processor."""


class Course:
    """A training run that the compiled engine can take over for some iterations at a time.

    Args:
        training: The run; :func:`obstacle` has found nothing against it.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.protocol = training, training.protocol
        model, adam, protocol = training.model, training.adam, training.protocol
        assert isinstance(model, NeuralODE)
        field = model.flow.field.perceptron()  # type: ignore[operator]
        solver, data = model.flow.solver, protocol.data
        step_size = solver["step_size"]
        # The engine works on these very tensors, and takes them in the order of its own.
        parameters = [*field.parameters, model.head.weight, model.head.bias]
        index = {id(p): i for i, p in enumerate(adam.parameters)}
        order = [index[id(p)] for p in parameters]
        targets = data.y if protocol.classifies else data.y.to(parameters[0].dtype)
        weights = None if data.weights is None else data.weights.to(parameters[0].dtype)
        self._kept = (data.x, targets, weights, parameters)
        self._course = native.extension.Course(
            is_double=parameters[0].dtype == torch.float64,
            method=native.method_for(TABLEAUS[solver["method"]]),
            t1=model.flow.t1,
            knots=[] if step_size is None else even_steps(0.0, model.flow.t1, step_size, solver["max_steps"]),
            rtol=solver["rtol"],
            atol=solver["atol"],
            max_steps=solver["max_steps"],
            grouped=protocol.members is not None,
            sizes=field.sizes,
            activation=native.ACTIVATIONS.index(field.activation),
            time=field.time,
            members=protocol.members or 1,
            inputs=model.in_features,
            outputs=model.head.bias.shape[-1],
            loss=LOSSES.index(protocol.loss_name),
            x=self._place(data.x),
            y=self._place(targets),
            weights=(0, 0) if weights is None else self._place(weights),
            parameters=[p.data_ptr() for p in parameters],
            means=[adam.means[i].data_ptr() for i in order],
            squares=[adam.squares[i].data_ptr() for i in order],
            lr=protocol.lr,
            weight_decay=adam.weight_decay,
            adam=(*adam.betas, adam.eps),
        )
        self._at_once = 1

    def _place(self, tensor: Tensor) -> tuple[int, int]:
        """Where the points of the first member lie, and how far from them those of the next."""
        return tensor.data_ptr(), 0 if self.protocol.members is None else tensor.stride(0)

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
        losses, accuracies = torch.empty(2, count, members, dtype=torch.float64)
        counts = torch.empty(4, count, members, dtype=torch.int64)
        failed_at, why = torch.empty(2, members, dtype=torch.int64)
        start = time.perf_counter()
        self._course.train(
            order=self._place(numbers),
            points=order.points,
            size=order.batch_size,
            first=first,
            count=count,
            steps=training.adam.steps,
            frozen=training.members.frozen.data_ptr(),
            threads=torch.get_num_threads(),
            loss=losses.data_ptr(),
            accuracy=accuracies.data_ptr() if protocol.classifies else 0,
            counts=[each.data_ptr() for each in counts],
            failed_at=failed_at.data_ptr(),
            why=why.data_ptr(),
        )
        seconds = (time.perf_counter() - start) / count
        self._at_once = min(int(SECONDS / max(seconds, 1e-9)) + 1, 2 * self._at_once)
        made = int(failed_at[0]) if protocol.members is None else count
        failures: dict[int, dict[int, str]] = {}  # by iteration and member
        for member in (why != 0).nonzero().flatten().tolist() if protocol.members is not None else ():
            failures.setdefault(int(failed_at[member]), {})[member] = _name(int(why[member]))
        for i in range(made):
            training.adam.steps += 1
            if i in failures:
                training.fail(failures[i])
            nfe, accepted, rejected, backward = (each[i] for each in counts)
            row = {"loss": losses[i], "nfe": nfe, "accepted": accepted, "rejected": rejected}
            if protocol.classifies:
                row["accuracy"] = accuracies[i]
            yield {**row, "nfe_backward": backward.max(), "seconds": torch.tensor(seconds)}
            if training.members.none_left:
                return


def _name(status: int) -> str:
    return "GRADIENT" if status == GRADIENT else "LOSS" if status == LOSS else Status(status).name


def obstacle(training: Training) -> str:
    """Why the compiled engine cannot make the iterations of a run; nothing if it can."""
    model, protocol = training.model, training.protocol
    if type(model) is not NeuralODE or not _is_plain(model):
        return "the model is no NeuralODE, or one that was changed"
    flow, parameters, data = model.flow, training.adam.parameters, protocol.data
    like, alone = parameters[0], protocol.members is None
    checks = (
        (not native.instruction_sets(), native.MISSING),
        (flow.solver["engine"] == "torch", 'engine is "torch"'),
        (flow.field.perceptron() is None, "the field is no MLPField, or one that was changed"),  # type: ignore[operator]
        (flow.control not in (None, "joint" if alone else "member"), "control is not the usual one"),
        (not isinstance(GRADIENTS.get(flow.solver["gradient"]), Discrete), 'gradient is not "discrete"'),
        (any(isinstance(flow.solver[name], Tensor) for name in ("rtol", "atol")), "a tolerance is a tensor"),
        (like.device.type != "cpu" or like.dtype not in native.DTYPES, f"it is {like.dtype} on {like.device}"),
        (not all(p.is_contiguous() and p.dtype == like.dtype for p in parameters), "parameters lie scattered"),
        (len(parameters) != sum(1 for _ in model.parameters()), "some parameters are not trained"),
        (data.x.dtype != like.dtype or not (data.x if alone else data.x[0]).is_contiguous(), "the data lies scattered"),
        (not protocol.has_loss_of_ours, "the loss is none of ours"),
        (not training.ranks.alone, "there are several processes"),
        (not alone and protocol.on_failure != "stop", 'on_failure is not "stop"'),
    )
    return next((text for applies, text in checks if applies), "")


def _is_plain(model: NeuralODE) -> bool:
    """Whether a model is no more than what :class:`anode.NeuralODE` puts together."""
    parts = (type(model.flow), type(model.flow.augment), type(model.head)) == (Flow, Zeros, Linear)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = any(getattr(module, name) for module in model.modules() for name in hooks)
    return parts and not hooked and not {"run", "forward"} & set(model.__dict__) and model.flow.norm is None
