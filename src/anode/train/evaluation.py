"""Evaluations during training: validation, snapshots, accuracy of the solver, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.models.model import Model, as_input, observed
from anode.models.randomness import evaluating
from anode.train.checkpoint.state import values_of
from anode.train.losses import mean
from anode.train.members import Members
from anode.train.points import Points
from anode.train.ranks import WHOLE, Ranks, Share
from anode.train.record import CHECKED, EVALUATED, MOMENTS, Snapshot, Table, as_array
from anode.train.streams import Batch, Stream

if TYPE_CHECKING:
    from anode.train.protocol import Protocol


CHECKED_POINTS = 256
"""Maximum number of points on which the solver's accuracy is checked."""


@dataclass(frozen=True)
class Snapshots:
    """Features to record during training, for the argument ``snapshots`` of :func:`anode.fit`.

    Attributes:
        x: The points whose features are recorded, [points, ...]. All members of a stack get the same points.
        at: The iterations after which they are recorded; 0 is before the first.

    Example:
        >>> import anode
        >>> data = anode.datasets.load("moons")
        >>> watched = anode.Snapshots(data.x[:10], at=[0, 5])
        >>> history = anode.fit(anode.NeuralODE(2, 1, augment=1), data, epochs=1, snapshots=watched)
        >>> [(snapshot.iteration, snapshot.features.shape) for snapshot in history.snapshots]
        [(0, (10, 3)), (5, (10, 3))]
    """

    x: Tensor
    at: Sequence[int]

    def points(self, members: int | None) -> Tensor:
        """Return the points, expanded to all members."""
        return self.x if members is None else self.x.expand(members, *self.x.shape)


