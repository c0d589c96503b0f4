"""What the workers of a cluster do: see whether they can do runs, and do them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import torch

import anode
from anode.checks import usable_device
from anode.experiments.runs import Place, Run, load
from anode.experiments.workers import do_run, one_thread, passing_on
from anode.files import temporary, write_text
from anode.train.callbacks import Report
from anode.train.progress import Listener

if TYPE_CHECKING:
    from distributed import Worker

TOPIC = "anode-progress"
"""Where Dask passes on progress. All commands share it, because a scheduler keeps the last events of every topic."""
PAUSE = 1.0
"""Seconds before a task is begun again whose checkpoints another worker still has."""


@dataclass(frozen=True)
class Order:
    """What the tasks of a command have in common.

    Attributes:
        command: Which command it is: a name of its own.
        folder: Where results and checkpoints lie, for all machines.
        place: Where runs are done.
        seal: A file in the folder that holds the command's name, by which a worker knows the folder.
        versions: The versions that every worker is to have.
    """

    command: str
    folder: Path
    place: Place
    seal: Path
    versions: dict[str, str]


@contextmanager
def ordered(folder: Path, place: Place) -> Iterator[Order]:
    """Yield an order whose seal is in place.

    Args:
        folder: Exists. Both folders are made absolute: a worker has another working directory.
        place: Where runs are done.
    """
    root = None if place.root is None else place.root.absolute()
    command, folder = uuid4().hex, folder.absolute()
    seal = write_text(temporary(folder / "cluster"), command)
    try:
        yield Order(command, folder, Place(root, place.device), seal, versions())
    finally:
        seal.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """What results depend on, and a worker has to have as well; not for which processors torch was built."""
    return {"anode": anode.__version__, "torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


def trouble(order: Order, dask_worker: Worker) -> str | None:
    """Say why a worker cannot do runs, as the rest of a sentence about it; ``None`` if it can."""
    for name, found in versions().items():
        if found != order.versions[name]:
            return f"has {name} {found}, but this machine has {order.versions[name]}; install the same version on both"
    threads = dask_worker.state.nthreads
    if threads != 1:
        # What torch keeps for a whole process, such as its random numbers, cannot be shared by two runs.
        return f"has {threads} threads; start it with --nthreads 1 (--nworkers {threads} starts as many processes)"
    try:
        shared = order.seal.read_text(encoding="utf-8") == order.command
    except OSError:
        shared = False
    if not shared:
        return f"does not see {order.folder}; --out takes a folder that all machines share under the same path"
    try:
        usable_device(order.place.device)
    except ValueError as error:
        return f"cannot be used: {error}"
    return None


def busy(command: str, dask_worker: Worker) -> bool:
    """Whether a worker is doing something for a command."""
    return any(command in str(key) for key in list(dask_worker.active_keys))


def forecast(run: Run, order: Order) -> float | None:
    """Measure how long a run will take on this worker."""
    _check(order)
    with one_thread():
        return run.forecast(order.folder, order.place)


def work(name: str, part: Run, whole: Run, order: Order) -> None:
    """Do a run, or train a part of it.

    Dask calls it again, on another worker, if a worker dies. So it goes on from what it finds in the folder.

    Args:
        name: What progress is told of.
        part: The run itself, or one of its parts.
        whole: The run.
        order: What all tasks have in common.
    """
    from distributed import Reschedule

    _check(order)
    if load(whole, order.folder) is not None:  # saved by a worker that died before it could say so
        whole.clean(order.folder)
        return
    tell = _telling(name, order)
    try:
        with one_thread():
            if part == whole:
                do_run(whole, tell, order.folder, order.place)
            else:
                part.train(tell, order.folder, order.place)
    except KeyboardInterrupt:  # nobody wants it any more, or somebody else has to do it
        raise Reschedule from None
    except BlockingIOError:  # a worker that Dask has lost sight of has the checkpoints, until it ends
        time.sleep(PAUSE)
        raise Reschedule from None


def _check(order: Order) -> None:
    """Raise ``ValueError`` if a worker cannot do runs, which may have come after the command began."""
    from distributed import get_worker

    worker = get_worker()
    if found := trouble(order, worker):
        raise ValueError(f"cluster: worker {worker.address} {found}")


def _telling(name: str, order: Order) -> Listener:
    """A listener that passes reports on to the command, and stops training if the task is not wanted any more."""
    from distributed import Status, get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def unwanted() -> bool:
        # Dask does not interrupt a task. It notes that the task was cancelled, by the command or because that is gone.
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled" or worker.status in (Status.closing, Status.closed)

    def put(message: tuple[str, Report]) -> None:
        worker.log_event(TOPIC, [order.command, message[0], *astuple(message[1])])

    return passing_on(name, put, unwanted)
