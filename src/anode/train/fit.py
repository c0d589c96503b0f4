"""Training: one loop for every model, alone or stacked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.models.model import Model, Outcome
from anode.ode.inputs import finite_rows, lookup, number, require
from anode.ode.solution import SolveError, Status
from anode.train.adam import Adam
from anode.train.history import Failure, History, Snapshot
from anode.train.inputs import Data, per_member, rate, tensors, whole
from anode.train.interrupt import deferred_interrupt
from anode.train.losses import LOSSES, Loss, check_targets, mean
from anode.train.progress import Listener, Report, listener


@dataclass(frozen=True)
class Snapshots:
    """A wish for the features of some points at some moments of training.

    Attributes:
        x: The points, [points, ...]; every member of a stack gets the same.
        at: After how many iterations; 0 is before the first.
    """

    x: Tensor
    at: Sequence[int]


def fit(
    model: Model,
    data: Data,
    *,
    epochs: int = 50,
    batch_size: int = 64,
    lr: float | Sequence[float] = 1e-3,
    weight_decay: float = 0.0,
    loss: str | Loss = "huber",
    validation: Data | None = None,
    seed: int | Sequence[int] = 0,
    snapshots: Snapshots | None = None,
    progress: bool | Listener | None = None,
) -> History:
    """Train a model, or a stack of models, with Adam.

    The members of a stack are independent: each has its own seed, order of data, learning rate and step size, and ends
    as it would have ended alone. A member whose solve fails, or whose loss is no longer finite, is frozen as it was
    before that iteration and reported in ``history.failures``; the others go on. Training a model by itself ends there.
    With ``gradient="continuous"`` members are not quite independent: the adjoint has one step size for all of them.

    Ctrl-C ends training after the iteration at hand; the model and the history are those of that moment.

    Args:
        model: What to train, in place.
        data: A dataset or ``(x, y)``; for a stack also a sequence of datasets, one a member and all of one size.
        epochs: Passes over the data.
        batch_size: Points in an iteration; the last batch of an epoch may be smaller.
        lr: Adam's learning rate, or one a member.
        weight_decay: Adam's L2 penalty.
        loss: ``"huber"``, ``"mse"``, ``"cross_entropy"``, or a function from predictions and targets to losses.
        validation: Data whose loss is recorded after every epoch.
        seed: Of the order of data. A stack takes one a member; from a single seed its members get that one and those
            that follow it.
        snapshots: Which features to record, and when.
        progress: True for a progress bar, False for none, or a function that is told of every iteration. By default a
            bar if there is a terminal.

    Returns:
        What happened, see :class:`anode.History`.

    Example:
        >>> import anode
        >>> model = anode.NeuralODE(2, 1, augment=2)
        >>> history = anode.fit(model, anode.datasets.load("moons"), epochs=2, batch_size=100)
        >>> len(history), bool(history.loss[-1] < history.loss[0])
        (20, True)
    """
    number("epochs", epochs, whole=True, zero=True)
    if not isinstance(model, Model):
        raise TypeError(f"model: takes an anode model, such as a NeuralODE or a Flow, got {type(model).__name__}")
    training = Training(model, data, batch_size, lr, weight_decay, loss, validation, seed, snapshots)
    training.settings["epochs"] = epochs
    with listener(progress, type(model).__name__) as tell:
        return training.run(epochs, tell)


class Training:
    """A training run under way. The arguments are those of :func:`fit`."""

    def __init__(
        self,
        model: Model,
        data: Data,
        batch_size: int,
        lr: float | Sequence[float],
        weight_decay: float,
        loss: str | Loss,
        validation: Data | None,
        seed: int | Sequence[int],
        snapshots: Snapshots | None,
    ) -> None:
        self.model, self.members = model, model.members
        self.x, self.y = tensors("data", data, self.members)
        self.validation = None if validation is None else tensors("validation", validation, self.members)
        self.size = self.x.shape[0 if self.members is None else 1]
        number("batch_size", batch_size, whole=True)
        require(batch_size <= self.size, "batch_size", batch_size, f"at most the {self.size} points that there are")
        number("weight_decay", weight_decay, zero=True)
        require(weight_decay < math.inf, "weight_decay", weight_decay, "a finite number")
        self.batch_size, self.batches = batch_size, -(-self.size // batch_size)
        self.loss = loss if callable(loss) else lookup("loss", loss, LOSSES)
        self.seeds = [whole("seed", each) for each in per_member("seed", seed, self.members, following=True)]
        rates = [rate("lr", each) for each in per_member("lr", lr, self.members)]
        parameters = [p for p in model.parameters() if p.requires_grad]
        require(len(parameters) > 0, "model", type(model).__name__, "a model with parameters to train")
        like = parameters[0]
        chosen = torch.tensor(rates, dtype=torch.float64, device=like.device)
        self.adam = Adam(parameters, chosen if self.members else chosen[0], weight_decay)
        self.snapshots = snapshots
        self.settings: dict[str, Any] = {
            "batch_size": batch_size,
            "lr": rates if self.members else rates[0],
            "weight_decay": weight_decay,
            "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss)),
            "seed": self.seeds if self.members else self.seeds[0],
        }
        self.check_inputs(like)
        self.record: list[tuple[Any, ...]] = []
        self.validations: list[Tensor] = []
        self.taken: list[Snapshot] = []
        self.failures: list[Failure] = []
        self.frozen = torch.zeros(self.members or 1, dtype=torch.bool)
        self.set_aside: list[tuple[int, list[Tensor]]] = []

    @torch.no_grad()
    def check_inputs(self, like: Tensor) -> None:
        """Let the model see a point of everything it will see, so that what does not fit is found before the work."""
        points, targets = {"data": self.x}, {"data": self.y}
        if self.validation is not None:
            points["validation"], targets["validation"] = self.validation
        if self.snapshots is not None:
            if not (isinstance(self.snapshots, Snapshots) and isinstance(self.snapshots.x, Tensor)):
                raise TypeError(f"snapshots: takes Snapshots of a tensor, got {self.snapshots!r}")
            finite_rows("snapshots.x", self.snapshots.x)
            for moment in self.snapshots.at:
                require(moment >= 0, "snapshots.at", moment, "numbers of iterations, from 0")
            points["snapshots.x"] = self.snapshot_points(self.snapshots)
        for name, x in points.items():
            dtype = like.dtype if like.is_floating_point() else x.dtype
            if x.dtype != dtype:
                raise TypeError(f"{name}: takes {dtype}, as the model's parameters are, got {x.dtype}")
            try:
                prediction = self.model.run(x[:1] if self.members is None else x[:, :1]).prediction
            except (ValueError, RuntimeError) as error:
                raise ValueError(f"{name}: does not fit the model: {error}") from None
            if name in targets and self.settings["loss"] in LOSSES and self.loss is LOSSES[self.settings["loss"]]:
                dims = 1 if self.members is None else 2
                check_targets(name, self.settings["loss"], prediction, targets[name], dims)

    def run(self, epochs: int, tell: Listener | None) -> History:
        """The training loop."""
        stopped = ""
        try:
            with deferred_interrupt() as interrupted:
                for _ in self.iterations(epochs):
                    if tell is not None:
                        tell(self.report(epochs * self.batches))
                    if interrupted():
                        raise KeyboardInterrupt
                    if self.frozen.all():
                        stopped = "no member is left" if self.members else self.failures[0].reason
                        break
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            self.bring_back()
        return self.history(stopped)

    def iterations(self, epochs: int) -> Iterator[None]:
        """Iterate over the data, pausing after every iteration."""
        self.take_snapshot()
        for epoch in range(epochs):
            for batch in self.order(epoch).split(self.batch_size, dim=-1):
                self.iterate(batch)
                self.take_snapshot()
                if len(self.record) == (epoch + 1) * self.batches:
                    self.validate()
                yield

    def order(self, epoch: int) -> Tensor:
        """The order of the points in an epoch: a function of seed and epoch alone; [points] or [members, points]."""
        orders = []
        for seed in self.seeds:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            orders.append(torch.randperm(self.size, generator=generator))
        return torch.stack(orders) if self.members else orders[0]

    def iterate(self, batch: Tensor) -> None:
        """One step of the optimiser."""
        start = time.perf_counter()
        if self.members is None:
            x, y = self.x[batch], self.y[batch]
        else:
            each = torch.arange(self.members, device=batch.device).unsqueeze(1)
            x, y = self.x[each, batch], self.y[each, batch]
        outcome, losses = self.forward(x, y)
        if not self.frozen.all():
            self.adam.zero_grad()
            self.backward(losses)
        if not self.frozen.all():
            self.adam.step()
        self.record.append((self.unless_frozen(losses.detach()), *self.cost(outcome), time.perf_counter() - start))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Outcome, Tensor]:
        """The outcome and the losses; again without those that fail, so that they cannot disturb the others."""
        while True:
            outcome = self.model.run(x)
            losses = mean(self.loss(outcome.prediction, y), self.members)
            statuses = self.status(outcome)
            failed = ~losses.detach().reshape(-1).isfinite() | (statuses != Status.SUCCESS)
            failed = failed.cpu() & ~self.frozen
            if not failed.any():
                return outcome, losses
            self.freeze({i: reason(statuses[i]) for i in failed.nonzero().flatten().tolist()})
            if self.frozen.all():
                return outcome, losses

    def backward(self, losses: Tensor) -> None:
        """Gradients of the members' losses, which are independent of each other."""
        try:
            losses.sum().backward()
        except SolveError as error:  # of the continuous adjoint, whose backward solve can fail by itself
            self.freeze({i: str(error) for i in (~self.frozen).nonzero().flatten().tolist()})
            return
        sums = [g.sum() if self.members is None else g.flatten(1).sum(1) for g in self.adam.gradients()]
        if sums and not torch.stack(sums).isfinite().all():
            fine = torch.stack(sums).isfinite().all(0).reshape(-1).cpu() | self.frozen
            self.freeze(dict.fromkeys((~fine).nonzero().flatten().tolist(), "a gradient is not finite"))

    def status(self, outcome: Outcome) -> Tensor:
        """The status of each member's solve: the worst, where it has several."""
        if outcome.solution is None:
            return torch.zeros(self.members or 1, dtype=torch.int64)
        return self.of_each(outcome.solution.status)

    def of_each(self, values: Any) -> Tensor:
        """One value a member of what may be one for everybody, or one for each sample, of which the largest counts."""
        values = torch.as_tensor(values)
        if self.members is None:
            return values.reshape(-1).amax(0, keepdim=True)
        return values.expand(self.members) if values.ndim == 0 else values.reshape(self.members, -1).amax(1)

    def cost(self, outcome: Outcome) -> tuple[Tensor, ...]:
        """Evaluations, accepted and rejected steps of each member, and evaluations made by the gradient."""
        if outcome.solution is None:
            return tuple(torch.zeros(4, dtype=torch.int64))
        stats = outcome.solution.stats
        each = (self.of_each(values) for values in (stats.nfe, stats.accepted, stats.rejected))
        done = self.frozen if self.members else torch.zeros(1, dtype=torch.bool)
        return (*(values.masked_fill(done.to(values.device), 0) for values in each), torch.tensor(stats.nfe_backward))

    def unless_frozen(self, values: Tensor) -> Tensor:
        """Values of members, [...] or [members, ...], NaN for those that have failed."""
        frozen = self.frozen.to(values.device) if self.members else self.frozen[0].to(values.device)
        return values.masked_fill(frozen.reshape(frozen.shape + (1,) * (values.ndim - frozen.ndim)), torch.nan)

    @torch.no_grad()
    def freeze(self, failed: dict[int, str]) -> None:
        """Keep the parameters of failed members aside, and let a healthy member's go on in their place."""
        members = torch.zeros_like(self.frozen)
        members[list(failed)] = True
        self.frozen = self.frozen | members
        self.failures += [Failure(member, len(self.record), why) for member, why in failed.items()]
        if self.members is None:
            return
        self.adam.freeze(members)
        healthy = (~self.frozen).nonzero().flatten().tolist()
        for member in failed:
            self.set_aside.append((member, [p[member].clone() for p in self.adam.parameters]))
            for parameter in self.adam.parameters if healthy else ():
                parameter[member] = parameter[healthy[0]]

    @torch.no_grad()
    def bring_back(self) -> None:
        """Give failed members their own parameters again."""
        for member, values in self.set_aside:
            for parameter, value in zip(self.adam.parameters, values, strict=True):
                parameter[member] = value

    @torch.no_grad()
    def validate(self) -> None:
        """Record the loss on the validation set."""
        if self.validation is not None:
            x, y = self.validation
            outcome = self.model.run(x)
            losses = mean(self.loss(outcome.prediction, y), self.members)
            self.validations.append(self.unless_frozen(self.if_solved(losses, outcome)))

    @torch.no_grad()
    def take_snapshot(self) -> None:
        """Record the features of the chosen points, if it is time."""
        done = len(self.record)
        if self.snapshots is None or done not in self.snapshots.at:
            return
        outcome = self.model.run(self.snapshot_points(self.snapshots))
        features = self.unless_frozen(self.if_solved(outcome.features, outcome))
        nfe = self.cost(outcome)[0].numpy(force=True)
        self.taken.append(Snapshot(done, features.numpy(force=True), nfe if self.members else nfe.reshape(-1)[0]))

    def snapshot_points(self, snapshots: Snapshots) -> Tensor:
        """The points of a snapshot, for every member."""
        return snapshots.x if self.members is None else snapshots.x.expand(self.members, *snapshots.x.shape)

    def if_solved(self, values: Tensor, outcome: Outcome) -> Tensor:
        """Values of members, NaN for those whose solve failed."""
        failed = self.status(outcome).to(values.device) != Status.SUCCESS
        failed = failed if self.members else failed[0]
        return values.masked_fill(failed.reshape(failed.shape + (1,) * (values.ndim - failed.ndim)), torch.nan)

    def report(self, total: int) -> Report:
        """How far it is, for those who listen."""
        losses, nfe = self.record[-1][:2]
        return Report(len(self.record), total, float(losses.nanmean()), float(nfe.double().mean()))

    def history(self, stopped: str) -> History:
        """What happened."""
        width = () if self.members is None else (self.members,)

        def series(index: int, dtype: Any) -> Any:
            values = [torch.as_tensor(row[index]).numpy(force=True) for row in self.record]
            shape = width if index < 4 else ()
            fitting = [np.broadcast_to(v if shape else v.reshape(()), shape) for v in values]
            return np.array(fitting, dtype=dtype).reshape(len(values), *shape)

        return History(
            loss=series(0, np.float32),
            nfe=series(1, np.int64),
            accepted=series(2, np.int64),
            rejected=series(3, np.int64),
            nfe_backward=series(4, np.int64),
            seconds=series(5, np.float32),
            batches=self.batches,
            validation=np.array([v.numpy(force=True) for v in self.validations], dtype=np.float32).reshape(-1, *width),
            failures=self.failures,
            stopped=stopped,
            snapshots=self.taken,
            settings=self.settings,
        )


def reason(status: Any) -> str:
    """Why a member was frozen, from the status of its solve."""
    status = Status(int(status))
    return f"{status.name}: {status.help}" if status else "the loss is not finite"
