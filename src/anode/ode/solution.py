"""What a solve returns: the values, how it ended, what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from anode.ode.tools import outside_graphs

State = Tensor | tuple[Tensor, ...]
"""A state is a tensor or a tuple of tensors."""


class Status(IntEnum):
    """How a solve ended. The members are integers, so a tensor of them compares as expected."""

    SUCCESS = 0
    MAX_STEPS = 1
    UNDERFLOW = 2
    NON_FINITE = 3
    NO_EVENT = 4

    def __str__(self) -> str:
        return self.name

    @property
    def help(self) -> str:
        """What happened, and what to do about it."""
        return _HELP[self]


_HELP = {
    Status.SUCCESS: "the solve reached its end time",
    Status.MAX_STEPS: (
        "the step budget was used up before the end time: raise max_steps (in odeint, options={'max_num_steps': ...}), "
        "loosen rtol and atol, "
        "or look at whether f has become stiff or chaotic (during training: lower the learning rate, add weight "
        "decay or augment)"
    ),
    Status.UNDERFLOW: (
        "the step size became too small to move time forward, as happens where a solution blows up in finite time "
        "or jumps: shorten the span, loosen rtol and atol, solve in float64, or name the jumps in step_at"
    ),
    Status.NON_FINITE: (
        "f gave NaN or infinity and no smaller step avoided it: look at f near the time and state that were reached, "
        "and at its parameters"
    ),
    Status.NO_EVENT: "the end of the span was reached before the event: extend t_span or look at the event's sign",
}


class SolveError(RuntimeError, AssertionError):
    """A solve that did not reach its end, raised by :meth:`Solution.check`.

    It is also an ``AssertionError`` because that is what torchdiffeq raises, so that code which catches it goes on
    working after a change of import.

    Args:
        message: What happened, and what to do about it.
        solution: What was solved before the failure; also an attribute.
    """

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> Any:
        """Of the solution, its values go along to another process; not how they were computed."""
        bare = replace(
            self.solution,
            outputs=[_detached(y) for y in self.solution.outputs],
            y1=_detached(self.solution.y1),
            interpolant=None,
            errors=None,
        )
        return SolveError, (str(self), bare)


@dataclass
class Stats:
    """The cost of a solve. Numbers, or a tensor with one entry a group when the step size is per group.

    Attributes:
        nfe: Evaluations of f in the forward solve; rejected steps included.
        accepted: Steps taken.
        rejected: Steps tried and taken back.
        calls: Calls of f, which serve all groups at once; equal to ``nfe`` when there is one group.
        nfe_backward: Evaluations of f made by the gradient; zero until ``backward`` has run, and zero for good with
            ``gradient="stored"``, which makes none.
    """

    nfe: Any = 0
    accepted: Any = 0
    rejected: Any = 0
    calls: int = 0
    nfe_backward: int = 0


@dataclass(frozen=True)
class Engine:
    """Who did the work.

    Attributes:
        obstacle: Why the compiled engine could not take over the whole solve; empty if it did.
        compiled: Whether, in spite of the obstacle, compiled code evaluated f.
    """

    obstacle: str = ""
    compiled: bool = False

    @property
    def name(self) -> str:
        """``"native"`` for the compiled engine, ``"torch"`` for the loop in Python."""
        return "torch" if self.obstacle else "native"

    def __str__(self) -> str:
        if not self.obstacle:
            return "native"
        return f"torch ({self.obstacle}{'; f is compiled' if self.compiled else ''})"


@dataclass(repr=False)
class Solution:
    """The result of :func:`anode.solve`.

    Attributes:
        times: The times of the outputs: ``save_at`` if it was given, otherwise the two ends of the span.
        outputs: The state at each of those times; NaN where a failed solve did not reach it.
        y1: The state at the end: at the end time, or where a failed solve stopped.
        t1: The time that ``y1`` belongs to; a tensor with one entry a group when the step size is per group.
        status: A :class:`Status`, or a tensor of them with one entry a group.
        stats: A :class:`Stats`.
        gradient: How this solve is differentiated: ``"discrete"``, ``"stored"``, ``"continuous"`` or ``"none"``.
        engine: Who did the work: :class:`Engine`. Print it to see why the compiled engine did not.
        interpolant: What calling the solution evaluates; ``None`` without ``dense=True``.
        errors: What :meth:`local_errors` returns; ``None`` without ``dense=True``.
        note: What happened, and what to do about it, if more is known of a failure than its status says; else empty.
    """

    times: list[float]
    outputs: list[State]
    y1: State
    t1: Any
    status: Any
    stats: Stats
    gradient: str
    engine: Engine = Engine()
    interpolant: Callable[[Tensor], State] | None = None
    errors: Callable[[], list[tuple[Any, Tensor]]] | None = None
    note: str = ""

    def __repr__(self) -> str:
        y1 = self.y1 if isinstance(self.y1, tuple) else (self.y1,)
        shapes = ", ".join(str(tuple(y.shape)) for y in y1)
        status = str(self.status) if isinstance(self.status, Status) else f"success={self.success}"
        nfe = self.stats.nfe if isinstance(self.stats.nfe, int) else f"{self.stats.nfe.min()} to {self.stats.nfe.max()}"
        how = f"gradient: {self.gradient}, engine: {self.engine.name}"
        return f"Solution({status}, y1: {shapes}, {len(self.times)} times, nfe: {nfe}, {how})"

    @property
    def ts(self) -> Tensor:
        """The times of ``ys``, in the dtype and on the device of the state."""
        y1 = self.y1[0] if isinstance(self.y1, tuple) else self.y1
        return torch.tensor(self.times, dtype=y1.real.dtype, device=y1.device)

    @property
    def ys(self) -> State:
        """The state at ``ts``, stacked along a new first dimension."""
        if isinstance(self.y1, tuple):
            return tuple(_stack([y[i] for y in self.outputs], y1) for i, y1 in enumerate(self.y1))
        return _stack(self.outputs, self.y1)

    @property
    def success(self) -> bool:
        """Whether every group reached its end."""
        if isinstance(self.status, Status):
            return self.status is Status.SUCCESS
        return bool((self.status == Status.SUCCESS).all())

    @outside_graphs
    def check(self) -> Solution:
        """Return the solution itself, or raise :class:`SolveError` if any part of it failed."""
        failed = first_failure(self.status)
        if failed is None:
            return self
        group, status = failed
        every = torch.as_tensor(self.status).flatten()
        count = int((every != Status.SUCCESS).sum())
        who = "the solve" if len(every) == 1 else f"{count} of {len(every)} groups (first: {group})"
        t1, accepted, rejected = (
            torch.as_tensor(x).flatten()[group].item() for x in (self.t1, self.stats.accepted, self.stats.rejected)
        )
        steps = f"{accepted} steps" + (f" and {rejected} rejected ones" if rejected else "")
        message = (
            f"{who} stopped at t = {t1:.6g}, after {steps}, with status {status.name}: {self.note or status.help}."
        )
        raise SolveError(message, self)

    def __call__(self, t: float | Tensor) -> State:
        """The state at time ``t``, anywhere in the part that was solved; needs ``dense=True``.

        Args:
            t: A number or a tensor of any shape; the result has that shape followed by the state's.
        """
        if self.interpolant is None:
            raise ValueError("this solution keeps no dense output: call solve(..., dense=True) to evaluate it at any t")
        return self.interpolant(t if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.float64))

    def local_errors(self) -> list[tuple[Any, Tensor]]:
        """The size of every accepted step and the root mean square of its error estimate; needs ``dense=True``.

        Both are numbers, or have one entry per group when the step size is per group: a size of zero then means that
        the group took no part in the step. Gradients flow through the errors.
        """
        if self.errors is None:
            raise ValueError("this solution keeps no steps: call solve(..., dense=True) to see their errors")
        return self.errors()


def first_failure(status: Any) -> tuple[int, Status] | None:
    """Return the first group that failed and its status; ``None`` if all succeeded."""
    every = status.flatten().tolist() if isinstance(status, Tensor) else [status]
    return next(((group, Status(code)) for group, code in enumerate(every) if code != Status.SUCCESS), None)


def _stack(tensors: list[Any], like: Tensor) -> Tensor:
    return torch.stack(tensors) if tensors else like.new_empty(0, *like.shape)


def _detached(y: State) -> State:
    return tuple(part.detach() for part in y) if isinstance(y, tuple) else y.detach()
