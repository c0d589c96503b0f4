"""What can go wrong in an iteration, in words and as errors."""

from __future__ import annotations

from anode.models.model import Outcome
from anode.ode.solution import SolveError, Status

LOSS = max(Status) + 1
"""Comes after the statuses of solves: the solve was fine, but the loss is not finite."""


GRADIENT = LOSS + 1
"""Comes after that: a gradient is not finite."""


def name_of(status: int) -> str:
    """The name of a :class:`anode.Status`, or ``"LOSS"``, or ``"GRADIENT"``."""
    return {LOSS: "LOSS", GRADIENT: "GRADIENT"}.get(status) or Status(status).name


def explain(name: str, cause: Outcome | SolveError | None = None) -> str:
    """What failed, and what that means.

    Args:
        name: That of a status, ``"LOSS"`` or ``"GRADIENT"``.
        cause: What failed: the model, or the backward solve of its gradient.
    """
    if isinstance(cause, SolveError):
        return str(cause)
    if name == "LOSS":
        return "the loss is not finite"
    if name == "GRADIENT":
        return "a gradient is not finite"
    return f"{name}: {Status[name].help}"


def error_for(name: str, iteration: int, cause: Outcome | SolveError | None = None) -> Exception:
    """The error to raise for what :func:`explain` puts in words."""
    text = f"in iteration {iteration} of training, {explain(name, cause)}"
    if isinstance(cause, SolveError):
        return SolveError(text, cause.solution)
    if name not in Status.__members__ or cause is None or cause.solution is None:
        return FloatingPointError(f'{text}: lower lr, or pass on_failure="skip" to leave such iterations out')
    return SolveError(text, cause.solution)
