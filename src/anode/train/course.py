"""Training by the compiled engine: many iterations in one call, with the same results up to rounding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from anode.engine import native
from anode.engine.sequential import as_function
from anode.models.nets import NeuralODE
from anode.ode.control import PID
from anode.ode.inputs import even_steps
from anode.train.eligible import eligible, linear_of
from anode.train.followed import Followed
from anode.train.members import name_of
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.training import Training

LOSSES = ("huber", "mse", "cross_entropy")
"""The losses that the engine supports, in the order of its enumeration."""
SECONDS = 0.1
"""Target duration of a call in seconds: short enough for Ctrl-C and progress bars, long enough to be efficient."""


class Course:
    """A training run whose iterations the compiled engine makes.

    Args:
        training: The training run.
        followed: The compiled version of the model's field, without an obstacle.
    """

    def __init__(self, training: Training, followed: Followed) -> None:
        self.training, self.protocol, self.followed = training, training.protocol, followed
        model, protocol = training.network, training.protocol
        state, (group,) = training.optimizer.state, training.optimizer.param_groups
        assert isinstance(model, NeuralODE)
        assert isinstance(protocol.data, Points)
        self.model, self.data = model, protocol.data
        field, head = followed.field, linear_of(model.head)
        assert field is not None
        assert head is not None
        solver, data = model.flow.solver, protocol.data
        assert isinstance(solver.step_controller, PID)
        knots: list[float] = []
        if solver.step_size is not None:
            knots = even_steps(0.0, model.flow.t1, solver.step_size, solver.max_steps)
        # The engine updates these tensors in place, and expects them in this order.
        idle = self._idle((*field.tensors, head.weight, head.bias))
        parameters = [*field.tensors, head.weight, head.bias, *idle]
        like, trained = training.parameters[0], {id(p) for p in training.parameters}
        moments = [state[p] if id(p) in trained else None for p in parameters]
        targets = data.y if protocol.classifies else data.y.to(like)
        weights = None if data.weights is None else data.weights.to(like)
        # The engine is given addresses, so these tensors must live as long as this object.
        self._kept = [None if part is None else self._laid_out(part) for part in (data.x, targets, weights)]
        self._signature = signature(training, followed)
        training.optimizer.zero_grad()
        self._course = native.extension.Course(
            is_double=like.dtype == torch.float64,
            method=native.method_for(solver.tableau),
            t1=model.flow.t1,
            knots=knots,
            rtol=solver.rtol,
            atol=solver.atol,
            max_steps=min(solver.max_steps, 2**62),
            controller=solver.step_controller.numbers,
            grouped=protocol.members is not None,
            program=native.handle(field.program),
            members=protocol.members or 1,
            inputs=data.x.shape[-1],
            outputs=head.bias.shape[-1],
            loss=LOSSES.index(protocol.loss_name),
            x=self._place(self._kept[0]),
            y=self._place(self._kept[1]),
            weights=self._place(self._kept[2]),
            parameters=[p.data_ptr() for p in parameters],
            means=[0 if each is None else each["mean"].data_ptr() for each in moments],
            squares=[0 if each is None else each["square"].data_ptr() for each in moments],
            shared=field.shared,
            idle=[p.numel() // (protocol.members or 1) for p in idle],
            lr=rates_of(training),
            weight_decay=group["weight_decay"],
            adam=(*group["betas"], group["eps"]),
        )
        self._at_once, self._is_wrong = 1, False
        self._swapped = None if followed.known is None else ids_of(followed.known.swapped)

    def _idle(self, used: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters that the loss does not depend on. Only weight decay changes them."""
        known = {id(p) for p in used}
        if self.model.flow.solver.gradient_method.twice:  # autograd gives them no gradient, and Adam skips them
            return []
        return [p for p in self.training.parameters if id(p) not in known]

    def _laid_out(self, points: Tensor) -> Tensor:
        """Return the points with those of each member contiguous; members may share them."""
        if self.protocol.members is not None and points.stride(0) == 0:
            return points[0].contiguous().expand_as(points)
        return points.contiguous()

    def _place(self, points: Tensor | None) -> tuple[int, int]:
        """Return the address of the first member's points, and the stride between members."""
        if points is None:
            return 0, 0
        return points.data_ptr(), 0 if self.protocol.members is None else points.stride(0)

    @property
    def fits(self) -> bool:
        """Whether the model and its settings have not changed since this object was created."""
        now = eligible(self.training)
        return not now.obstacle and signature(self.training, now) == self._signature

    @property
    def is_current(self) -> bool:
        """Whether the tensors that the field uses have not been replaced. Faster than :attr:`fits`."""
        known = self.followed.known
        return known is None or (not self._is_wrong and ids_of(known.swaps(known.f)) == self._swapped)

    def _computes_the_same(self) -> bool:
        """Whether the field and the engine compute the same slopes at the start of the next batch."""
        flow, like = self.model.flow, self.training.parameters[0]
        x, _, _ = self.data.take(self.protocol.order.batch(len(self.training.record)), like)
        with torch.no_grad():
            state = flow.augment(x).contiguous()
            slope = as_function(flow.field)(like.new_zeros(()), state).expand_as(state).contiguous()
        agrees: bool = self._course.agrees(
            state=state.data_ptr(),
            slope=slope.data_ptr(),
            rows=state.shape[-2],
            tolerance=native.AGREEMENT[like.dtype],
        )
        return agrees

    def iterate(self, most: int) -> Iterator[dict[str, Tensor]]:
        """Run some iterations and yield the record of each.

        Yields nothing if the next iteration fails for a single model, or if a traced field no longer computes what was
        traced. The caller then runs the iteration in Python.

        Args:
            most: Maximum number of iterations. Fewer run if they take long, or at the end of an epoch.
        """
        protocol, training = self.protocol, self.training
        if self.followed.known is not None and not self._computes_the_same():
            self._is_wrong = True
            self.followed.forget()
            return
        done, order, members = len(training.record), protocol.order, protocol.members or 1
        first = done % order.batches
        count = max(min(most, order.batches - first, self._at_once), 1)
        numbers = order.of_epoch(done // order.batches)
        numbers_of = partial(torch.empty, dtype=torch.int64, device="cpu")
        losses, accuracies = torch.empty(2, count, members, dtype=torch.float64, device="cpu")
        counts, (failed_at, why) = numbers_of(4, count, members), numbers_of(2, members)
        start = time.perf_counter()
        self._course.train(
            order=self._place(numbers),
            points=order.points,
            size=order.batch_size,
            first=first,
            count=count,
            steps=training.optimizer.param_groups[0]["steps"],
            frozen=training.members.frozen.data_ptr(),
            threads=torch.get_num_threads(),
            loss=losses.data_ptr(),
            accuracy=accuracies.data_ptr() if protocol.classifies else 0,
            counts=[each.data_ptr() for each in counts],
            failed_at=failed_at.data_ptr(),
            why=why.data_ptr(),
        )
        increment_version(training.parameters)  # tell autograd that they were modified in place
        seconds = (time.perf_counter() - start) / count
        self._at_once = min(int(SECONDS / max(seconds, 1e-9)) + 1, 2 * self._at_once)
        made = int(failed_at[0]) if protocol.members is None else count
        self.followed.count(int(counts[0].amax(1).sum()) - 1)  # one call was made by the field itself
        failures: dict[int, dict[int, str]] = {}  # by iteration and member
        for member in (why != 0).nonzero().flatten().tolist() if protocol.members is not None else ():
            failures.setdefault(int(failed_at[member]), {})[member] = name_of(int(why[member]))
        for i in range(made):
            training.optimizer.param_groups[0]["steps"] += 1
            if i in failures:
                training.fail(failures[i])
            nfe, accepted, rejected, backward = (each[i] for each in counts)
            row = {"loss": losses[i], "nfe": nfe, "accepted": accepted, "rejected": rejected}
            if protocol.classifies:
                row["accuracy"] = accuracies[i]
            yield {**row, "nfe_backward": backward.max(), "seconds": torch.tensor(seconds)}
            if training.members.none_left:
                return


def ids_of(swaps: dict[int, Tensor] | None) -> dict[int, int] | None:
    """Return which tensors replace others, as ids that can be compared."""
    return None if swaps is None else {old: id(new) for old, new in swaps.items()}


def rates_of(training: Training) -> list[float]:
    """Return the current learning rate of each member."""
    rate, members = training.optimizer.param_groups[0]["lr"], training.protocol.members or 1
    return rate.tolist() if isinstance(rate, Tensor) and rate.ndim else [float(rate)] * members


def signature(training: Training, followed: Followed) -> tuple[Any, ...]:
    """Return everything that must not change: addresses, trained parameters, optimizer settings and solver."""
    model, state = training.network, training.optimizer.state
    group = training.optimizer.param_groups[0]
    moved = (*rates_of(training), group["weight_decay"], *group["betas"], group["eps"])
    flow = getattr(model, "flow", None)
    solved = () if flow is None else (flow.t1, flow.solver)
    moments = (each.data_ptr() for p in training.parameters for each in state[p].values())
    places = ((p.data_ptr(), p.shape, p.requires_grad) for p in model.parameters())
    activations = (getattr(part, "activation", None) for part in model.modules())
    assert followed.field is not None
    read = (x.data_ptr() for x in followed.field.tensors)
    return (*places, *moments, *moved, *solved, *activations, followed.field.program, *read)
