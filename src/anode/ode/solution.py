"""The result of a solve: its values, its status and its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from anode.ode.transforms import outside_graphs

if TYPE_CHECKING:
    from anode.ode.dense import DenseOutput

State = Tensor | tuple[Tensor, ...]
"""A state is a tensor or a tuple of tensors."""


def as_tuple(state: State) -> tuple[Tensor, ...]:
    """Return the components of a state: those of a tuple, or the tensor itself."""
    return state if isinstance(state, tuple) else (state,)


class Names(NamedTuple):
    """Messages in the words of the function that was called. The defaults are those of ``anode.solve``.

    Attributes:
        f: Its argument for the right-hand side.
        event: Its argument for the function whose zero ends the solve.
        more_steps: How to allow more steps.
        at_jumps: How to cope with an f that jumps.
        step_size: How to ask for fixed steps.
        implicit: How to ask for an implicit method.
    """

    f: str = "f"
    event: str = "event"
    more_steps: str = "raise max_steps"
    at_jumps: str = "list the jumps in step_at"
    step_size: str = "step_size=0.1"
    implicit: str = "anode.odeint with method='scipy_solver' and options={'solver': 'Radau'}"


OURS = Names()


class Status(IntEnum):
    """How a solve ended. The values are integers, so they compare with a tensor of statuses.

    ``SUCCESS``: it reached the end. ``MAX_STEPS``: it used up ``max_steps``. ``UNDERFLOW``: the step size became too
    small. ``NON_FINITE``: f returned NaN or infinity. ``NO_EVENT``: the event did not occur within the span.
    """

    SUCCESS = 0
    MAX_STEPS = 1
    UNDERFLOW = 2
    NON_FINITE = 3
    NO_EVENT = 4

    def __str__(self) -> str:
        return self.name

    @property
    def help(self) -> str:
        """A description of what happened and what to do about it."""
        return self.help_with(OURS)

    def help_with(self, names: Names) -> str:
        """Return the same in the words of the function that was called."""
        return _HELP[self].format(**names._asdict())


_HELP = {
    Status.SUCCESS: "the solve reached its end time",
    Status.MAX_STEPS: (
        "the step budget was used up before the end time: {more_steps}, loosen rtol and atol, "
        "or check whether {f} has become stiff or chaotic (during training: lower the learning rate, add weight "
        "decay or augment)"
    ),
    Status.UNDERFLOW: (
        "the step size became too small to advance time, which happens if a solution blows up in finite time "
        "or jumps: shorten the span, loosen rtol and atol, solve in float64, or {at_jumps}"
    ),
    Status.NON_FINITE: (
        "{f} returned NaN or infinity and smaller steps did not avoid it: check {f} near the time and state that were "
        "reached, and its parameters"
    ),
    Status.NO_EVENT: "the end of the span was reached before the event: extend t_span or check the event's sign",
}


class SolveError(RuntimeError, AssertionError):
    """The error that :meth:`Solution.check` raises if a solve failed.

    It is also an ``AssertionError``, which is what torchdiffeq raises. Code that catches torchdiffeq's error therefore
    keeps working.

    Args:
        message: What happened, and what to do about it.
        solution: The part that was solved before the failure; also available as an attribute.
    """

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> Any:
        """Pickle the values of the solution, without their autograd graph and the dense output."""
        bare = replace(
            self.solution,
            outputs=[_detached(y) for y in self.solution.outputs],
            y1=_detached(self.solution.y1),
            interpolant=None,
            stacked=None,
        )
        return SolveError, (str(self), bare)


@dataclass
class Stats:
    """The cost of a solve.

    ``nfe``, ``accepted`` and ``rejected`` are integers, or tensors with one entry per group if groups have their own
    step sizes.

    Attributes:
        nfe: Number of evaluations of f in the forward solve, including those of rejected steps.
        accepted: Number of accepted steps.
        rejected: Number of rejected steps.
        calls: Number of calls of f. One call evaluates all groups, so with one group it equals ``nfe``.
        nfe_backward: Number of evaluations of f in the backward pass. It is 0 before ``backward`` runs, and always 0
            with ``gradient="stored"``.
    """

    nfe: Any = 0
    accepted: Any = 0
    rejected: Any = 0
    calls: int = 0
    nfe_backward: int = 0


@dataclass(frozen=True)
class Engine:
    """Which engine ran the solve, and why.

    Attributes:
        obstacle: Why the compiled engine could not run the whole solve; empty if it did.
        compiled: Whether compiled code evaluated f although the Python loop took the steps.
    """

    obstacle: str = ""
    compiled: bool = False

    @property
    def name(self) -> str:
        """``"native"`` for the compiled engine, ``"torch"`` for the Python loop."""
        return "torch" if self.obstacle else "native"

    def __str__(self) -> str:
        if not self.obstacle:
            return "native"
        return f"torch ({self.obstacle}{'; f is compiled' if self.compiled else ''})"


@dataclass(repr=False)
class Solution:
    """The result of :func:`anode.solve`.

    Attributes:
        times: Times of the outputs: ``save_at`` if given, otherwise both ends of the span.
        outputs: The state at each of these times; NaN at times that a failed solve did not reach.
        y1: The final state: at the end time, or where a failed solve stopped.
        t1: The time of ``y1``: a number, or a tensor with one entry per group if groups have their own step sizes.
        status: A :class:`Status`, or a tensor of them with one entry per group.
        stats: The cost of the solve, a :class:`Stats`.
        gradient: How the solve is differentiated: ``"discrete"``, ``"stored"``, ``"continuous"`` or ``"none"``.
        engine: Which engine ran the solve. Print it to see why the compiled engine was not used.
        interpolant: The dense output, which calling the solution evaluates; ``None`` without ``dense=True``.
        note: A description of a failure if more is known than its status says; otherwise empty.
        names: What the function that was called names its arguments, for messages.
        stacked: The value of ``ys`` if the outputs were computed as one tensor; otherwise ``None``.
    """

    times: list[float]
    outputs: list[State]
    y1: State
    t1: Any
    status: Any
    stats: Stats
    gradient: str
    engine: Engine = Engine()
    interpolant: DenseOutput | None = None
    note: str = ""
    names: Names = OURS
    stacked: State | None = None

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(y.shape)) for y in as_tuple(self.y1))
        status = str(self.status) if isinstance(self.status, Status) else f"success={self.success}"
        nfe = self.stats.nfe if isinstance(self.stats.nfe, int) else f"{self.stats.nfe.min()} to {self.stats.nfe.max()}"
        how = f"gradient: {self.gradient}, engine: {self.engine.name}"
        return f"Solution({status}, y1: {shapes}, {len(self.times)} times, nfe: {nfe}, {how})"

    @property
    def ts(self) -> Tensor:
        """The times of ``ys``, in the dtype and on the device of the state."""
        y1 = as_tuple(self.y1)[0]
        return torch.tensor(self.times, dtype=y1.real.dtype, device=y1.device)

    @property
    def ys(self) -> State:
        """The state at ``ts``, stacked along a new first dimension."""
        if self.stacked is not None:
            return self.stacked
        if isinstance(self.y1, tuple):
            return tuple(_stack([y[i] for y in self.outputs], y1) for i, y1 in enumerate(self.y1))
        return _stack(self.outputs, self.y1)

    @property
    def success(self) -> bool:
        """Whether the solve, or every group of it, succeeded."""
        if isinstance(self.status, Status):
            return self.status is Status.SUCCESS
        return bool((self.status == Status.SUCCESS).all())

    @outside_graphs
    def check(self) -> Solution:
        """Return the solution, or raise :class:`SolveError` if the solve or any group of it failed."""
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
        why = self.note or status.help_with(self.names)
        message = f"{who} stopped at t = {t1:.6g}, after {steps}, with status {status.name}: {why}."
        raise SolveError(message, self)

    def __call__(self, t: float | Tensor) -> State:
        """Return the state at time ``t``. Requires ``dense=True``.

        Args:
            t: A number or a tensor of any shape, within the part of the span that was solved. The result has the shape
                of ``t`` followed by that of the state.

        Raises:
            ValueError: If the solution has no dense output, or ``t`` lies outside the part that was solved.
        """
        if self.interpolant is None:
            raise ValueError("this solution has no dense output: pass dense=True to solve to evaluate it at any time")
        return self.interpolant(t if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.float64))

    def local_errors(self) -> list[tuple[Any, Tensor]]:
        """Return the size of every accepted step and the root mean square of its error estimate.

        Requires ``dense=True``. Both are numbers, or have one entry per group if groups have their own step sizes. The
        size is 0 for a group that did not move in the step. The errors can be differentiated.

        Example:
            >>> import torch, anode
            >>> solution = anode.solve(lambda t, y: -y, torch.ones(2), (0.0, 1.0), dense=True)
            >>> [f"{size:.1f}: {error:.0e}" for size, error in solution.local_errors()]
            ['0.1: 5e-09', '1.0: 7e-04']
        """
        if self.interpolant is None:
            raise ValueError("this solution keeps no steps: call solve(..., dense=True) to see their errors")
        return self.interpolant.errors()


def first_failure(status: Any) -> tuple[int, Status] | None:
    """Return the first group that failed and its status; ``None`` if all succeeded."""
    every = status.flatten().tolist() if isinstance(status, Tensor) else [status]
    if not any(every):  # Status.SUCCESS is 0
        return None
    return next((group, Status(code)) for group, code in enumerate(every) if code)


def _stack(tensors: list[Any], like: Tensor) -> Tensor:
    return torch.stack(tensors) if tensors else like.new_empty(0, *like.shape)


def unstacked(ys: State) -> list[State]:
    """Return the single states of several that are stacked."""
    return list(zip(*(part.unbind() for part in ys), strict=True)) if isinstance(ys, tuple) else list(ys.unbind())


def _detached(y: State) -> State:
    return tuple(part.detach() for part in y) if isinstance(y, tuple) else y.detach()
