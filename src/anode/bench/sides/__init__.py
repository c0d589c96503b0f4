"""The libraries that are measured, each used as its own documentation does.

A module here has a function ``work(task)`` that gets a task ready; it is imported in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from anode.bench.tasks import Array


@dataclass(frozen=True)
class Work:
    """A task that is ready to be done, again and again from the same start.

    Attributes:
        run: Does it once. Returns what came of it: the losses of training, or the final states.
        nfe: Does it once more and counts. Returns how often each solve evaluates the network, [solves] or
            [solves, members]; 0 where this cannot be told.
    """

    run: Callable[[], Array]
    nfe: Callable[[], Array]


SIDES = {
    "anode": "ours",
    "anode, your module": "your_module",
    "torchdiffeq": "with_torchdiffeq",
    "torchode": "with_torchode",
    "torchode, compiled": "with_torchode_compiled",
    "torchdyn": "with_torchdyn",
    "diffrax": "with_diffrax",
    "peak": "machine",
}
"""Modules by name, which begins with the library's. ``anode, your module`` is a module of the user's, evaluated by
torch; ``peak`` what the machine can do at best."""

RIVALS = ("torchdiffeq", "torchode", "torchdyn", "diffrax")


def version(side: str) -> str:
    """The version of a rival that is installed; empty if none is."""
    try:
        return metadata.version(side)
    except metadata.PackageNotFoundError:
        return ""
