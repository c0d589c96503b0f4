"""What a training run is asked to do: everything its result depends on, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Number
from typing import Any, Self

import torch
from torch import Tensor

from anode.checks import finite_rows, lookup, number, require
from anode.models.model import Model, Outcome, as_input
from anode.train.evaluation import Snapshots, evaluating
from anode.train.inputs import Data, data_of, per_member, rate, whole
from anode.train.losses import LOSSES, Loss, check_targets, default_loss, takes_outcome
from anode.train.optimizers import LR, OPTIMIZERS, MakeOptimizer, MakeScheduler
from anode.train.points import Order, Points
from anode.train.ranks import WHOLE, Ranks, Share
from anode.train.streams import Batch, Stream

BATCH = 64
"""Points in an iteration, if no number is given and there are as many."""
ON_FAILURE = {
    "stop": "a member is frozen as it was, a model by itself stops training",
    "skip": "the iteration changes nothing, and the next one has its turn",
    "raise": "an error",
}
"""What can be done when an iteration fails."""


@dataclass(frozen=True)
class Protocol:
    """Everything that the result of training depends on, besides the model. The attributes are :func:`anode.fit`'s.

    Attributes:
        members: How many models are trained at once; ``None`` for one by itself.
        lr, seeds: One per member, or the only one.
        loss: The function, and ``loss_name`` what it is called.
        classifies: Whether there are classes to get right.
    """

    members: int | None
    data: Points | Stream
    validation: Points | Stream | None
    batch_size: int
    lr: list[float]
    weight_decay: float
    optimizer: str | MakeOptimizer
    scheduler: MakeScheduler | None
    clip: float | None
    transform: Callable[[Tensor], Tensor] | None
    loss: Loss
    loss_name: str
    seeds: list[int]
    snapshots: Snapshots | None
    evaluate_every: int | None
    patience: int | None
    on_failure: str
    classifies: bool = False

    @classmethod
    def checked(cls, model: Model, data: Data, validation: Data | None, **given: Any) -> Self:
        """Check the arguments of :func:`anode.fit`, against each other and against the model.

        Args:
            model: What is trained.
            data, validation: What it is shown.
            **given: The other arguments that are attributes here, and ``seed``.
        """
        members = model.members
        trained = [p for p in model.parameters() if p.requires_grad]
        require(len(trained) > 0, "model", type(model).__name__, "a model with parameters to train")
        seeds = [whole("seed", each) for each in per_member("seed", given.pop("seed"), members, following=True)]
        points = data_of("data", data, members, seeds[0])
        looked_at = None if validation is None else data_of("validation", validation, members, seeds[0])
        loss = given.pop("loss")
        loss = default_loss(points.first(trained[0])[1]) if loss is None else loss
        given |= {
            **_optimisation(given, members),
            "batch_size": _batch_size(given["batch_size"], points),
            "loss": loss if callable(loss) else lookup("loss", loss, LOSSES),
            "loss_name": loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss)),
            "evaluate_every": number("evaluate_every", given["evaluate_every"], whole=True, optional=True),
            "patience": number("patience", given["patience"], whole=True, optional=True),
        }
        lookup("on_failure", given["on_failure"], ON_FAILURE)
        protocol = cls(members=members, data=points, validation=looked_at, seeds=seeds, **given)
        protocol.check_combination()
        return replace(protocol, classifies=protocol.check_model(model, trained[0]))

    def check_combination(self) -> None:
        """Refuse what does not go together."""
        stacked = self.members is not None
        alone = "nothing for a stack of models, whose members would end at different times"
        require(self.patience is None or not stacked, "patience", self.patience, alone)
        without = "nothing without validation data"
        require(self.patience is None or self.validation is not None, "patience", self.patience, without)
        takes = '"stop" or "raise" for a stack of models, whose members go on without those that fail'
        require(not stacked or self.on_failure != "skip", "on_failure", self.on_failure, takes)

    def check_model(self, model: Model, like: Tensor) -> bool:
        """Let the model see a point of everything it will see, so that what does not fit is found before the work.

        Returns:
            Whether there are classes to get right.
        """
        classifies = False
        for name, data in (("data", self.data), ("validation", self.validation)):
            if data is None:
                continue
            x, y, _ = data.first(like)
            prediction = _first_outcome(name, model, x, like).prediction
            if self.has_loss_of_ours:
                targets = data.y if isinstance(data, Points) else y
                check_targets(name, self.loss_name, prediction, targets, 1 if self.members is None else 2)
            elif default_loss(y) == "cross_entropy" and isinstance(prediction, Tensor):
                dims = 1 if self.members is None else 2
                classifies = y.ndim == dims and prediction.ndim == dims + 1
        if self.snapshots is not None:
            points = _snapshot_points(self.snapshots, self.members)
            features = _first_outcome("snapshots.x", model, points, like).features
            takes = "nothing for a model whose features are not one tensor"
            require(isinstance(features, Tensor), "snapshots", type(features).__name__, takes)
        return classifies or (self.has_loss_of_ours and self.loss_name == "cross_entropy")

    @property
    def has_loss_of_ours(self) -> bool:
        """Whether the loss is one of those that have names."""
        return LOSSES.get(self.loss_name) is self.loss

    @cached_property
    def _takes_outcome(self) -> bool:
        return takes_outcome(self.loss)

    def losses(self, outcome: Outcome, targets: Tensor) -> Tensor:
        """The losses of single elements or samples."""
        return self.loss(outcome if self._takes_outcome else outcome.prediction, targets)

    @cached_property
    def order(self) -> Order:
        """In which order points are seen."""
        assert isinstance(self.data, Points)
        return Order(self.seeds, len(self.data), self.batch_size, stacked=self.members is not None)

    @property
    def batches(self) -> int:
        """How many batches make an epoch."""
        return self.data.batches if isinstance(self.data, Stream) else self.order.batches

    def batch(self, iteration: int, ranks: Ranks, like: Tensor) -> tuple[Share, Batch]:
        """What an iteration sees: this process's share, and its points, targets and weights."""
        if isinstance(self.data, Stream):
            share, (x, y, weights) = WHOLE, self.data.batch(iteration, like)
        else:
            share = ranks.share(self.order.batch(iteration))
            x, y, weights = self.data.take(share.points, like)
        return share, (x if self.transform is None else self.transform(x), y, weights)

    def evaluates_after(self, iterations: int) -> bool:
        """Whether the validation set has its turn after so many iterations."""
        return iterations % (self.evaluate_every or self.batches) == 0

    def settings(self) -> dict[str, Any]:
        """How training goes, in numbers and words; less usual settings only where they differ from the usual ones."""
        unusual: dict[str, Any] = {name: getattr(self, name) for name in ("evaluate_every", "patience", "clip")}
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


