"""The checked arguments of a training run: everything that its result depends on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property
from numbers import Number, Real
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import as_seed, check_function, describe, lookup, number, require
from anode.models.model import AnyModule, Model, Outcome
from anode.models.nets import NeuralODE
from anode.train.evaluation import Snapshots
from anode.train.losses import LOSSES, Loss, accuracy, check_targets, default_loss, losses_by, takes_outcome
from anode.train.optimizers import LR, OPTIMIZERS, MakeOptimizer, MakeScheduler
from anode.train.points import Order, Points
from anode.train.ranks import WHOLE, Ranks, Share
from anode.train.regularisers import Regularised
from anode.train.streams import Batch, Data, Stream, data_of
from anode.train.trial import try_on

BATCH = 64
"""Default batch size."""
WITH_FLOW = "a Flow, a NeuralODE and a DensityFlow have one; a model of your own returns it from first_flow()"
ON_FAILURE = {
    "stop": "freeze a member, or stop training a single model",
    "skip": "skip the iteration and continue with the next",
    "raise": "raise an error",
}
"""What to do if an iteration fails."""


class Protocol:
    """The arguments of :func:`anode.fit` that the result depends on, besides the model.

    They are checked against each other and, with one point of each dataset, against the model.

    Attributes:
        members: Number of members of a stack; ``None`` for a single model.
        lr, seeds: Lists with one value per member, or one for a single model.
        loss: The loss function; ``loss_name`` is its name.
        classifies: Whether the targets are classes.
    """

    def __init__(
        self,
        model: Model,
        data: Data,
        validation: Data | None,
        *,
        batch_size: int | None,
        lr: float | Sequence[float] | None,
        weight_decay: float | None,
        optimizer: str | MakeOptimizer,
        scheduler: MakeScheduler | None,
        clip: float | None,
        transform: Callable[[Tensor], Tensor] | None,
        loss: str | Loss | None,
        seed: int | Sequence[int],
        snapshots: Snapshots | None,
        evaluate_every: int | None,
        check_every: int | None,
        patience: int | None,
        on_failure: str,
    ) -> None:
        like = next((p for p in model.parameters() if p.requires_grad), None)
        if like is None:
            kind = type(model.module if isinstance(model, AnyModule) else model).__name__
            raise ValueError(f"model: takes a model with parameters to train, got {kind!r}")
        self.members, self.snapshots, self.transform = model.members, snapshots, transform
        self.seeds = [as_seed(each, bits=40) for each in per_member("seed", seed, self.members, following=True)]
        self.data = data_of("data", data, self.members, self.seeds[0])
        self.validation = None if validation is None else data_of("validation", validation, self.members, self.seeds[0])
        self.batch_size = _batch_size(batch_size, self.data)
        self._set_optimisation(optimizer, lr, weight_decay, scheduler)
        self.clip = number("clip", clip, optional=True, finite=True)
        self.evaluate_every = number("evaluate_every", evaluate_every, whole=True, optional=True)
        self.check_every = number("check_every", check_every, whole=True, optional=True)
        solved = self.check_every is None or model.first_flow() is not None
        require(solved, "check_every", check_every, f"None for a model without a flow: {WITH_FLOW}")
        self.patience = number("patience", patience, whole=True, optional=True)
        lookup("on_failure", on_failure, ON_FAILURE)
        self.on_failure = on_failure
        if transform is not None:
            check_function("transform", transform, "a function that maps the points of a batch to points", 1)
        self._check_combination()
        given = model.default_loss if loss is None else loss
        if isinstance(given, Regularised) and given.loss is None:
            given = copy(given)
            given.loss = model.default_loss
        self._set_loss(model, default_loss(self.data.first(like)[1]) if given is None else given)
        self.classifies = try_on(model, self, like)

    def _set_optimisation(
        self,
        optimizer: str | MakeOptimizer,
        lr: float | Sequence[float] | None,
        weight_decay: float | None,
        scheduler: MakeScheduler | None,
    ) -> None:
        """Check and set optimizer, learning rate, weight decay and scheduler."""
        if isinstance(optimizer, str):
            lookup("optimizer", optimizer, OPTIMIZERS)
            alike = lr is None or isinstance(lr, Number) or (optimizer == "adam" and scheduler is None)
            takes = 'one number for all members, unless optimizer is "adam" and scheduler is None'
            require(alike or self.members is None, "lr", lr, takes)
        else:
            example = "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
            takes = f"one of {', '.join(OPTIMIZERS)}, or a function of a list of parameters, such as {example}"
            check_function("optimizer", optimizer, takes, 1)
            for name, value in (("lr", lr), ("weight_decay", weight_decay)):
                require(value is None, name, value, "None if optimizer is a function, which sets it")
        if scheduler is not None:
            takes = "a function of the optimizer, such as lambda optimizer: StepLR(optimizer, step_size=10), or None"
            check_function("scheduler", scheduler, takes, 1)
        self.optimizer, self.scheduler = optimizer, scheduler
        self.lr = [_rate(each) for each in per_member("lr", LR if lr is None else lr, self.members)]
        self.weight_decay: float = number("weight_decay", weight_decay or 0.0, zero=True, finite=True)

    def _set_loss(self, model: Model, loss: str | Loss) -> None:
        self.loss: Loss = loss if callable(loss) else lookup("loss", loss, LOSSES)
        self.loss_name = loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss))
        takes = f"one of {', '.join(LOSSES)}, or a function of predictions and targets"
        if isinstance(loss, type):
            raise TypeError(f"loss: takes {takes}, got the class {loss.__name__}; pass an object, {loss.__name__}()")
        check_function("loss", self.loss, takes, 2)
        own = loss.loss if isinstance(loss, Regularised) else loss
        known = {id(p) for p in model.parameters()}
        if isinstance(own, nn.Module) and any(p.requires_grad and id(p) not in known for p in own.parameters()):
            hint = "make it a part of the model to train them, or freeze them with loss.requires_grad_(False)"
            warnings.warn(f"loss: fit does not train the parameters of {type(own).__name__}; {hint}", stacklevel=7)
        solved = not isinstance(loss, Regularised) or model.first_flow() is not None
        require(solved, "loss", loss, f"no regularisers for a model without a flow: {WITH_FLOW}")

    def _check_combination(self) -> None:
        """Raise ``ValueError`` for arguments that cannot be combined."""
        stacked = self.members is not None
        alone = "None for a stack of models, whose members would end at different times"
        require(self.patience is None or not stacked, "patience", self.patience, alone)
        for name, value in (("patience", self.patience), ("evaluate_every", self.evaluate_every)):
            takes = "None without validation data (pass validation=...)"
            require(value is None or self.validation is not None, name, value, takes)
        takes = '"stop" or "raise" for a stack of models, whose other members continue if one fails'
        require(not stacked or self.on_failure != "skip", "on_failure", self.on_failure, takes)

    @property
    def dims(self) -> int:
        """The number of leading dimensions for members and points."""
        return 1 if self.members is None else 2

    @property
    def has_loss_of_ours(self) -> bool:
        """Whether the loss is one of the built-in losses."""
        return LOSSES.get(self.loss_name) is self.loss

    @cached_property
    def _takes_outcome(self) -> bool:
        return takes_outcome(self.loss)

    def losses(self, outcome: Outcome, targets: Tensor) -> Tensor:
        """Return the losses of the elements or samples; NaN without a prediction."""
        if outcome.unfinished:
            return torch.full(targets.shape[: self.dims], torch.nan, device=targets.device)
        if not self.has_loss_of_ours:
            return losses_by(self.loss, outcome if self._takes_outcome else outcome.prediction, targets, self.dims)
        if isinstance(self.data, Stream) or isinstance(self.validation, Stream):  # other data has been checked before
            check_targets("data", self.loss_name, outcome.prediction, targets, self.dims)
        return self.loss(outcome.prediction, targets)

    def accuracy(self, outcome: Outcome, targets: Tensor) -> Tensor:
        """Return the fraction of points whose class is predicted: one number, or one per member; NaN without any."""
        if outcome.unfinished:
            return torch.tensor(torch.nan)
        return accuracy(outcome.prediction.detach(), targets, self.members)

    def run_options(self, model: Model, targets: Tensor) -> dict[str, Any]:
        """Return options to run the model in the next iteration.

        They are those that targets determine, one path of the noise, and those of regularisers.
        """
        several = isinstance(model, NeuralODE) and model.flow.paths({}) > 1  # after model.eval()
        options = {**model.options_for(targets), **({"paths": 1} if several else {})}
        if not isinstance(self.loss, Regularised):
            return options
        flow = model.first_flow()
        assert flow is not None
        return options | self.loss.options(flow)

    @cached_property
    def order(self) -> Order:
        """The order of the points in each epoch."""
        assert isinstance(self.data, Points)
        return Order(self.seeds, len(self.data), self.batch_size, stacked=self.members is not None)

    @property
    def batches(self) -> int:
        """The number of batches per epoch."""
        return self.data.batches if isinstance(self.data, Stream) else self.order.batches

    def batch(self, iteration: int, ranks: Ranks, like: Tensor) -> tuple[Share, Batch]:
        """Return this process's share of an iteration's batch, and its points, targets and weights."""
        if isinstance(self.data, Stream):
            share, (x, y, weights) = WHOLE, self.data.batch(iteration, like)
        else:
            share = ranks.share(self.order.batch(iteration))
            x, y, weights = self.data.take(share.points, like)
        return share, (self.transformed(x), y, weights)

    def transformed(self, x: Tensor) -> Tensor:
        """Return the points of a training batch after ``transform``."""
        if self.transform is None:
            return x
        found = self.transform(x)
        alike = isinstance(found, Tensor) and found.shape[: self.dims] == x.shape[: self.dims]
        if not alike or found.dtype != x.dtype:
            takes = f"a function that returns as many points of the same dtype as it is given, {describe(x)}"
            raise TypeError(f"transform: takes {takes}, got one that returned {describe(found)}")
        return found

    def evaluates_after(self, iterations: int) -> bool:
        """Whether the validation set is evaluated after this number of iterations."""
        return iterations % (self.evaluate_every or self.batches) == 0

    def checks_after(self, iterations: int) -> bool:
        """Whether the solver's accuracy is checked after this number of iterations."""
        return self.check_every is not None and iterations % self.check_every == 0

    def settings(self) -> dict[str, Any]:
        """Return the settings as values that JSON can hold; rarely used settings only if they are not the default."""
        unusual: dict[str, Any] = {
            name: getattr(self, name) for name in ("evaluate_every", "check_every", "patience", "clip")
        }
        unusual |= {name: _called(getattr(self, name)) for name in ("scheduler", "transform")}
        unusual["optimizer"] = None if self.optimizer == "adam" else _called(self.optimizer)
        return {
            "batch_size": self.batch_size,
            "lr": self.lr if self.members else self.lr[0],
            "weight_decay": self.weight_decay,
            "loss": self.loss_name,
            "seed": self.seeds if self.members else self.seeds[0],
            **{name: value for name, value in unusual.items() if value is not None},
            **({} if self.on_failure == "stop" else {"on_failure": self.on_failure}),
        }


def per_member(name: str, value: Any, members: int | None, following: bool = False) -> list[Any]:
    """Return one value per member, from a sequence or a single number; ``following`` counts up from the number."""
    if isinstance(value, Number):
        return [value + i * following for i in range(members or 1)]  # type: ignore[operator]
    values = list(value) if isinstance(value, Iterable) else []
    takes = "one number" if members is None else f"one number, or one for each of {members} members"
    require(members is not None and len(values) == members, name, value, takes)
    return values


def _rate(value: Any) -> float:
    """Check a learning rate of any numeric type and return it as a float."""
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(number("lr", float(value) if is_number else value, finite=True))


def _batch_size(given: int | None, data: Points | Stream) -> int:
    if isinstance(data, Stream):
        require(given is None, "batch_size", given, "None if the data come in batches")
        return BATCH
    size: int = number("batch_size", min(BATCH, len(data)) if given is None else given, whole=True)
    require(size <= len(data), "batch_size", size, f"at most the {len(data)} points that there are")
    return size


def _called(function: Any) -> str | None:
    """Return the name of a function, without its address in memory."""
    if function is None or isinstance(function, str):
        return function
    return getattr(function, "__qualname__", None) or type(function).__qualname__
