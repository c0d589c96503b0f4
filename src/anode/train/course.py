"""Training by the compiled engine: many iterations in one call, with the same results up to rounding."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from anode.engine import native
from anode.engine.extension import extension
from anode.models.nets import NeuralODE
from anode.ode.control import PID
from anode.ode.inputs import even_steps
from anode.train.eligible import in_memory, model_obstacle, moves_by_adam, parts_of
from anode.train.members import name_of
from anode.train.parts import Parts, rows
from anode.train.points import Points
from anode.train.streams import Batch

if TYPE_CHECKING:
    from anode.train.training import Training

LOSSES = ("huber", "mse", "cross_entropy")
"""The losses that the engine supports, in the order of its enumeration."""
SECONDS = 0.1
"""Target duration of a call in seconds: short enough for Ctrl-C and progress bars, long enough to be efficient.

Traced parts of the model are compared with what the engine computes as often."""


@dataclass(frozen=True)
class Stretch:
    """The data of some iterations. The engine is given addresses, so these tensors must live until it has returned.

    Attributes:
        x, y, weights: Points, targets and weights in the layout of the engine: a row of numbers for each point.
        order: Indices of the points of an epoch, [points] or [members, points].
        size: Number of points per batch.
        first: The first batch.
        count: Number of batches.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None
    order: Tensor
    size: int
    first: int
    count: int

    def arguments(self, members: int | None) -> dict[str, Any]:
        """Return the arguments of the engine. A tensor is given as its address and the stride between members."""

        def place(x: Tensor | None) -> tuple[int, int]:
            return (0, 0) if x is None else (x.data_ptr(), 0 if members is None else x.stride(0))

        places = {name: place(getattr(self, name)) for name in ("x", "y", "weights", "order")}
        return {**places, "points": self.order.shape[-1], "size": self.size, "first": self.first, "count": self.count}


