"""Looking at a model during training: validation set, snapshots, its solves, and when training no longer helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.models.density import DensityFlow
from anode.models.flow import Flow
from anode.models.model import Model, as_input
from anode.models.nets import NeuralODE
from anode.models.randomness import apart
from anode.train.checkpoint.state import values_of
from anode.train.losses import accuracy, mean
from anode.train.members import Members
from anode.train.points import Points
from anode.train.ranks import WHOLE, Ranks, Share
from anode.train.record import CHECKED, EVALUATED, MOMENTS, Snapshot, Table, as_array
from anode.train.streams import Batch, Stream

if TYPE_CHECKING:
    from anode.train.protocol import Protocol


CHECKED_POINTS = 256
"""How many points the solves are checked on, if there are as many."""


@dataclass(frozen=True)
class Snapshots:
    """A wish for the features of some points at some moments of training.

    Attributes:
        x: The points, [points, ...]; every member of a stack gets the same.
        at: After how many iterations; 0 is before the first.
    """

    x: Tensor
    at: Sequence[int]

    def points(self, members: int | None) -> Tensor:
        """The points, for every member."""
        return self.x if members is None else self.x.expand(members, *self.x.shape)


class Evaluation:
    """What is seen of a model on the way.

    Args:
        model: Whom to look at.
        protocol: At what, and when.
        members: Who is still there.
        ranks: The processes that look together.
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
        self.done = 0  # how many iterations had been made at the last evaluation

    def table(self, types: Mapping[str, Any]) -> Table:
        """An empty table of what is recorded on the way."""
        width = () if self.members.count is None else (self.members.count,)
        return Table(types, {name: () if name in MOMENTS else width for name in types})

    def validate(self, iterations: int) -> None:
        """Record loss, accuracy and cost on the validation set, unless that was done already."""
        points = self.protocol.validation
        if points is not None and iterations > self.done:
            with evaluating(self.model):
                self.record.add(**self.means(points), validation_at=iterations)
            self.done = iterations

    def losses(self) -> list[float]:
        """All validation losses so far, means over members."""
        found = self.record.arrays()["validation"]
        return found.reshape(len(found), -1).mean(1).tolist() if len(found) else []

    @property
    def latest(self) -> float:
        """The last validation loss, a mean over members; NaN if there is none, or if that of a member is."""
        return float(self.record.last["validation"].mean()) if self.record.last else math.nan

    def means(self, points: Points | Stream) -> dict[str, Tensor]:
        """Means over all points, one number or one a member; NaN for a member one of whose solves failed."""
        found, sizes = [], []
        for size, share, (x, y, weights) in self.batches(points):
            outcome = self.model.run(x)
            values = {"validation": mean(self.protocol.losses(outcome, y), self.members.count, weights)}
            if self.protocol.classifies:
                values["validation_accuracy"] = accuracy(outcome.prediction, y, self.members.count)
            values = {name: self.members.if_solved(value, outcome) for name, value in values.items()}
            values["validation_nfe"] = self.members.steps(outcome)[0]
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
        """All batches of the data in turn: how many points, this process's share of them, and its tensors."""
        if isinstance(data, Stream):
            for batch in data.all(self.like):
                yield batch[0].shape[0 if self.members.count is None else 1], WHOLE, batch
            return
        for numbers in data.in_turn(self.protocol.batch_size):
            share = self.ranks.share(numbers)
            yield numbers.shape[-1], share, data.take(share.points, self.like)

    def take_snapshot(self, iterations: int) -> None:
        """Record the features of the chosen points, if it is time."""
        wanted, last = self.protocol.snapshots, self.snapshots[-1].iteration if self.snapshots else None
        if wanted is None or iterations not in wanted.at or iterations == last:
            return
        with evaluating(self.model):
            outcome = self.model.run(as_input(wanted.points(self.members.count), self.like))
        features = self.members.unless_frozen(self.members.if_solved(outcome.features, outcome))
        nfe = self.members.steps(outcome)[0].numpy(force=True)
        self.snapshots.append(Snapshot(iterations, as_array(features), nfe if self.members.count else nfe.reshape(())))

    def check(self, iterations: int) -> None:
        """Record how well inputs come back when the flow is solved forward and back, unless that was done already."""
        if self.protocol.check_every is None or iterations in self.checks.arrays()["check_at"]:
            return
        flow = flow_of(self.model)
        assert flow is not None
        with evaluating(self.model):
            found = flow.check(self.to_check).overall
        self.checks.add(check=self.members.unless_frozen(found), check_at=iterations)

    @property
    def last_check(self) -> float | None:
        """The error that the last check found, of a stack the largest; ``None`` if nothing is checked."""
        found = self.checks.arrays()["check"][-1:]
        present = found[~np.isnan(found)]
        return float(present.max()) if present.size else None

    @cached_property
    def to_check(self) -> Tensor:
        """The inputs that are solved forward and back: the first of the validation data, else of the training data."""
        data = self.protocol.data if self.protocol.validation is None else self.protocol.validation
        if isinstance(data, Stream):
            x = data.first(self.like)[0]
            return x[:CHECKED_POINTS] if self.members.count is None else x[:, :CHECKED_POINTS]
        return data.take(data.in_turn(CHECKED_POINTS)[0], self.like)[0]


def flow_of(model: Model) -> Flow | None:
    """The flow that a model's inputs go through first; ``None`` if there is none."""
    found = model.flow if isinstance(model, NeuralODE | DensityFlow) else model
    return found if isinstance(found, Flow) else None


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """No gradients, layers that differ in training as they are in use, and random numbers left where they were."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.no_grad(), apart(devices):
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


class Patience:
    """Remembers a model as it was at its lowest validation loss.

    Args:
        model: What is trained.
        limit: After how many evaluations without a lower loss training is to end; ``None`` if it is not to.
    """

    def __init__(self, model: nn.Module, limit: int | None) -> None:
        self.model, self.limit = model, limit
        self.lowest, self.since = math.inf, 0
        self.best: dict[str, Tensor] = {}

    def look(self, loss: float) -> None:
        """Take note of an evaluation."""
        if self.limit is None:
            return
        self.since += 1
        if loss < self.lowest:
            self.lowest, self.since = loss, 0
            self.best = {name: value.detach().clone() for name, value in values_of(self.model).items()}

    @property
    def reason(self) -> str:
        """Why training should end; nothing if it should not."""
        if self.limit is None or self.since < self.limit:
            return ""
        return f"no lower validation loss in {self.limit} evaluations"

    @torch.no_grad()
    def bring_back(self) -> None:
        """Let the model be again what it was at its best."""
        values = values_of(self.model)
        for name, value in self.best.items():
            values[name].copy_(value)
