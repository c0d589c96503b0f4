"""Training: one loop for every model, alone or stacked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anode.checks import number
from anode.models.model import Model, Outcome
from anode.ode.solution import SolveError
from anode.train import course
from anode.train.adam import Adam
from anode.train.between import Between
from anode.train.evaluation import Evaluation, Snapshots
from anode.train.failures import LOSS, describe, error_for, name_of
from anode.train.fingerprint import digest, fingerprint
from anode.train.history import History
from anode.train.inputs import Data
from anode.train.interrupt import deferred_interrupt
from anode.train.losses import Loss, accuracy, mean
from anode.train.members import Members
from anode.train.patience import Patience
from anode.train.progress import Listener, Report, listener
from anode.train.protocol import Protocol
from anode.train.ranks import Ranks, Share
from anode.train.record import OPTIONAL, SERIES, SHARED, Failure, Table
from anode.train.resume import resumed
from anode.train.state import values_of

__all__ = ["Snapshots", "Training", "fit"]


def fit(
    model: Model,
    data: Data,
    *,
    epochs: int = 50,
    batch_size: int | None = None,
    lr: float | Sequence[float] = 1e-3,
    weight_decay: float = 0.0,
    loss: str | Loss | None = None,
    validation: Data | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    seed: int | Sequence[int] = 0,
    snapshots: Snapshots | None = None,
    minutes: float | None = None,
    on_failure: str = "stop",
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
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
        data: A dataset, ``(x, y)`` or ``(x, y, weights)`` with a weight a point, whose scale has no meaning; for a
            stack also a sequence of these, one a member and all of one size. Images may be ``torch.uint8``: they stay
            so, and the model sees each batch as numbers from 0 to 1.
        epochs: Passes over the data.
        batch_size: Points in an iteration; the last batch of an epoch may be smaller. Defaults to 64, or to all points
            if there are fewer.
        lr: Adam's learning rate, or one a member.
        weight_decay: Adam's L2 penalty.
        loss: ``"huber"``, ``"mse"``, ``"cross_entropy"``, or a function from predictions and targets to losses.
            Defaults to ``"cross_entropy"`` if the targets are integers, which are then class numbers, and to
            ``"huber"`` otherwise. With ``"cross_entropy"`` accuracies are recorded too.
        validation: Data whose loss is recorded on the way, in batches of ``batch_size``. It is NaN where a solve fails,
            which is no failure of the training.
        evaluate_every: After how many iterations that is done; by default after every epoch. At the end of training,
            also if time is up, it is done in any case.
        patience: End when so many evaluations in turn have found no lower validation loss than before, and in any case
            leave the model as it was at its lowest; only for models by themselves. An evaluation at the very end counts
            if it would have been done there anyway.
        seed: Of the order of data. A stack takes one a member; from a single seed its members get that one and those
            that follow it.
        snapshots: Which features to record, and when.
        minutes: End after the iteration in which so much time has passed.
        on_failure: What to do when a solve fails, or a loss or gradient is not finite. ``"stop"``: as above.
            ``"skip"``: leave the model as it is and go on with the next batch; only for models by themselves.
            ``"raise"``: raise :class:`anode.SolveError`, or ``FloatingPointError``; the model is as before.
        checkpoint: A folder to keep the state of training in. Where it holds one of the same model, data and settings,
            training goes on from there, to the same bits as without the interruption, whatever the parameters of
            ``model`` are; more ``epochs`` than before may be asked for. Random numbers that the model draws from torch
            go on as well.
        checkpoint_every: How many seconds pass between two states; 0 keeps every iteration's. The last one is kept in
            any case, unless the process is killed.
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
    epochs = number("epochs", epochs, whole=True, zero=True)
    minutes = number("minutes", minutes, optional=True)
    if not isinstance(model, Model):
        raise TypeError(f"model: takes an anode model, such as a NeuralODE or a Flow, got {type(model).__name__}")
    protocol = Protocol.checked(
        model,
        data,
        validation,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        loss=loss,
        seed=seed,
        snapshots=snapshots,
        evaluate_every=evaluate_every,
        patience=patience,
        on_failure=on_failure,
    )
    ranks = Ranks(next(p.device for p in model.parameters() if p.requires_grad))
    ranks.check(model, protocol.members, lambda: digest(fingerprint(model, protocol)))
    training, total = Training(model, protocol, ranks), epochs * protocol.order.batches
    with (
        listener(progress if ranks.first else False, type(model).__name__) as tell,
        resumed(training, checkpoint, checkpoint_every, total) as folder,
    ):
        stopped = training.run(Between(total, minutes, tell, folder, ranks))
    return training.history(stopped, epochs)


class Training:
    """A training run under way.

    Args:
        model: What to train.
        protocol: How.
        ranks: The processes that do it together.
    """

    def __init__(self, model: Model, protocol: Protocol, ranks: Ranks) -> None:
        self.model, self.protocol, self.ranks = model, protocol, ranks
        ranks.copy_from_first(list(values_of(model).values()))
        parameters = [p for p in model.parameters() if p.requires_grad]
        rates = torch.tensor(protocol.lr, dtype=torch.float64, device=parameters[0].device)
        self.adam = Adam(parameters, rates if protocol.members else rates[0], protocol.weight_decay)
        self.members = Members(protocol.members, self.adam)
        self.evaluation = Evaluation(model, protocol, self.members, ranks)
        types = {**SERIES, **SHARED, **(OPTIONAL if protocol.classifies else {})}
        width = () if protocol.members is None else (protocol.members,)
        self.record = Table(types, {name: () if name in SHARED else width for name in types})
        self.patience = Patience(model, protocol.patience)
        self.failures: list[Failure] = []
        self.lost = False  # whether the iteration at hand has failed, and changes nothing
        self.whole = True  # whether no iteration is half done
        self.course = None if course.obstacle(self) else course.Course(self)

    def run(self, between: Between) -> str:
        """Train, or go on training.

        Returns:
            Why that ended before the last iteration; nothing if it did not.
        """
        stopped = "interrupted"
        try:
            with deferred_interrupt() as interrupted:
                try:
                    stopped = self.loop(between, interrupted)
                except KeyboardInterrupt:
                    if not self.ranks.alone:
                        raise  # in the middle of something that the others wait for
                if self.whole:
                    between.keep(self)
            self.patience.bring_back()
        finally:
            self.members.bring_back()
        return stopped

    def loop(self, between: Between, interrupted: Callable[[], bool]) -> str:
        """The training loop; why it ended before the last iteration."""
        stopped = ""
        with self.ranks.joined(self.model):
            self.evaluation.take_snapshot(len(self.record))
        while len(self.record) < between.total:
            if self.members.none_left or stopped or self.patience.reason:
                break
            with self.ranks.joined(self.model):
                self.advance(between)
            stopped = between.pause(self, interrupted)
        if stopped == "interrupted":
            return stopped
        if self.members.none_left:
            return "no member is left" if self.protocol.members else self.failures[-1].reason
        with self.ranks.joined(self.model):
            self.validate()
        return stopped or (self.patience.reason if len(self.record) < between.total else "")

    def advance(self, between: Between) -> None:
        """Some iterations, at least one, and a look at what they have come to."""
        self.whole = False
        done = len(self.record)
        if self.course is not None and not self.course.fits:
            self.course = None if course.obstacle(self) else course.Course(self)
        if self.course is not None:
            for row in self.course.iterate(self.until_looked_at(between)):
                self.note(row, between)
        if len(self.record) == done:  # one that the compiled engine cannot make, or deal with
            self.note(self.iterate(self.protocol.order.batch(done)), between)
        self.evaluation.take_snapshot(len(self.record))
        if self.protocol.evaluates_after(len(self.record)):
            self.validate()
            self.patience.look(self.evaluation.latest)
        self.whole = True

    def until_looked_at(self, between: Between) -> int:
        """How many iterations may be made before somebody wants to see the model."""
        done, protocol = len(self.record), self.protocol
        every = protocol.evaluate_every or protocol.order.batches
        moments = [between.total, done + every - done % every]
        if protocol.snapshots is not None:
            moments += [moment for moment in protocol.snapshots.at if moment > done]
        return min(moments) - done if between.may_wait else 1

    def note(self, row: dict[str, Any], between: Between) -> None:
        """Record an iteration."""
        self.record.add(**row)
        between.note(self)

    def iterate(self, batch: Tensor) -> dict[str, Any]:
        """One step of the optimiser; what is recorded of it."""
        start, self.lost = time.perf_counter(), False
        share = self.ranks.share(batch)
        outcome, losses, seen = self.forward(share)
        if not self.lost:
            self.adam.zero_grad()
            self.backward(losses, share)
        if not self.lost:
            self.adam.step()
        row = {name: self.unless_lost(values) for name, values in seen.items()}
        return {**row, **self.cost(outcome), "seconds": time.perf_counter() - start}

    def forward(self, share: Share) -> tuple[Outcome, Tensor, dict[str, Tensor]]:
        """The outcome, the losses, and what is recorded of them.

        It is computed again without those that fail, so that they cannot disturb the others.
        """
        count = self.protocol.members
        x, y, weights = self.protocol.data.take(share.points, self.adam.parameters[0])
        while True:
            outcome = self.model.run(x)
            losses = mean(self.protocol.loss(outcome.prediction, y), count, weights)
            seen = {"loss": losses.detach()}
            if self.protocol.classifies:
                seen["accuracy"] = accuracy(outcome.prediction.detach(), y, count)
            statuses = self.members.status(outcome).cpu()
            unusable = ~seen["loss"].reshape(-1).isfinite().cpu()
            statuses = torch.where(unusable & (statuses == 0), LOSS, statuses)
            seen, statuses = self.ranks.agree(seen, statuses, share)
            failed = ((statuses != 0) & ~self.members.frozen).nonzero().flatten().tolist()
            if failed:
                self.fail({i: name_of(int(statuses[i])) for i in failed}, outcome)
            if not failed or self.lost:
                return outcome, losses, seen

    def backward(self, losses: Tensor, share: Share) -> None:
        """Gradients of the members' losses, which are independent of each other."""
        try:
            if share.weight:
                (losses.sum() * share.weight).backward()
        except SolveError as error:  # of the continuous adjoint, whose backward solve can fail by itself
            going = (~self.members.frozen).nonzero().flatten().tolist()
            self.fail(dict.fromkeys(going, name_of(int(error.solution.status))), error)
            return
        self.ranks.sum_gradients(self.adam.parameters)
        sums = [g.sum() if self.protocol.members is None else g.flatten(1).sum(1) for g in self.adam.gradients()]
        if sums and not torch.stack(sums).isfinite().all():
            fine = torch.stack(sums).isfinite().all(0).reshape(-1).cpu() | self.members.frozen
            self.fail(dict.fromkeys((~fine).nonzero().flatten().tolist(), "GRADIENT"))

    def fail(self, failed: dict[int, str], cause: Outcome | SolveError | None = None) -> None:
        """Deal with members that failed, given with their status, in the way asked for."""
        iteration = len(self.record)
        if self.protocol.on_failure == "raise":
            raise error_for(next(iter(failed.values())), iteration, cause)
        self.failures += [Failure(member, iteration, describe(why, cause), why) for member, why in failed.items()]
        if self.protocol.on_failure == "stop":
            self.members.freeze(list(failed))
        self.lost = self.protocol.on_failure == "skip" or self.members.none_left

    def unless_lost(self, values: Tensor) -> Tensor:
        """Values of members, NaN for those that have failed."""
        return torch.full_like(values, torch.nan) if self.lost else self.members.unless_frozen(values)

    def cost(self, outcome: Outcome) -> dict[str, Any]:
        """What an iteration took: the steps of each member, and evaluations made by the gradient."""
        nfe, accepted, rejected = self.members.steps(outcome)
        backward = 0 if outcome.solution is None else outcome.solution.stats.nfe_backward
        return {"nfe": nfe, "accepted": accepted, "rejected": rejected, "nfe_backward": backward}

    def validate(self) -> None:
        """Look at the validation set, if there is one."""
        self.evaluation.validate(len(self.record))

    def report(self, total: int) -> Report:
        """How far it is, for those who listen."""
        row = self.record.last
        seen = self.evaluation.record.last if self.evaluation.done == len(self.record) else None
        return Report(
            done=len(self.record),
            total=total,
            loss=float(row["loss"].nanmean()),
            nfe=float(row["nfe"].double().mean()),
            accuracy=float(row["accuracy"].nanmean()) if "accuracy" in row else None,
            validation=self.evaluation.latest if self.evaluation.done == len(self.record) else None,
            validation_accuracy=float(seen["validation_accuracy"].mean())
            if seen and self.protocol.classifies
            else None,
        )

    def history(self, stopped: str, epochs: int) -> History:
        """What happened."""
        series = self.record.arrays()
        self.ranks.copy_from_first([torch.from_numpy(series["seconds"])])
        return History(
            **series,
            **self.evaluation.record.arrays(),
            batches=self.protocol.order.batches,
            failures=self.failures,
            stopped=stopped,
            snapshots=self.evaluation.snapshots,
            settings={**self.protocol.settings(), "epochs": epochs},
        )
