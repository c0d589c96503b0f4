"""The solves that a piece of code makes, whatever it returns, so that their cost can be counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anode.ode.solution import Solution

_made: ContextVar[list[Solution] | None] = ContextVar("solves", default=None)


@contextmanager
def solves_made() -> Iterator[list[Solution]]:
    """Collect the solutions of all forward solves that this thread makes in the block.

    Example:
        >>> import torch, anode
        >>> flow = anode.Flow(anode.MLPField(2))
        >>> with solves_made() as made:
        ...     y = flow(flow(torch.ones(1, 2)))
        >>> len(made)
        2
    """
    made: list[Solution] = []
    before = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(before)


def noted(solution: Solution) -> Solution:
    """Return a new solution, after telling the innermost :func:`solves_made` of it."""
    made = _made.get()
    if made is not None:
        made.append(solution)
    return solution
