"""Functions that the workers of a cluster call: check themselves, and train runs."""

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
"""Dask topic of progress events. All commands share it, because a scheduler keeps the last events of every topic."""
PAUSE = 1.0
"""Seconds to wait before retrying a task whose checkpoints another worker still locks."""


@dataclass(frozen=True)
class Order:
    """What the tasks of a command have in common.

    Attributes:
        command: A unique name of the command.
        folder: The folder of results and checkpoints, shared by all machines.
        place: Where runs are trained.
        seal: A file in the folder with the command's name, by which a worker recognises the folder.
        versions: The versions that every worker must have.
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
        folder: An existing folder. Both folders are made absolute, as workers have other working directories.
        place: Where runs are trained.
    """
    root = None if place.root is None else place.root.absolute()
    command, folder = uuid4().hex, folder.absolute()
    seal = write_text(temporary(folder / "cluster"), command)
    try:
        yield Order(command, folder, Place(root, place.device), seal, versions())
    finally:
        seal.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return the versions that results depend on, without the build variant of torch."""
    return {"anode": anode.__version__, "torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


def trouble(order: Order, dask_worker: Worker) -> str | None:
    """Return why a worker cannot train runs, as the rest of a sentence about it; ``None`` if it can."""
    for name, found in versions().items():
        if found != order.versions[name]:
            return f"has {name} {found}, but this machine has {order.versions[name]}; install the same version on both"
    threads = dask_worker.state.nthreads
    if threads != 1:
        # Two runs cannot share the global state of torch, such as its random numbers.
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
    """Return whether a worker runs a task of a command."""
    return any(command in str(key) for key in list(dask_worker.active_keys))


def forecast(run: Run, order: Order) -> float | None:
    """Return the forecast of a run on this worker."""
    _check(order)
    with one_thread():
        return run.forecast(order.folder, order.place)


def work(name: str, part: Run, whole: Run, order: Order) -> None:
    """Train a run or a part of it.

    If a worker dies, Dask calls this again on another worker, which continues from the checkpoints in the folder.

    Args:
        name: The name for progress reports.
        part: The run itself, or one of its parts.
        whole: The run.
        order: What all tasks have in common.
    """
    from distributed import Reschedule

    _check(order)
    if load(whole, order.folder) is not None:  # saved by a worker that died before it could report
        whole.clean(order.folder)
        return
    tell = _telling(name, order)
    try:
        with one_thread():
            if part == whole:
                do_run(whole, tell, order.folder, order.place)
            else:
                part.train(tell, order.folder, order.place)
    except KeyboardInterrupt:  # cancelled, or to be moved to another worker
        raise Reschedule from None
    except BlockingIOError:  # a worker that Dask lost contact with still locks the checkpoints
        time.sleep(PAUSE)
        raise Reschedule from None


def _check(order: Order) -> None:
    """Raise ``ValueError`` if this worker cannot train runs; it may have joined after the command's check."""
    from distributed import get_worker

    worker = get_worker()
    if found := trouble(order, worker):
        raise ValueError(f"cluster: worker {worker.address} {found}")


def _telling(name: str, order: Order) -> Listener:
    """Return a listener that forwards reports to the command, and stops training if the task was cancelled."""
    from distributed import Status, get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def unwanted() -> bool:
        # Dask does not interrupt a task. It marks the task as cancelled, by the command or because the command is gone.
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled" or worker.status in (Status.closing, Status.closed)

    def put(message: tuple[str, Report]) -> None:
        worker.log_event(TOPIC, [order.command, message[0], *astuple(message[1])])

    return passing_on(name, put, unwanted)
