"""Training: one loop for every model, alone or stacked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.data.toy import Dataset
from anode.models.model import Model, Outcome
from anode.ode.inputs import lookup, number, require
from anode.ode.solution import Status
from anode.train.adam import Adam
from anode.train.history import Failure, History, Snapshot
from anode.train.interrupt import deferred_interrupt
from anode.train.losses import LOSSES, Loss, mean
from anode.train.progress import Listener, Report, listener

Data = Dataset | tuple[Tensor, Tensor] | Sequence[Dataset]
"""Points and targets: for everybody, or a sequence with one for each member of a stack, all of one size."""


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
    training = Training(model, data, batch_size, lr, weight_decay, loss, validation, seed, snapshots)
    settings = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "seed": seed}
    training.settings = {**settings, "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss))}
    with listener(progress, type(model).__name__) as tell:
        return training.run(epochs, tell)


class Training:
    """A training run under way. The arguments are those of :func:`fit`."""

    settings: dict[str, Any]

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
        self.batch_size, self.batches = batch_size, -(-self.size // batch_size)
        self.loss = lookup("loss", loss, LOSSES) if isinstance(loss, str) else loss
        self.seeds = per_member("seed", seed, self.members, following=True)
        rates = per_member("lr", lr, self.members)
        for rate in rates:
            number("lr", rate)
        like = next(model.parameters())
        chosen = torch.tensor(rates, dtype=like.dtype, device=like.device)
        self.adam = Adam(list(model.parameters()), chosen if self.members else chosen[0], weight_decay)
        self.snapshots = snapshots
        self.record: list[tuple[Any, ...]] = []
        self.validations: list[Tensor] = []
        self.taken: list[Snapshot] = []
        self.failures: list[Failure] = []
        self.frozen = torch.zeros(self.members or 1, dtype=torch.bool)
        self.set_aside: list[tuple[int, list[Tensor]]] = []

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
            each = torch.arange(self.members).unsqueeze(1)
            x, y = self.x[each, batch], self.y[each, batch]
        outcome = self.model.run(x)
        losses = mean(self.loss(outcome.prediction, y), self.members)
        self.adam.zero_grad()
        losses.sum().backward()
        values = losses.detach()
        if failed := self.look_for_failures(outcome, values):
            self.freeze(failed)
            values = values.masked_fill(self.frozen if self.members else self.frozen[0], torch.nan)
        if not self.frozen.all():
            self.adam.step()
        self.record.append((values, *cost(outcome), time.perf_counter() - start))

    def look_for_failures(self, outcome: Outcome, losses: Tensor) -> dict[int, str]:
        """The members that have just failed, with the reason."""
        fine = losses.isfinite()
        statuses = torch.zeros_like(fine, dtype=torch.int64)
        if outcome.solution is not None:
            statuses = torch.as_tensor(outcome.solution.status)
            fine = fine & (statuses == Status.SUCCESS)
        if fine.all() and not self.failures:
            return {}
        found = {}
        for member in (~fine.reshape(-1).cpu() & ~self.frozen).nonzero().flatten().tolist():
            status = Status(int(statuses.reshape(-1)[member]))
            found[member] = f"{status.name}: {status.help}" if status else "the loss is not finite"
        return found

    @torch.no_grad()
    def freeze(self, failed: dict[int, str]) -> None:
        """Keep the parameters of failed members aside, and let zeros, which are easy to solve, take their place."""
        members = torch.zeros_like(self.frozen)
        members[list(failed)] = True
        self.frozen = self.frozen | members
        self.failures += [Failure(member, len(self.record), reason) for member, reason in failed.items()]
        if self.members is None:
            return
        for member in failed:
            self.set_aside.append((member, [p[member].clone() for p in self.adam.parameters]))
            for parameter in self.adam.parameters:
                parameter[member] = 0.0
        self.adam.freeze(members)

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
            losses = mean(self.loss(self.model.run(x).prediction, y), self.members)
            self.validations.append(losses.masked_fill(self.frozen if self.members else self.frozen[0], torch.nan))

    @torch.no_grad()
    def take_snapshot(self) -> None:
        """Record the features of the chosen points, if it is time."""
        done = len(self.record)
        if self.snapshots is None or done not in self.snapshots.at:
            return
        x = self.snapshots.x
        outcome = self.model.run(x if self.members is None else x.expand(self.members, *x.shape))
        nfe = np.asarray(cost(outcome)[0], dtype=np.int64)
        self.taken.append(Snapshot(done, outcome.features.numpy(force=True), nfe))

    def report(self, total: int) -> Report:
        """How far it is, for those who listen."""
        losses, nfe = self.record[-1][:2]
        return Report(len(self.record), total, float(losses.nanmean()), float(torch.as_tensor(nfe).double().mean()))

    def history(self, stopped: str) -> History:
        """What happened."""
        width = () if self.members is None else (self.members,)

        def series(index: int, dtype: Any) -> Any:
            values = [torch.as_tensor(row[index]).numpy(force=True) for row in self.record]
            shape = width if index < 4 else ()
            return np.array([np.broadcast_to(v, shape) for v in values], dtype=dtype).reshape(len(values), *shape)

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


def cost(outcome: Outcome) -> tuple[Any, Any, Any, int]:
    """Evaluations, accepted and rejected steps, and evaluations made by the gradient."""
    if outcome.solution is None:
        return 0, 0, 0, 0
    stats = outcome.solution.stats
    return stats.nfe, stats.accepted, stats.rejected, stats.nfe_backward


def tensors(name: str, data: Data, members: int | None) -> tuple[Tensor, Tensor]:
    """Points and targets, with a member dimension if there are members; checked."""
    if isinstance(data, Dataset):
        x, y = data.x, data.y
    elif isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        x, y = data  # type: ignore[assignment]
    else:
        return _of_each(name, data, members)
    require(x.ndim > 0 and y.ndim > 0 and len(x) == len(y), name, (tuple(x.shape), tuple(y.shape)), "as many x as y")
    require(len(x) > 0, name, tuple(x.shape), "at least one point")
    for part, values in (("x", x), ("y", y)):
        if values.is_floating_point() and not values.isfinite().all():
            bad = int((~values.isfinite()).reshape(len(values), -1).any(1).sum())
            rows = f"{bad} of {len(values)} rows of {part}"
            raise ValueError(f"{name}: takes finite values, got NaN or infinity in {rows}")
    if members is None:
        return x, y
    return x.expand(members, *x.shape), y.expand(members, *y.shape)


def _of_each(name: str, data: Any, members: int | None) -> tuple[Tensor, Tensor]:
    fits = isinstance(data, Sequence) and len(data) == members and all(isinstance(each, Dataset) for each in data)
    takes = "a Dataset or a pair of tensors (x, y)" + (f", or {members} Datasets, one a member" if members else "")
    if not fits:
        raise TypeError(f"{name}: takes {takes}, got {type(data).__name__}")
    pairs = [tensors(f"{name}[{i}]", each, None) for i, each in enumerate(data)]
    sizes = {x.shape for x, _ in pairs}
    require(len(sizes) == 1, name, sorted(tuple(size) for size in sizes), "datasets of one size")
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def per_member(name: str, value: Any, members: int | None, following: bool = False) -> list[Any]:
    """One value a member, from a sequence or from one for everybody, of which members may also count upwards."""
    if isinstance(value, int | float):
        return [value + i * following for i in range(members or 1)]
    values = list(value)
    fits = members is not None and len(values) == members
    require(fits, name, value, f"one number, or one for each of {members} members")
    return values
