"""torchode with its loop compiled by torch.

Its documentation has ``torch.compile(solver).solve``, which compiles nothing, as torch compiles a module's ``forward``
alone; here its ``solve`` is.
"""

from __future__ import annotations

from anode.bench.sides import Work, with_torchode
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """A task."""
    return with_torchode.work(task, compiled=True)
