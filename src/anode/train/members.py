"""The members of a stack and their failures. A single model counts as one member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anode.models.model import Outcome
from anode.ode.solution import OURS, Solution, SolveError, Status

LOSS = max(Status) + 1
"""A further status: the solve succeeded, but the loss is not finite."""
GRADIENT = LOSS + 1
"""A further status: a gradient is not finite."""


def name_of(status: int) -> str:
    """Return the name of an :class:`anode.Status`, or ``"LOSS"`` or ``"GRADIENT"``."""
    return {LOSS: "LOSS", GRADIENT: "GRADIENT"}.get(status) or Status(status).name


def explain(name: str, cause: Outcome | SolveError | None = None) -> str:
    """Return a description of a failure.

    Args:
        name: The name of a status, ``"LOSS"`` or ``"GRADIENT"``.
        cause: The outcome of the model, or the error of the backward solve.
    """
    if isinstance(cause, SolveError):
        return str(cause)
    if name == "LOSS":
        return "the loss is not finite"
    if name == "GRADIENT":
        return "a gradient is not finite"
    names = OURS if cause is None or cause.solution is None else cause.solution.names
    return f"{name}: {Status[name].help_with(names)}"


def error_for(name: str, iteration: int, cause: Outcome | SolveError | None = None) -> Exception:
    """Return the error to raise for a failure, see :func:`explain`."""
    text = f"in iteration {iteration} of training, {explain(name, cause)}"
    if isinstance(cause, SolveError):
        return SolveError(text, cause.solution)
    if name not in Status.__members__ or cause is None or cause.solution is None:
        return FloatingPointError(f'{text}: lower lr, or pass on_failure="skip" to skip such iterations')
    return SolveError(text, cause.solution)


class Members:
    """Which members have failed, and the parameters of those.

    Args:
        count: Number of members; ``None`` for a single model.
        parameters: The parameters, with a leading member dimension for a stack.
    """

    def __init__(self, count: int | None, parameters: list[Tensor]) -> None:
        self.count, self.parameters = count, parameters
        self.frozen = torch.zeros(count or 1, dtype=torch.bool, device="cpu")
        self.set_aside: list[tuple[int, list[Tensor]]] = []

    @property
    def none_left(self) -> bool:
        """Whether all members have failed."""
        return bool(self.frozen.all())

    @torch.no_grad()
    def freeze(self, failed: Sequence[int]) -> None:
        """Set the parameters of failed members aside, and replace them by those of a healthy member."""
        members = torch.zeros_like(self.frozen)
        members[list(failed)] = True
        self.frozen = self.frozen | members
        if self.count is None:
            return
        healthy = (~self.frozen).nonzero().flatten().tolist()
        for member in failed:
            self.set_aside.append((member, [p[member].clone() for p in self.parameters]))
            for parameter in self.parameters if healthy else ():
                parameter[member] = parameter[healthy[0]]

    @torch.no_grad()
    def bring_back(self) -> None:
        """Restore the parameters of failed members."""
        for member, values in self.set_aside:
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter[member] = value

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the parameters of failed members unchanged while the body updates all parameters."""
        which = self.frozen.nonzero().flatten().tolist() if self.count is not None else []
        before = [[(p, p[member].clone()) for p in self.parameters] for member in which]
        for parameter in self.parameters if which else ():
            if parameter.grad is not None:
                parameter.grad[which] = 0.0  # an optimizer may use statistics of whole tensors
        yield
        with torch.no_grad():
            for member, values in zip(which, before, strict=True):
                for parameter, value in values:
                    parameter[member] = value

    def of_each(self, values: Any) -> Tensor:
        """Reduce to one value per member: broadcast a scalar, or take the maximum over samples."""
        values = torch.as_tensor(values, device=None if isinstance(values, Tensor) else "cpu")
        if self.count is None:
            return values.reshape(-1).amax(0, keepdim=True)
        return values.expand(self.count) if values.ndim == 0 else values.reshape(self.count, -1).amax(1)

    def status(self, outcome: Outcome) -> Tensor:
        """Return the status of each member's solve; the worst if it has several."""
        if outcome.solution is None:
            return torch.zeros(self.count or 1, dtype=torch.int64, device="cpu")
        return self.of_each(outcome.solution.status)

    def steps(self, solves: Sequence[Solution]) -> tuple[Tensor, Tensor, Tensor]:
        """Return evaluations, accepted and rejected steps of all solves, per member.

        They are 0 without solves, and for members of a stack that have failed.
        """
        done = self.frozen if self.count else torch.zeros(1, dtype=torch.bool, device="cpu")
        nothing = torch.zeros(self.count or 1, dtype=torch.int64, device="cpu")
        nfe, accepted, rejected = (
            sum((self.of_each(getattr(each.stats, name)).cpu() for each in solves), nothing).masked_fill(done, 0)
            for name in ("nfe", "accepted", "rejected")
        )
        return nfe, accepted, rejected

    def unless_frozen(self, values: Tensor) -> Tensor:
        """Return values, [...] or [members, ...], with NaN for members that have failed."""
        return self._without(values, self.frozen)

    def if_solved(self, values: Tensor, outcome: Outcome) -> Tensor:
        """Return values with NaN for members whose solve failed."""
        return self._without(values, self.status(outcome) != Status.SUCCESS)

    def _without(self, values: Tensor, members: Tensor) -> Tensor:
        members = (members if self.count else members[0]).to(values.device)
        return values.masked_fill(members.reshape(members.shape + (1,) * (values.ndim - members.ndim)), torch.nan)