def _optimisation(given: dict[str, Any], members: int | None) -> dict[str, Any]:
    """What moves the parameters, checked."""
    optimizer, lr, decay = given["optimizer"], given["lr"], given["weight_decay"]
    if isinstance(optimizer, str):
        lookup("optimizer", optimizer, OPTIMIZERS)
        alike = lr is None or isinstance(lr, Number) or (optimizer == "adam" and given["scheduler"] is None)
        takes = 'one number for all members, unless optimizer is "adam" and there is no scheduler'
        require(alike or members is None, "lr", lr, takes)
    else:
        require(callable(optimizer), "optimizer", optimizer, f"one of {', '.join(OPTIMIZERS)}, or a function")
        for name, value in (("lr", lr), ("weight_decay", decay)):
            require(value is None, name, value, "nothing beside an optimizer of your own, which sets it")
    for name in ("scheduler", "transform"):
        require(given[name] is None or callable(given[name]), name, given[name], "a function, or None")
    return {
        "lr": [rate("lr", each) for each in per_member("lr", LR if lr is None else lr, members)],
        "weight_decay": number("weight_decay", 0.0 if decay is None else decay, zero=True, finite=True),
        "clip": number("clip", given["clip"], optional=True, finite=True),
    }


def _batch_size(given: int | None, data: Points | Stream) -> int:
    if isinstance(data, Stream):
        require(given is None, "batch_size", given, "nothing beside data that come in batches")
        return BATCH
    size = number("batch_size", min(BATCH, len(data)) if given is None else given, whole=True)
    require(size <= len(data), "batch_size", size, f"at most the {len(data)} points that there are")
    return size


def _called(function: Any) -> str | None:
    """What a function is called, without its place in memory."""
    if function is None or isinstance(function, str):
        return function
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _snapshot_points(snapshots: Snapshots, members: int | None) -> Tensor:
    if not (isinstance(snapshots, Snapshots) and isinstance(snapshots.x, Tensor)):
        raise TypeError(f"snapshots: takes Snapshots of a tensor, got {snapshots!r}")
    finite_rows("snapshots.x", snapshots.x)
    for moment in snapshots.at:
        require(moment >= 0, "snapshots.at", moment, "numbers of iterations, from 0")
    return snapshots.points(members)


def _first_outcome(name: str, model: Model, x: Tensor, like: Tensor) -> Outcome:
    dtype = like.dtype if like.is_floating_point() else x.dtype
    if x.dtype not in (dtype, torch.uint8):
        takes = f"{dtype}, as the model's parameters are, or torch.uint8, which is scaled to [0, 1]"
        raise TypeError(f"{name}: takes {takes}, got {x.dtype}")
    try:
        with evaluating(model):
            return model.run(as_input(x[:1] if model.members is None else x[:, :1], like))
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: does not fit the model: {error}") from None
