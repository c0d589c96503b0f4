"""A training run: the loop, one iteration, and the handling of failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.checks import Words, require
from anode.models.model import Model, Outcome, observed
from anode.ode.solution import Engine, Solution, SolveError
from anode.storage import digest
from anode.train.callbacks import Report
from anode.train.checkpoint.fingerprint import fingerprint
from anode.train.checkpoint.state import values_of
from anode.train.course import Course
from anode.train.eligible import in_memory, parts_of
from anode.train.evaluation import Evaluation, Patience
from anode.train.history import History
from anode.train.interrupts import deferred_interrupt
from anode.train.losses import mean
from anode.train.members import LOSS, Members, error_for, explain, name_of
from anode.train.optimizers import Schedule, clip_gradients, optimizer_of
from anode.train.protocol import Protocol
from anode.train.ranks import Ranks, Share
from anode.train.record import OPTIONAL, SERIES, SHARED, Failure, Table, latest_check
from anode.train.regularisers import Regularised
from anode.train.streams import Batch, Stream

if TYPE_CHECKING:
    from anode.train.between import Between


SPARSE = Words("one with sparse gradients")


class Training:
    """A training run, which is passed to callbacks.

    Args:
        model: The model, as passed to :func:`anode.fit`.
        network: The same as a :class:`Model`, which may be a wrapper.
        protocol: The settings of the run.
        epochs: Number of epochs.

    Attributes:
        optimizer: The optimizer.
        ranks: The processes that train together.
        total: Total number of iterations.
        stopped: Why training ended early; empty if it did not.
    """

    def __init__(self, model: nn.Module, network: Model, protocol: Protocol, epochs: int) -> None:
        self.model, self.network, self.protocol, self.epochs = model, network, protocol, epochs
        self.total = epochs * protocol.batches
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.ranks = Ranks(self.parameters[0].device)
        is_stream = isinstance(protocol.data, Stream)
        self.ranks.check(model, protocol.members, is_stream, lambda: digest(fingerprint(network, protocol)))
        alone = self.ranks.alone or not isinstance(protocol.loss, Regularised)
        require(alone, "loss", protocol.loss, "no regularisers for several processes, which would draw differently")
        self.ranks.copy_from_first(list(values_of(model).values()))
        self.optimizer = optimizer_of(
            protocol.optimizer, self.parameters, protocol.lr, protocol.weight_decay, protocol.members
        )
        self.schedule = Schedule(protocol.scheduler, self.optimizer)
        follows = self.schedule.follows_validation and protocol.validation is None
        require(not follows, "scheduler", "ReduceLROnPlateau", "one that needs no validation data, or pass validation=")
        shared = self.schedule.follows_validation and protocol.members is not None
        require(not shared, "scheduler", "ReduceLROnPlateau", "one that does not follow a loss, for a stack of models")
        self.members = Members(protocol.members, self.parameters)
        self.evaluation = Evaluation(network, protocol, self.members, self.ranks)
        types = {**SERIES, **SHARED, **(OPTIONAL if protocol.classifies else {})}
        width = () if protocol.members is None else (protocol.members,)
        self.record = Table(types, {name: () if name in SHARED else width for name in types})
        self.patience = Patience(model, protocol.patience)
        self.failures: list[Failure] = []
        self.lost = False  # whether the current iteration has failed and changes nothing
        self.whole = True  # False while an iteration is in progress
        self.stopping = self.stopped = ""
        self.course: Course | None = None
        self._batch: tuple[int, Share, Batch] | None = None
        self.engine = Engine("no iteration was made")

    def stop(self, reason: str = "") -> None:
        """End training after the current iteration.

        Args:
            reason: The reason, for ``history.stopped``.
        """
        self.stopping = str(reason) or "stopped by a callback"

    def take_course(self) -> None:
        """Use the compiled engine if it can run the training."""
        parts = parts_of(self)
        self.engine = Engine(parts.obstacle)
        self.course = None if parts.obstacle else Course(self, parts)

    def run(self, between: Between) -> None:
        """Train the model, or continue after a checkpoint."""
        for callback in between.callbacks:
            callback.begin(self)
        self.stopped = "interrupted"
        try:
            with deferred_interrupt() as interrupted:
                try:
                    self.stopped = self.loop(between, interrupted)
                except KeyboardInterrupt:
                    if not self.ranks.alone:
                        raise  # other processes may be waiting for this one
                if self.whole:
                    between.keep()
            self.patience.bring_back()
        finally:
            self.members.bring_back()
        self.ranks.copy_from_first([torch.from_numpy(self.record.arrays()["seconds"])])
        for callback in between.callbacks:
            callback.end(self)

    def loop(self, between: Between, interrupted: Callable[[], bool]) -> str:
        """Run the training loop, and return why it ended early; empty if it did not."""
        stopped = self.stopping
        self.take_course()
        with self.ranks.joined(self.model):
            self.evaluation.take_snapshot(len(self.record))
            if not len(self.record):
                self.evaluation.check(0)
        while len(self.record) < self.total:
            if self.members.none_left or stopped or self.patience.reason:
                break
            with self.ranks.joined(self.model):
                self.advance(between)
            stopped = between.pause(interrupted)
        if stopped == "interrupted":
            return stopped
        if self.members.none_left:
            return "all members have failed" if self.protocol.members else self.failures[-1].reason
        with self.ranks.joined(self.model):
            self.evaluation.validate(len(self.record))
            self.evaluation.check(len(self.record))
        for call in between.calls(iterated=False):
            call()
        return stopped or (self.patience.reason if len(self.record) < self.total else "")

    def advance(self, between: Between) -> None:
        """Run at least one iteration, and the snapshots, checks and evaluations that are due after it."""
        self.whole = False
        done = len(self.record)
        if between.others_act:
            self.follow_parameters()
        if self.course is not None:
            if in_memory(self.protocol) is None:
                self.batch()  # a loader or a transform may change the model
            fits = self.course.fits if between.others_act else self.course.is_current
            if not fits:
                self.take_course()
        if self.course is not None:
            for row in self.course.iterate(self.until_looked_at(between)):
                self.record.add(**row)
                between.note()
        if len(self.record) == done:  # the compiled engine is not used, or cannot handle this iteration
            self.record.add(**self.iterate())
            between.note()
        self.evaluation.take_snapshot(len(self.record))
        if self.protocol.checks_after(len(self.record)):
            self.evaluation.check(len(self.record))
        if self.protocol.evaluates_after(len(self.record)):
            self.evaluation.validate(len(self.record))
            self.patience.look(self.evaluation.latest)
            if self.schedule.follows_validation:
                self.schedule.evaluated(self.evaluation.losses()[-1])  # the value that a resumed run will use
        self.whole = True

    def follow_parameters(self) -> None:
        """Take the parameters that are trained now, which callbacks may have frozen or unfrozen."""
        now = [p for p in self.model.parameters() if p.requires_grad]
        if now and not self.members.set_aside:  # the parameters of failed members are known by their places
            self.parameters[:] = now

    def until_looked_at(self, between: Between) -> int:
        """Return the number of iterations that may run before the model is needed for something else."""
        done, protocol = len(self.record), self.protocol
        rhythms = [protocol.evaluate_every or protocol.batches, protocol.check_every or self.total]
        moments = [self.total, *(done + every - done % every for every in rhythms)]
        if protocol.snapshots is not None:
            moments += [moment for moment in protocol.snapshots.at if moment > done]
        return min(moments) - done if between.may_wait else 1

    def iterate(self) -> dict[str, Any]:
        """Run one iteration in Python and return its record."""
        start, self.lost = time.perf_counter(), False
        share, batch = self.batch()
        made, losses, seen = self.forward(share, batch)
        if not self.lost:
            self.clear_gradients()
            self.backward(losses, share)
        if not self.lost:
            self.move()
        self.schedule.iterated()
        row = {name: self.unless_lost(values) for name, values in seen.items()}
        return {**row, **self.cost(made), "seconds": time.perf_counter() - start}

    def batch(self) -> tuple[Share, Batch]:
        """Return the batch of the next iteration, or of the current one. It is taken from the data only once."""
        if self._batch is None or self._batch[0] != len(self.record):
            self._batch = len(self.record), *self.protocol.batch(len(self.record), self.ranks, self.parameters[0])
        return self._batch[1:]

    def clear_gradients(self) -> None:
        """Remove all gradients. The optimizer may hold only some parameters, and others that callbacks have frozen."""
        held = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        for parameter in (*self.parameters, *held):
            parameter.grad = None

    def move(self) -> None:
        """Clip the gradients, and let the optimizer use them."""
        if self.protocol.clip is not None:
            clip_gradients(self.parameters, self.protocol.clip, self.protocol.members)
        with self.members.held():
            self.optimizer.step()

    def forward(self, share: Share, batch: Batch) -> tuple[list[Solution], Tensor, dict[str, Tensor]]:
        """Return the solves of the model, the losses, and what is recorded of them.

        If members fail, they are frozen and the computation is repeated, so that they do not affect the others.
        """
        count = self.protocol.members
        x, y, weights = batch
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        while True:
            outcome, made = observed(self.network, x, **self.protocol.run_options(self.network, y))
            losses = mean(self.protocol.losses(outcome, y), count, weights)
            seen = {"loss": losses.detach()}
            if self.protocol.classifies:
                seen["accuracy"] = self.protocol.accuracy(outcome, y)
            statuses = self.members.status(outcome).cpu()
            unusable = ~seen["loss"].reshape(-1).isfinite().cpu()
            statuses = torch.where(unusable & (statuses == 0), LOSS, statuses)
            seen, statuses = self.ranks.agree(seen, statuses, share)
            failed = ((statuses != 0) & ~self.members.frozen).nonzero().flatten().tolist()
            if failed:
                for buffer, value in before:  # such as batch statistics, which the failed attempt has updated
                    buffer.copy_(value)
                self.fail({i: name_of(int(statuses[i])) for i in failed}, outcome)
            if not failed or self.lost:
                return made, losses, seen

    def backward(self, losses: Tensor, share: Share) -> None:
        """Compute the gradients of the members' losses, which are independent of each other."""
        try:
            if share.weight:
                (losses.sum() * share.weight).backward()
        except SolveError as error:  # the backward solve of the continuous adjoint failed
            going = (~self.members.frozen).nonzero().flatten().tolist()
            self.fail(dict.fromkeys(going, name_of(int(error.solution.status))), error)
            return
        takes = "one whose gradients are dense; pass sparse=False to nn.Embedding"
        require(not any(p.grad is not None and p.grad.is_sparse for p in self.parameters), "model", SPARSE, takes)
        self.ranks.sum_gradients(self.parameters)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.protocol.members is None:
            sums = list(torch._foreach_norm(gradients, 1))
        else:
            sums = [g.reshape(self.protocol.members, -1).sum(1) for g in gradients]
        if sums and not torch.stack(sums).isfinite().all():
            fine = torch.stack(sums).isfinite().all(0).reshape(-1).cpu() | self.members.frozen
            self.fail(dict.fromkeys((~fine).nonzero().flatten().tolist(), "GRADIENT"))

    def fail(self, failed: dict[int, str], cause: Outcome | SolveError | None = None) -> None:
        """Handle failed members, given with their statuses, according to ``on_failure``."""
        iteration = len(self.record)
        if self.protocol.on_failure == "raise":
            raise error_for(next(iter(failed.values())), iteration, cause)
        self.failures += [Failure(member, iteration, explain(why, cause), why) for member, why in failed.items()]
        if self.protocol.on_failure == "stop":
            self.members.freeze(list(failed))
        self.lost = self.protocol.on_failure == "skip" or self.members.none_left

    def unless_lost(self, values: Tensor) -> Tensor:
        """Return values with NaN for members that have failed, or for all if the iteration has."""
        return torch.full_like(values, torch.nan) if self.lost else self.members.unless_frozen(values)

    def cost(self, made: Sequence[Solution]) -> dict[str, Any]:
        """Return the cost of an iteration: steps per member, and evaluations in the backward pass."""
        nfe, accepted, rejected = self.members.steps(made)
        backward = sum(each.stats.nfe_backward for each in made)
        return {"nfe": nfe, "accepted": accepted, "rejected": rejected, "nfe_backward": backward}

    @property
    def report(self) -> Report:
        """The report on the last iteration."""
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
            check=latest_check(self.evaluation.checks.arrays()["check"]),
        )

    @property
    def history(self) -> History:
        """The history so far."""
        return History(
            **self.record.arrays(),
            **self.evaluation.record.arrays(),
            **self.evaluation.checks.arrays(),
            batches=self.protocol.batches,
            failures=self.failures,
            stopped=self.stopped,
            snapshots=self.evaluation.snapshots,
            settings={**self.protocol.settings(), "epochs": self.epochs},
            engine=str(self.engine),
        )