class Course:
    """A training run whose iterations the compiled engine makes.

    The engine runs many iterations in one call if its Adam moves the parameters and all points are in memory. Otherwise
    it computes the gradients of one batch at a time, and any optimizer, schedule and clipping in Python use them.

    Args:
        training: The training run.
        parts: The compiled parts of the model, without an obstacle.
    """

    def __init__(self, training: Training, parts: Parts) -> None:
        self.training, self.protocol, self.parts = training, training.protocol, parts
        model, protocol = training.network, training.protocol
        assert isinstance(model, NeuralODE)
        self.model = model
        solver, like = model.flow.solver, training.parameters[0]
        assert isinstance(solver.step_controller, PID)
        knots: list[float] = []
        if solver.step_size is not None:
            knots = even_steps(0.0, model.flow.t1, solver.step_size, solver.max_steps)
        # The engine expects these tensors in this order.
        idle = self._idle(parts.tensors)
        parameters, trained = [*parts.tensors, *idle], {id(p) for p in training.parameters}
        training.clear_gradients()
        self._moves = moves_by_adam(training)
        moments = [training.optimizer.state[p] if self._moves and id(p) in trained else None for p in parameters]
        self._gradients: list[tuple[Tensor, Tensor]] = []  # parameters, and where the engine writes their gradients
        if not self._moves:
            self._gradients = [(p, torch.zeros_like(p)) for p in parameters if id(p) in trained]
        written = {id(p): gradient.data_ptr() for p, gradient in self._gradients}
        group = training.optimizer.param_groups[0] if self._moves else {}
        points = in_memory(protocol)
        self._points = None if points is None else self._laid_out((points.x, points.y, points.weights))
        self._signature = signature(training, parts)
        self._course = extension.Course(
            is_double=like.dtype == torch.float64,
            method=native.method_for(solver.tableau),
            t1=model.flow.t1,
            knots=knots,
            rtol=solver.rtol,
            atol=solver.atol,
            max_steps=min(solver.max_steps, 2**62),
            controller=solver.step_controller.numbers,
            grouped=protocol.members is not None,
            **{part.name: native.handle(part.compiled.program) for part in parts.all if part.compiled},
            members=protocol.members or 1,
            loss=LOSSES.index(protocol.loss_name),
            parameters=[p.data_ptr() for p in parameters],
            means=[0 if each is None else each["mean"].data_ptr() for each in moments],
            squares=[0 if each is None else each["square"].data_ptr() for each in moments],
            gradients=[written.get(id(p), 0) for p in parameters],
            shared=parts.shared,
            idle=[p.numel() // (protocol.members or 1) for p in idle],
            lr=rates_of(training) if self._moves else [],
            weight_decay=group.get("weight_decay", 0.0),
            adam=(*group["betas"], group["eps"]) if self._moves else (0.0, 0.0, 0.0),
        )
        self._at_once, self._is_wrong, self._compare_at = 1, False, 0.0
        self._tensors, self._swapped = parameters, [part.swapped for part in parts.all]
        self._given, self._built_of = self._used(), self._built()

    def _idle(self, used: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters without effect whose gradient is zero: those of the field, unless it is "stored".

        Autograd gives no gradient to other parameters without effect, and optimizers skip them.
        """
        known = {id(p) for p in used}
        if self.model.flow.solver.gradient_method.twice:
            return []
        return [p for p in self.model.flow.field.parameters() if p.requires_grad and id(p) not in known]

    def _laid_out(self, batch: Batch) -> Batch:
        """Return points, targets and weights in the layout of the engine: contiguous, but members may share them."""
        members, like = self.protocol.members, self.training.parameters[0]

        def contiguous(x: Tensor) -> Tensor:
            if members is not None and x.stride(0) == 0:
                return x[0].contiguous().expand_as(x)
            return x.contiguous()

        x, y, weights = batch
        y = y.to(torch.int64) if self.protocol.classifies else rows(y.to(like), members)
        return contiguous(rows(x, members)), contiguous(y), None if weights is None else contiguous(weights.to(like))

    @property
    def fits(self) -> bool:
        """Whether the model and its settings have not changed since this object was created."""
        now = parts_of(self.training)
        return not now.obstacle and signature(self.training, now) == self._signature

    @property
    def is_current(self) -> bool:
        """Whether optimizer, schedule and data have not changed the model. Faster than :attr:`fits`."""
        now = [part.swapped for part in self.parts.all]
        if self._is_wrong or None in now or now != self._swapped or self._used() != self._given:
            return False
        return self._moves or (not model_obstacle(self.model) and self._built() == self._built_of)

    def _used(self) -> tuple[Any, ...]:
        """Return the addresses of all tensors, whether they are trained, and the settings of the solve."""
        flow = self.model.flow
        return flow.t1, flow.solver, *((x.data_ptr(), x.requires_grad) for x in self._tensors)

    def _built(self) -> tuple[Any, ...]:
        """Return what the model is built of."""
        modules = tuple(self.model.modules())
        activations = (getattr(module, "activation", None) for module in modules)
        return *modules, *map(id, self.model.parameters()), *activations

    def _stretch(self, most: int) -> Stretch | None:
        """Return the data of at most ``most`` iterations; ``None`` if the engine cannot take the next batch."""
        if self._points is not None:
            done, order = len(self.training.record), self.protocol.order
            first = done % order.batches
            count = max(min(most, order.batches - first, self._at_once), 1) if self._moves else 1
            return Stretch(*self._points, order.of_epoch(done // order.batches), order.batch_size, first, count)
        _, batch = self.training.batch()
        if not self._takes(batch):
            return None
        x, y, weights = self._laid_out(batch)
        in_turn = torch.arange(x.shape[-2], device="cpu")
        which = in_turn if self.protocol.members is None else in_turn.expand(self.protocol.members, -1)
        return Stretch(x, y, weights, which, len(in_turn), 0, 1)

    def _takes(self, batch: Batch) -> bool:
        """Whether the engine can take a batch that was not checked before training."""
        x, y, _ = batch
        front, features = x.shape[: self.protocol.dims], x.shape[self.protocol.dims :]
        if features != self.parts.given or x.dtype != self.training.parameters[0].dtype:
            return False
        if self.parts.unlike(front[-1]):
            return False
        outputs = self.parts.all[-1].shape
        if self.protocol.classifies:
            fits = y.shape == front and y.dtype == torch.int64
            return fits and bool((y >= 0).all()) and bool((y < outputs[0]).all())
        return y.shape == (*front, *outputs) and not y.is_complex()

    def _computes_the_same(self, stretch: Stretch) -> bool:
        """Whether model and engine agree on the next batch, checked now and then. If not, the traces are forgotten."""
        now = time.perf_counter()
        if now < self._compare_at or all(part.known is None for part in self.parts.all):
            return True
        self._compare_at = now + SECONDS
        which = stretch.order[..., stretch.first * stretch.size : (stretch.first + 1) * stretch.size]
        points = Points(stretch.x, stretch.y, self.protocol.members)
        x, _, _ = points.take(which, self.training.parameters[0])
        if self.parts.computes_the_same(x.unflatten(-1, self.parts.given)):
            return True
        self._is_wrong = True
        for part in self.parts.all:
            part.forget()
        return False

    def iterate(self, most: int) -> Iterator[dict[str, Tensor]]:
        """Run some iterations and yield the record of each.

        Yields nothing if the next iteration fails for a single model, or if a traced part no longer computes what was
        traced. The caller then runs the iteration in Python.

        Args:
            most: Maximum number of iterations. Fewer run if they take long, or at the end of an epoch.
        """
        training = self.training
        start = time.perf_counter()
        stretch = self._stretch(most)
        if stretch is None or not self._computes_the_same(stretch):
            return
        made, failures = self._run(stretch)
        if self._moves:
            increment_version(training.parameters)  # tell autograd that they were modified in place
        training.lost = False
        seconds = (time.perf_counter() - start) / stretch.count
        self._at_once = min(int(SECONDS / max(seconds, 1e-9)) + 1, 2 * self._at_once)
        for i, row in enumerate(made):
            if i in failures:
                training.fail(failures[i])
            self._move(failures.get(i, {}))
            seconds = seconds if self._moves else time.perf_counter() - start
            yield {**row, "seconds": torch.tensor(seconds)}
            if training.members.none_left:
                return

    def _run(self, stretch: Stretch) -> tuple[Iterator[dict[str, Tensor]], dict[int, dict[int, str]]]:
        """Run iterations in the engine, and return the record of each, and the failures by iteration and member."""
        protocol, training = self.protocol, self.training
        count, members = stretch.count, protocol.members or 1
        numbers_of = partial(torch.empty, dtype=torch.int64, device="cpu")
        losses, accuracies = torch.empty(2, count, members, dtype=torch.float64, device="cpu")
        counts, (failed_at, why) = numbers_of(4, count, members), numbers_of(2, members)
        self._course.train(
            **stretch.arguments(protocol.members),
            steps=training.optimizer.param_groups[0]["steps"] if self._moves else 0,
            frozen=training.members.frozen.data_ptr(),
            threads=torch.get_num_threads(),
            loss=losses.data_ptr(),
            accuracy=accuracies.data_ptr() if protocol.classifies else 0,
            counts=[each.data_ptr() for each in counts],
            failed_at=failed_at.data_ptr(),
            why=why.data_ptr(),
        )
        made = int(failed_at[0]) if protocol.members is None else count
        augment, field, head = self.parts.all
        augment.count(made)
        field.count(int(counts[0].amax(1).sum()))
        head.count(made)
        failures: dict[int, dict[int, str]] = {}
        for member in (why != 0).nonzero().flatten().tolist() if protocol.members is not None else ():
            failures.setdefault(int(failed_at[member]), {})[member] = name_of(int(why[member]))

        def record(i: int) -> dict[str, Tensor]:
            nfe, accepted, rejected, backward = (each[i] for each in counts)
            row = {"loss": losses[i], "nfe": nfe, "accepted": accepted, "rejected": rejected}
            if protocol.classifies:
                row["accuracy"] = accuracies[i]
            return {**row, "nfe_backward": backward.max()}

        return map(record, range(made)), failures

    def _move(self, failed: Iterable[int]) -> None:
        """Let the optimizer use the gradients, unless the engine has moved the parameters; the failed have none."""
        training = self.training
        if self._moves:
            training.optimizer.param_groups[0]["steps"] += 1
            return
        for p, gradient in self._gradients:
            p.grad = gradient.clone()  # as by autograd: an optimizer may keep it
            for member in failed:
                p.grad[member] = 0.0
        if not training.lost:
            training.move()
        training.schedule.iterated()


def rates_of(training: Training) -> list[float]:
    """Return the current learning rate of each member."""
    rate, members = training.optimizer.param_groups[0]["lr"], training.protocol.members or 1
    return rate.tolist() if isinstance(rate, Tensor) and rate.ndim else [float(rate)] * members


def signature(training: Training, parts: Parts) -> tuple[Any, ...]:
    """Return everything that must not change: addresses, trained parameters, optimizer settings, solver and points."""
    model, state = training.network, training.optimizer.state
    assert isinstance(model, NeuralODE)
    moved: tuple[Any, ...] = ()
    if moves_by_adam(training):
        group = training.optimizer.param_groups[0]
        moments = (each.data_ptr() for p in training.parameters for each in state[p].values())
        moved = (*rates_of(training), group["weight_decay"], *group["betas"], group["eps"], *moments)
    solved = model.flow.t1, model.flow.solver
    places = ((p.data_ptr(), p.shape, p.requires_grad) for p in model.parameters())
    activations = (getattr(part, "activation", None) for part in model.modules())
    programs = (compiled.program for compiled in parts.compiled)
    read = (x.data_ptr() for x in parts.tensors)
    points = in_memory(training.protocol)
    given = () if points is None else (points.x, points.y, points.weights)
    versions = (None if x is None or x.is_inference() else x._version for x in given)
    trained = map(id, training.parameters)
    return (*places, *trained, *moved, *solved, *activations, *programs, *read, *versions)
