"""What a training run is asked to do: everything its result depends on, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from anode.checks import finite_rows, lookup, number, require
from anode.models.model import Model, as_input
from anode.train.evaluation import Snapshots, evaluating
from anode.train.inputs import Data, per_member, points_of, rate, whole
from anode.train.losses import LOSSES, Loss, check_targets, default_loss
from anode.train.points import Order, Points

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
        lr, seeds: One a member, or the only one.
        loss: The function, and ``loss_name`` what it is called.
    """

    members: int | None
    data: Points
    validation: Points | None
    batch_size: int
    lr: list[float]
    weight_decay: float
    loss: Loss
    loss_name: str
    seeds: list[int]
    snapshots: Snapshots | None
    evaluate_every: int | None
    patience: int | None
    on_failure: str

    @classmethod
    def checked(
        cls,
        model: Model,
        data: Data,
        validation: Data | None,
        *,
        batch_size: int | None,
        lr: float | Sequence[float],
        weight_decay: float,
        loss: str | Loss | None,
        seed: int | Sequence[int],
        snapshots: Snapshots | None,
        evaluate_every: int | None,
        patience: int | None,
        on_failure: str,
    ) -> Self:
        """Check the arguments of :func:`anode.fit`, against each other and against the model."""
        members = model.members
        points = points_of("data", data, members)
        if batch_size is None:
            batch_size = min(BATCH, len(points))
        batch_size = number("batch_size", batch_size, whole=True)
        require(batch_size <= len(points), "batch_size", batch_size, f"at most the {len(points)} points that there are")
        if loss is None:
            loss = default_loss(points.y)
        weight_decay = number("weight_decay", weight_decay, zero=True, finite=True)
        evaluate_every = number("evaluate_every", evaluate_every, whole=True, optional=True)
        patience = number("patience", patience, whole=True, optional=True)
        alone = "nothing for a stack of models, whose members would end at different times"
        require(patience is None or members is None, "patience", patience, alone)
        require(patience is None or validation is not None, "patience", patience, "nothing without validation data")
        lookup("on_failure", on_failure, ON_FAILURE)
        takes = '"stop" or "raise" for a stack of models, whose members go on without those that fail'
        require(members is None or on_failure != "skip", "on_failure", on_failure, takes)
        protocol = cls(
            members=members,
            data=points,
            validation=None if validation is None else points_of("validation", validation, members),
            batch_size=batch_size,
            lr=[rate("lr", each) for each in per_member("lr", lr, members)],
            weight_decay=weight_decay,
            loss=loss if callable(loss) else lookup("loss", loss, LOSSES),
            loss_name=loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss)),
            seeds=[whole("seed", each) for each in per_member("seed", seed, members, following=True)],
            snapshots=snapshots,
            evaluate_every=evaluate_every,
            patience=patience,
            on_failure=on_failure,
        )
        protocol.check_model(model)
        return protocol

    def check_model(self, model: Model) -> None:
        """Let the model see a point of everything it will see, so that what does not fit is found before the work."""
        trained = [p for p in model.parameters() if p.requires_grad]
        require(len(trained) > 0, "model", type(model).__name__, "a model with parameters to train")
        points, targets = {"data": self.data.x}, {"data": self.data.y}
        if self.validation is not None:
            points["validation"], targets["validation"] = self.validation.x, self.validation.y
        if self.snapshots is not None:
            points["snapshots.x"] = _snapshot_points(self.snapshots, self.members)
        for name, x in points.items():
            prediction = _first_prediction(name, model, x, trained[0])
            if name in targets and self.has_loss_of_ours:
                dims = 1 if self.members is None else 2
                check_targets(name, self.loss_name, prediction, targets[name], dims)

    @property
    def has_loss_of_ours(self) -> bool:
        """Whether the loss is one of those that have names."""
        return LOSSES.get(self.loss_name) is self.loss

    @property
    def classifies(self) -> bool:
        """Whether there are classes to get right."""
        return self.has_loss_of_ours and self.loss_name == "cross_entropy"

    @cached_property
    def order(self) -> Order:
        """In which order points are seen."""
        return Order(self.seeds, len(self.data), self.batch_size, stacked=self.members is not None)

    def evaluates_after(self, iterations: int) -> bool:
        """Whether the validation set has its turn after so many iterations."""
        return iterations % (self.evaluate_every or self.order.batches) == 0

    def settings(self) -> dict[str, Any]:
        """How training goes, in numbers and words; less usual settings only where they differ from the usual ones."""
        unusual = {name: getattr(self, name) for name in ("evaluate_every", "patience")}
        return {
            "batch_size": self.batch_size,
            "lr": self.lr if self.members else self.lr[0],
            "weight_decay": self.weight_decay,
            "loss": self.loss_name,
            "seed": self.seeds if self.members else self.seeds[0],
            **{name: value for name, value in unusual.items() if value is not None},
            **({} if self.on_failure == "stop" else {"on_failure": self.on_failure}),
        }


def _snapshot_points(snapshots: Snapshots, members: int | None) -> Tensor:
    if not (isinstance(snapshots, Snapshots) and isinstance(snapshots.x, Tensor)):
        raise TypeError(f"snapshots: takes Snapshots of a tensor, got {snapshots!r}")
    finite_rows("snapshots.x", snapshots.x)
    for moment in snapshots.at:
        require(moment >= 0, "snapshots.at", moment, "numbers of iterations, from 0")
    return snapshots.points(members)


def _first_prediction(name: str, model: Model, x: Tensor, like: Tensor) -> Tensor:
    dtype = like.dtype if like.is_floating_point() else x.dtype
    if x.dtype not in (dtype, torch.uint8):
        takes = f"{dtype}, as the model's parameters are, or torch.uint8, which stands for values from 0 to 1"
        raise TypeError(f"{name}: takes {takes}, got {x.dtype}")
    try:
        with evaluating(model):
            return model.run(as_input(x[:1] if model.members is None else x[:, :1], like)).prediction
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: does not fit the model: {error}") from None
