"""The libraries to measure, each used as its own documentation shows.

Each module here has a function ``work(task)`` that prepares a task. It is imported in its own process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from anode.bench.tasks import Array


@dataclass(frozen=True)
class Work:
    """A prepared task, which can be run repeatedly from the same start.

    Attributes:
        run: Runs the task once, and returns the training losses or the final states.
        nfe: Runs the task again, and returns the number of network evaluations per solve, [solves] or
            [solves, members]; 0 if this is unknown.
        engine: Runs the task again, and returns which engine of anode was used; empty for other libraries.
    """

    run: Callable[[], Array]
    nfe: Callable[[], Array]
    engine: Callable[[], str] = str


SIDES = {
    "anode": "ours",
    "anode, your module": "your_module",
    "anode, your module in solve": "your_module_in_solve",
    "anode, your module in fit": "your_module_in_fit",
    "anode, your loop": "your_loop",
    "torchdiffeq": "with_torchdiffeq",
    "torchode": "with_torchode",
    "torchode, compiled": "with_torchode_compiled",
    "torchdyn": "with_torchdyn",
    "diffrax": "with_diffrax",
    "peak": "machine",
}
"""Modules by name; a name starts with its library. ``anode, your module`` is a user's module in ``odeint``; there are
others for ``solve`` and ``fit``. ``anode, your loop`` is our model in a user's training loop. ``peak`` measures the
peak of the machine."""

RIVALS = ("torchdiffeq", "torchode", "torchdyn", "diffrax")


def version(side: str) -> str:
    """Return the installed version of a rival; empty if it is not installed."""
    try:
        return metadata.version(side)
    except metadata.PackageNotFoundError:
        return ""
