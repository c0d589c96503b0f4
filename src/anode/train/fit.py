"""Training: one loop for every model, alone or stacked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import number, require
from anode.models.model import Model, Outcome, as_model
from anode.ode.solution import Engine, SolveError
from anode.train import course
from anode.train.between import Between
from anode.train.callbacks import Callback, Report
from anode.train.checkpoint.fingerprint import digest, fingerprint
from anode.train.checkpoint.resume import resumed
from anode.train.checkpoint.state import values_of
from anode.train.evaluation import Evaluation, Snapshots
from anode.train.failures import LOSS, error_for, explain, name_of
from anode.train.history import History
from anode.train.inputs import Data
from anode.train.interrupt import deferred_interrupt
from anode.train.losses import Loss, accuracy, mean
from anode.train.members import Members
from anode.train.optimizers import MakeOptimizer, MakeScheduler, Schedule, clip_gradients, optimizer_of
from anode.train.patience import Patience
from anode.train.progress import Listener, listener
from anode.train.protocol import Protocol
from anode.train.ranks import Ranks, Share
from anode.train.record import OPTIONAL, SERIES, SHARED, Failure, Table
from anode.train.streams import Batch, Stream

__all__ = ["Snapshots", "Training", "fit"]


def fit(
    model: nn.Module,
    data: Data,
    *,
    epochs: int = 50,
    batch_size: int | None = None,
    lr: float | Sequence[float] | None = None,
    weight_decay: float | None = None,
    optimizer: str | MakeOptimizer = "adam",
    scheduler: MakeScheduler | None = None,
    clip: float | None = None,
    loss: str | Loss | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
    validation: Data | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    seed: int | Sequence[int] = 0,
    snapshots: Snapshots | None = None,
    minutes: float | None = None,
    on_failure: str = "stop",
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | Listener | None = None,
) -> History:
    """Train a model, or a stack of models.

    The members of a stack are independent: each has its own seed, order of data, learning rate and step size, and ends
    as it would have ended alone. A member whose solve fails, or whose loss is no longer finite, is frozen as it was
    before that iteration and reported in ``history.failures``; the others go on. Training a model by itself ends there.
    With ``gradient="continuous"`` members are not quite independent: the adjoint has one step size for all of them.

    Ctrl-C ends training after the present iteration; the model and the history are those of that moment.

    ``history.engine`` reports whether the compiled engine made the iterations and, if it did not, why not.

    Args:
        model: What to train, in place: an anode model, or any ``nn.Module`` that maps a batch to predictions.
        data: A dataset, ``(x, y)`` or ``(x, y, weights)`` with one weight per point, whose scale has no meaning; for a
            stack also a sequence of these, one per member and all of one size. Images may be ``torch.uint8``: they stay
            so, and the model sees each batch scaled to [0, 1]. Or batches of ``(x, y)``, or ``(x, y, weights)`` whose
            weights are used as they are: a ``DataLoader``, any other
            iterable that can be gone through once per epoch, or a function that makes the batches of an epoch from a
            seed. Only the function's batches can be resumed to the same bits.
        epochs: Passes over the data.
        batch_size: Points in an iteration; the last batch of an epoch may be smaller. Defaults to 64, or to all points
            if there are fewer.
        lr: The learning rate, or one per member. Defaults to 1e-3.
        weight_decay: As the optimizer takes it: an L2 penalty for Adam. Defaults to 0.
        optimizer: ``"adam"``, ``"adamw"``, ``"nadam"``, ``"radam"``, ``"rmsprop"``, ``"sgd"``, or a function from a
            list of parameters to a ``torch.optim.Optimizer``, which then sets ``lr`` and ``weight_decay`` itself.
        scheduler: A function from the optimizer to a scheduler of ``torch.optim.lr_scheduler``. It is stepped after
            every iteration; ``ReduceLROnPlateau`` after every evaluation.
        clip: Largest norm of the gradient, taken over all parameters of a member; larger ones are scaled down to it.
        loss: ``"huber"``, ``"mse"``, ``"cross_entropy"``, or a function from predictions and targets to losses. A
            function whose first parameter is called ``outcome`` is given the whole :class:`anode.Outcome` in place of
            the predictions. Defaults to ``"cross_entropy"`` if the targets are integers, which are then class numbers,
            and to ``"huber"`` otherwise. If the targets are class numbers, accuracies are recorded too.
        transform: A function applied to the points of every training batch, such as random flips of images.
        validation: Data whose loss is recorded on the way, in batches of ``batch_size``. It is NaN where a solve fails,
            which is no failure of the training.
        evaluate_every: How many iterations pass between evaluations; by default an epoch. The model is also evaluated
            at the end of training, even if time is up.
        patience: End when the validation loss has not improved for so many evaluations, and in any case leave the model
            as it was at its lowest; only for models by themselves. An evaluation at the very end counts if it would
            have been done there anyway.
        seed: Random seed of the order of data. A stack takes one per member; from a single seed its members get that
            one and those that follow it.
        snapshots: Which features to record, and when.
        minutes: End after the iteration in which so much time has passed.
        on_failure: What to do when a solve fails, or a loss or gradient is not finite. ``"stop"``: as above.
            ``"skip"``: leave the model as it is and go on with the next batch; only for models by themselves.
            ``"raise"``: raise :class:`anode.SolveError`, or ``FloatingPointError``; the model is as before.
        checkpoint: A folder to keep the state of training in. If it holds one of the same model, data and settings,
            training goes on from there, to the same bits as without the interruption, whatever the parameters of
            ``model`` are; you may ask for more ``epochs`` than before. Random numbers that the model draws from torch
            go on as well.
        checkpoint_every: How many seconds pass between two states; 0 keeps every iteration's. The last one is kept in
            any case, unless the process is killed.
        callbacks: Objects that are called on the way, see :class:`anode.Callback`.
        progress: True for a progress bar, False for none, or a function that is told of every iteration. By default a
            bar if there is a terminal.

    Returns:
        What happened, see :class:`anode.History`.

    Example:
        >>> import anode
        >>> model = anode.NeuralODE(2, 1, augment=2)
        >>> history = anode.fit(model, anode.datasets.load("moons"), epochs=2, batch_size=100)
        >>> len(history), bool(history.loss[-1] < history.loss[0]), history.engine
        (20, True, 'native')
    """
    epochs = number("epochs", epochs, whole=True, zero=True)
    minutes = number("minutes", minutes, optional=True)
    callbacks = tuple(callbacks)
    for each in callbacks:
        if not isinstance(each, Callback):
            raise TypeError(f"callbacks: takes objects of anode.Callback, got {each!r}")
    trained = as_model(model)
    protocol = Protocol.checked(
        trained,
        data,
        validation,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        optimizer=optimizer,
        scheduler=scheduler,
        clip=clip,
        transform=transform,
        loss=loss,
        seed=seed,
        snapshots=snapshots,
        evaluate_every=evaluate_every,
        patience=patience,
        on_failure=on_failure,
    )
    ranks = Ranks(next(p.device for p in model.parameters() if p.requires_grad))
    is_stream = isinstance(protocol.data, Stream)
    ranks.check(model, protocol.members, is_stream, lambda: digest(fingerprint(trained, protocol)))
    training = Training(trained, protocol, ranks, epochs)
    with (
        listener(progress if ranks.first else False, type(model).__name__) as tell,
        resumed(training, checkpoint, checkpoint_every, training.total) as folder,
    ):
        training.run(Between(training.total, minutes, tell, tuple(callbacks), folder, ranks))
    return training.history


class Training:
    """A training run under way. Callbacks see it.

    Args:
        model: What to train.
        protocol: How.
        ranks: The processes that do it together.
        epochs: For how long.

    Attributes:
        model: What is trained.
        optimizer: What moves its parameters.
        total: How many iterations there are to be.
        stopped: Why training ended before the last iteration; empty if it did not.
    """

    def __init__(self, model: Model, protocol: Protocol, ranks: Ranks, epochs: int) -> None:
        self.model, self.protocol, self.ranks, self.epochs = model, protocol, ranks, epochs
        self.total = epochs * protocol.batches
        ranks.copy_from_first(list(values_of(model).values()))
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer_of(protocol.optimizer, self.parameters, protocol.lr, protocol.weight_decay)
        self.schedule = Schedule(protocol.scheduler, self.optimizer)
        follows = self.schedule.follows_validation and protocol.validation is None
        require(not follows, "scheduler", "ReduceLROnPlateau", "one that needs no validation data, or pass validation=")
        shared = self.schedule.follows_validation and protocol.members is not None
        require(not shared, "scheduler", "ReduceLROnPlateau", "one that does not follow a loss, for a stack of models")
        self.members = Members(protocol.members, self.parameters)
        self.evaluation = Evaluation(model, protocol, self.members, ranks)
        types = {**SERIES, **SHARED, **(OPTIONAL if protocol.classifies else {})}
        width = () if protocol.members is None else (protocol.members,)
        self.record = Table(types, {name: () if name in SHARED else width for name in types})
        self.patience = Patience(model, protocol.patience)
        self.failures: list[Failure] = []
        self.lost = False  # whether the iteration at hand has failed, and changes nothing
        self.whole = True  # whether no iteration is half done
        self.stopping = self.stopped = ""
        self.course: course.Course | None = None
        self.engine = Engine("no iteration was made")

    def stop(self, reason: str) -> None:
        """End training after the present iteration.

        Args:
            reason: What ``history.stopped`` will say.
        """
        self.stopping = str(reason) or "stopped by a callback"

    def take_course(self) -> None:
        """Hand the iterations to the compiled engine, if it can make them."""
        self.engine = Engine(course.obstacle(self))
        self.course = None if self.engine.obstacle else course.Course(self)

    def run(self, between: Between) -> None:
        """Train, or go on training."""
        between.evaluated = self.evaluation.done
        for callback in between.callbacks:
            callback.begin(self)
        self.stopped = "interrupted"
        try:
            with deferred_interrupt() as interrupted:
                try:
                    self.stopped = self.loop(between, interrupted)
                except KeyboardInterrupt:
                    if not self.ranks.alone:
                        raise  # in the middle of something that the others wait for
                if self.whole:
                    between.keep(self)
            self.patience.bring_back()
        finally:
            self.members.bring_back()
        for callback in between.callbacks:
            callback.end(self)

    def loop(self, between: Between, interrupted: Callable[[], bool]) -> str:
        """The training loop; why it ended before the last iteration."""
        stopped = self.stopping
        self.take_course()
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
        between.call_back(self, iterated=False)
        return stopped or (self.patience.reason if len(self.record) < between.total else "")

    def advance(self, between: Between) -> None:
        """Some iterations, at least one, and a look at what they have come to."""
        self.whole = False
        done = len(self.record)
        if self.course is not None and not self.course.fits:
            self.take_course()
        if self.course is not None:
            for row in self.course.iterate(self.until_looked_at(between)):
                self.note(row, between)
        if len(self.record) == done:  # one that the compiled engine cannot make, or deal with
            self.note(self.iterate(), between)
        self.evaluation.take_snapshot(len(self.record))
        if self.protocol.evaluates_after(len(self.record)):
            self.validate()
            self.patience.look(self.evaluation.latest)
            if self.schedule.follows_validation:
                self.schedule.evaluated(self.evaluation.losses()[-1])  # as a run that is taken up will see it
        self.whole = True

    def until_looked_at(self, between: Between) -> int:
        """How many iterations may be made before somebody wants to see the model."""
        done, protocol = len(self.record), self.protocol
        every = protocol.evaluate_every or protocol.batches
        moments = [between.total, done + every - done % every]
        if protocol.snapshots is not None:
            moments += [moment for moment in protocol.snapshots.at if moment > done]
        return min(moments) - done if between.may_wait else 1

    def note(self, row: dict[str, Any], between: Between) -> None:
        """Record an iteration."""
        self.record.add(**row)
        between.note(self)

    def iterate(self) -> dict[str, Any]:
        """One step of the optimiser; what is recorded of it."""
        start, self.lost = time.perf_counter(), False
        share, batch = self.protocol.batch(len(self.record), self.ranks, self.parameters[0])
        outcome, losses, seen = self.forward(share, batch)
        if not self.lost:
            self.optimizer.zero_grad()
            self.backward(losses, share)
        if not self.lost:
            with self.members.held():
                self.optimizer.step()
        self.schedule.iterated()
        row = {name: self.unless_lost(values) for name, values in seen.items()}
        return {**row, **self.cost(outcome), "seconds": time.perf_counter() - start}

    def forward(self, share: Share, batch: Batch) -> tuple[Outcome, Tensor, dict[str, Tensor]]:
        """The outcome, the losses, and what is recorded of them.

        It is computed again without those that fail, so that they cannot disturb the others.
        """
        count = self.protocol.members
        x, y, weights = batch
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        while True:
            outcome = self.model.run(x)
            losses = mean(self.protocol.losses(outcome, y), count, weights)
            seen = {"loss": losses.detach()}
            if self.protocol.classifies:
                seen["accuracy"] = accuracy(outcome.prediction.detach(), y, count)
            statuses = self.members.status(outcome).cpu()
            unusable = ~seen["loss"].reshape(-1).isfinite().cpu()
            statuses = torch.where(unusable & (statuses == 0), LOSS, statuses)
            seen, statuses = self.ranks.agree(seen, statuses, share)
            failed = ((statuses != 0) & ~self.members.frozen).nonzero().flatten().tolist()
            if failed:
                for buffer, value in before:  # such as statistics of a batch that is not counted
                    buffer.copy_(value)
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
        self.ranks.sum_gradients(self.parameters)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        sums = [
            g.sum() if self.protocol.members is None else g.reshape(self.protocol.members, -1).sum(1) for g in gradients
        ]
        if sums and not torch.stack(sums).isfinite().all():
            fine = torch.stack(sums).isfinite().all(0).reshape(-1).cpu() | self.members.frozen
            self.fail(dict.fromkeys((~fine).nonzero().flatten().tolist(), "GRADIENT"))
        if self.protocol.clip is not None:
            clip_gradients(self.parameters, self.protocol.clip, self.protocol.members)

    def fail(self, failed: dict[int, str], cause: Outcome | SolveError | None = None) -> None:
        """Deal with members that failed, given with their status, in the way asked for."""
        iteration = len(self.record)
        if self.protocol.on_failure == "raise":
            raise error_for(next(iter(failed.values())), iteration, cause)
        self.failures += [Failure(member, iteration, explain(why, cause), why) for member, why in failed.items()]
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

    @property
    def report(self) -> Report:
        """How far it is, for those who listen."""
        row = self.record.last or {"loss": torch.tensor(torch.nan), "nfe": torch.tensor(0)}
        seen = self.evaluation.record.last if self.evaluation.done == len(self.record) else None
        return Report(
            done=len(self.record),
            total=self.total,
            loss=float(row["loss"].nanmean()),
            nfe=float(row["nfe"].double().mean()),
            accuracy=float(row["accuracy"].nanmean()) if "accuracy" in row else None,
            validation=self.evaluation.latest if self.evaluation.done == len(self.record) else None,
            validation_accuracy=float(seen["validation_accuracy"].mean())
            if seen and self.protocol.classifies
            else None,
        )

    @property
    def history(self) -> History:
        """What has happened so far."""
        series = self.record.arrays()
        self.ranks.copy_from_first([torch.from_numpy(series["seconds"])])
        return History(
            **series,
            **self.evaluation.record.arrays(),
            batches=self.protocol.batches,
            failures=self.failures,
            stopped=self.stopped,
            snapshots=self.evaluation.snapshots,
            settings={**self.protocol.settings(), "epochs": self.epochs},
            engine=str(self.engine),
        )
