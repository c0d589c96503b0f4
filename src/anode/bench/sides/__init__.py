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
        engine: Does it once more and says which of anode's engines worked; empty for other libraries.
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
"""Modules by name, which begins with the library's. ``anode, your module`` is a module of the user's in ``odeint``, and
there are others for ``solve`` and ``fit``; ``anode, your loop`` is a model of ours in a training loop of the user's;
``peak`` is what the machine can do at best."""

RIVALS = ("torchdiffeq", "torchode", "torchdyn", "diffrax")


def version(side: str) -> str:
    """The version of a rival that is installed; empty if none is."""
    try:
        return metadata.version(side)
    except metadata.PackageNotFoundError:
        return ""