class Evaluation:
    """The evaluations of a model during training.

    Args:
        model: The model.
        protocol: The settings of the training run.
        members: The members of the stack that have not failed.
        ranks: The processes that train together.
    """

    def __init__(self, model: Model, protocol: Protocol, members: Members, ranks: Ranks) -> None:
        self.model, self.protocol, self.members, self.ranks = model, protocol, members, ranks
        self.like = members.parameters[0]
        types = {**EVALUATED, "validation_at": MOMENTS["validation_at"]}
        if not protocol.classifies:
            del types["validation_accuracy"]
        self.record = self.table(types)
        self.checks = self.table({**CHECKED, "check_at": MOMENTS["check_at"]})
        self.snapshots: list[Snapshot] = []
        self.done = 0  # number of iterations before the last evaluation

    def table(self, types: Mapping[str, Any]) -> Table:
        """Return an empty table."""
        width = () if self.members.count is None else (self.members.count,)
        return Table(types, {name: () if name in MOMENTS else width for name in types})

    def validate(self, iterations: int) -> None:
        """Record loss, accuracy and cost on the validation set, unless already done."""
        points = self.protocol.validation
        if points is not None and iterations > self.done:
            with evaluating(self.model):
                self.record.add(**self.means(points), validation_at=iterations)
            self.done = iterations

    def losses(self) -> list[float]:
        """Return all validation losses so far, averaged over members."""
        found = self.record.arrays()["validation"]
        return found.reshape(len(found), -1).mean(1).tolist() if len(found) else []

    @property
    def latest(self) -> float:
        """The last validation loss, averaged over members; NaN if there is none, or if a member's is NaN."""
        return float(self.record.last["validation"].mean()) if self.record.last else math.nan

    def means(self, points: Points | Stream) -> dict[str, Tensor]:
        """Return means over all points, one number or one per member; NaN for a member with a failed solve."""
        found, sizes = [], []
        for size, share, (x, y, weights) in self.batches(points):
            outcome, made = observed(self.model, x, **self.model.options_for(y))
            values = {"validation": mean(self.protocol.losses(outcome, y), self.members.count, weights)}
            if self.protocol.classifies:
                values["validation_accuracy"] = self.protocol.accuracy(outcome, y)
            values = {name: self.members.if_solved(value, outcome) for name, value in values.items()}
            values["validation_nfe"] = self.members.steps(made)[0]
            found.append({name: share.of(value.cpu().double()) for name, value in values.items()})
            sizes.append(size)
        parts = {"validation_nfe": [1 / len(sizes)] * len(sizes)}
        means = {}
        for name in found[0]:
            weighted = parts.get(name, [size / sum(sizes) for size in sizes])
            total = sum(values[name] * part for values, part in zip(found, weighted, strict=True))
            means[name] = self.members.unless_frozen(self.ranks.total(torch.as_tensor(total)))
        return means

    def batches(self, data: Points | Stream) -> Iterator[tuple[int, Share, Batch]]:
        """Yield all batches: the number of points, this process's share of them, and its tensors."""
        if isinstance(data, Stream):
            for batch in data.all(self.like):
                yield batch[0].shape[0 if self.members.count is None else 1], WHOLE, batch
            return
        for numbers in data.in_turn(self.protocol.batch_size):
            share = self.ranks.share(numbers)
            yield numbers.shape[-1], share, data.take(share.points, self.like)

    def take_snapshot(self, iterations: int) -> None:
        """Record the features of the chosen points, if they are due."""
        wanted, last = self.protocol.snapshots, self.snapshots[-1].iteration if self.snapshots else None
        if wanted is None or iterations not in wanted.at or iterations == last:
            return
        with evaluating(self.model):
            outcome, made = observed(self.model, as_input(wanted.points(self.members.count), self.like))
        if outcome.unfinished:
            return
        features = self.members.unless_frozen(self.members.if_solved(outcome.features, outcome))
        nfe = self.members.steps(made)[0].numpy(force=True)
        self.snapshots.append(Snapshot(iterations, as_array(features), nfe if self.members.count else nfe.reshape(())))

    def check(self, iterations: int) -> None:
        """Record the error of solving the flow forward and back, unless already done."""
        if self.protocol.check_every is None or iterations in self.checks.arrays()["check_at"]:
            return
        flow = self.model.first_flow()
        assert flow is not None
        with evaluating(self.model):
            x, y = self.to_check
            found = flow.check(x, **self.model.options_for(y)).overall
        self.checks.add(check=self.members.unless_frozen(found), check_at=iterations)

    @cached_property
    def to_check(self) -> tuple[Tensor, Tensor]:
        """The inputs and targets to check: the first for validation, or for training if there are none."""
        data = self.protocol.data if self.protocol.validation is None else self.protocol.validation
        if isinstance(data, Stream):
            x, y, _ = data.first(self.like)
            dim = self.protocol.dims - 1
            few = min(CHECKED_POINTS, x.shape[dim])
            return x.narrow(dim, 0, few), y.narrow(dim, 0, few)
        return data.take(data.in_turn(CHECKED_POINTS)[0], self.like)[:2]


class Patience:
    """Early stopping, which remembers the parameters with the lowest validation loss.

    Args:
        model: The model.
        limit: Number of evaluations without improvement after which training stops; ``None`` to disable.
    """

    def __init__(self, model: nn.Module, limit: int | None) -> None:
        self.model, self.limit = model, limit
        self.lowest, self.since = math.inf, 0
        self.best: dict[str, Tensor] = {}

    def look(self, loss: float) -> None:
        """Record an evaluation."""
        if self.limit is None:
            return
        self.since += 1
        if loss < self.lowest:
            self.lowest, self.since = loss, 0
            self.best = {name: value.detach().clone() for name, value in values_of(self.model).items()}

    @property
    def reason(self) -> str:
        """Why training should stop; empty if it should not."""
        if self.limit is None or self.since < self.limit:
            return ""
        return f"the validation loss has not improved for {self.limit} validations"

    @torch.no_grad()
    def bring_back(self) -> None:
        """Restore the parameters with the lowest validation loss."""
        values = values_of(self.model)
        for name, value in self.best.items():
            values[name].copy_(value)
