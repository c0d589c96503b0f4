"""torchode with its loop compiled by torch.

Its documentation shows ``torch.compile(solver).solve``. This compiles nothing, because torch compiles only the
``forward`` of a module. Here ``solve`` itself is compiled.
"""

from __future__ import annotations

from anode.bench.sides import Work, with_torchode
from anode.bench.tasks import Task


def work(task: Task) -> Work:
    """Prepare a task."""
    return with_torchode.work(task, compiled=True)
