"""Trains runs on several machines, with the workers of a Dask scheduler."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from anode.checks import require
from anode.experiments import remote
from anode.experiments.forecast import Forecast
from anode.experiments.runs import HERE, Place, Run
from anode.experiments.workers import Processes, WorkerDiedError, Workers, errors_last
from anode.extras import needs
from anode.files import make_folder
from anode.train.callbacks import Report
from anode.train.progress import Bars, Listener

if TYPE_CHECKING:
    from distributed import Client, Future

TIMEOUT = 10
"""Seconds for the scheduler to answer, and for workers to stop cancelled tasks."""
BETWEEN = 1.0
"""Seconds between two updates of the list of workers."""
KEPT = "finished runs and checkpoints are kept; run the same command again to continue"


@contextmanager
def at_work(address: str | None, jobs: int) -> Iterator[Workers]:
    """Yield workers that train runs.

    Args:
        address: The address of a Dask scheduler; ``None`` for processes on this machine.
        jobs: The number of such processes.

    Raises:
        ValueError: If the address is malformed.
        OSError: If no scheduler answers.
        MissingPackageError: If an address is given and Dask is not installed.
    """
    if address is None:
        yield Processes(jobs)
        return
    needs("--cluster", "cluster")
    require(_is_address(address), "cluster", address, "the address of a Dask scheduler, such as tcp://host:8786")
    from distributed import Client

    for name in ("distributed", "distributed.client", "distributed.core"):  # our errors are one line; hide theirs
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False, name="anode")
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"cluster: no Dask scheduler answers at {address!r} ({reason}); start one with: dask scheduler"
        ) from None
    with client:
        yield Cluster(client, address)


def _is_address(address: str) -> bool:
    """Return whether an address has protocol, host and port. For any other, Dask prints its own tracebacks."""
    with suppress(ValueError):  # raised for an invalid port
        parts = urlsplit(address)
        return parts.scheme in ("tcp", "tls", "ws", "wss") and bool(parts.hostname) and parts.port is not None
    return False


class Cluster(Workers):
    """The workers of a Dask scheduler. Each runs one task at a time, with one thread.

    Args:
        client: The connection to the scheduler.
        address: The scheduler's address.
    """

    def __init__(self, client: Client, address: str) -> None:
        self.client, self.address = client, address

    def check(self, folder: Path, place: Place) -> None:
        """Raise ``ValueError`` unless every worker has this version, shares the folder and can use the device."""
        workers = self.usable(place)
        if not workers:
            raise ValueError(f"cluster: the scheduler at {self.address} has no worker; {self.how_to_start(place)}")
        versions: Any = self.client.get_versions(packages=["anode"])
        for worker, found in versions["workers"].items():
            if worker in workers and found["packages"].get("anode") is None:
                raise ValueError(f"cluster: worker {worker} has no anode; install the same version there")
        with remote.ordered(folder, place) as order:
            answers = self.client.run(remote.trouble, order, workers=workers, on_error="return")
        for worker, answer in answers.items():
            if answer is not None:
                raise ValueError(f"cluster: worker {worker} {answer}")

    def do(self, runs: Sequence[Run], folder: Path, bars: Bars, place: Place = HERE) -> None:
        if not runs:
            return
        with remote.ordered(make_folder(folder), place) as order:
            command = Command(self, order, bars)
            try:
                command.do(runs)
            finally:
                command.stop()

    def usable(self, place: Place) -> list[str]:
        """Return the addresses of the workers that can train runs."""
        known = self.client.scheduler_info().get("workers")  # without an answer, the last known state or nothing
        if known is None or self.client.status != "running":
            raise self.gone()
        return [name for name, each in known.items() if place.device == "cpu" or "GPU" in each["resources"]]

    def how_to_start(self, place: Place) -> str:
        """Return in words how to start a worker."""
        gpu = "" if place.device == "cpu" else f" --resources GPU=1, which has the device {place.device}"
        return f"start one with: dask worker {self.address} --nthreads 1{gpu}"

    def gone(self) -> WorkerDiedError:
        """Return the error to raise if the scheduler no longer answers."""
        return WorkerDiedError(f"the scheduler at {self.address} no longer answers; {KEPT}")


@dataclass(frozen=True)
class Task:
    """A run or a part of it, for one worker.

    Attributes:
        name: Its name.
        part: The run itself, or one of its parts.
        whole: The run.
    """

    name: str
    part: Run
    whole: Run


class Command:
    """Runs that a cluster trains.

    Args:
        cluster: The cluster.
        order: What all tasks have in common.
        bars: Shows the progress.
    """

    def __init__(self, cluster: Cluster, order: remote.Order, bars: Bars) -> None:
        self.cluster, self.order, self.bars = cluster, order, bars
        self.inbox: SimpleQueue[Future[Any] | tuple[str, Report]] = SimpleQueue()
        self.running: dict[str, tuple[Future[Any], Task]] = {}
        self.looked, self.slots = -math.inf, 1

    def do(self, runs: Sequence[Run]) -> None:
        """Train all runs. A divided run is combined once its parts are finished."""
        self.cluster.client.subscribe_topic(remote.TOPIC, self._hear)
        tasks = {run.name: tasks_of(run) for run in runs}
        listeners = self._listeners(tasks)
        waiting = deque(task for of_run in tasks.values() for task in of_run)
        undone = {name: len(of_run) for name, of_run in tasks.items()}
        with errors_last(self.bars) as caught:
            while waiting or self.running:
                self._look()
                while waiting and len(self.running) < self.slots:
                    self._begin(waiting.popleft())
                for future, task in self._news(listeners):
                    with caught(task.name):
                        self._result(future, task.name)
                        undone[task.whole.name] -= 1  # a run with a failed part is never combined
                        if task.part is not task.whole and not undone[task.whole.name]:
                            waiting.appendleft(Task(task.whole.name, task.whole, task.whole))

    def stop(self) -> None:
        """Cancel running tasks, and wait until the workers have stopped, so that others can resume the runs."""
        client, end = self.cluster.client, time.monotonic() + TIMEOUT
        with suppress(OSError):  # the scheduler may be gone
            client.unsubscribe_topic(remote.TOPIC)
            if self.running:
                client.cancel([future for future, _ in self.running.values()], force=True)
                while any(client.run(remote.busy, self.order.command, on_error="ignore").values()):
                    if time.monotonic() > end:
                        break
                    time.sleep(0.1)

    def _listeners(self, tasks: dict[str, list[Task]]) -> dict[str, Listener]:
        """Print a forecast, and return a listener for each task."""
        whole = [of_run[0].whole for of_run in tasks.values()]
        measured = {run.name: self._submit(remote.forecast, f"forecast {run.name}", run) for run in whole}
        seconds: dict[str, float | None] = {}
        for name, of_run in tasks.items():
            found = self._result(measured[name], name)
            seconds |= {task.name: None if found is None else found / len(of_run) for task in of_run}
        self._look()
        forecast = Forecast(seconds, max(1, self.slots), self.bars)
        forecast.announce()
        shown = {name: together(self.bars.listen(name), len(of_run)) for name, of_run in tasks.items()}
        return {
            task.name: forecast.listen(task.name, shown[name](task.name))
            for name, of_run in tasks.items()
            for task in of_run
        }

    def _submit(self, what: Callable[..., Any], name: str, *arguments: Any) -> Future[Any]:
        """Submit a function call to a worker, with a GPU if the device needs one."""
        resources = None if self.order.place.device == "cpu" else {"GPU": 1}
        key = f"anode-{self.order.command}-{name}"
        return self.cluster.client.submit(what, *arguments, self.order, key=key, pure=False, resources=resources)

    def _begin(self, task: Task) -> None:
        future = self._submit(remote.work, task.name, task.name, task.part, task.whole)
        self.running[str(future.key)] = future, task
        future.add_done_callback(self.inbox.put)

    def _look(self) -> None:
        """Update the number of workers from time to time: some may have joined or died."""
        if time.monotonic() - self.looked < BETWEEN:
            return
        before, self.slots = self.slots, len(self.cluster.usable(self.order.place))
        self.looked = time.monotonic()
        if before and not self.slots:
            self.bars.say(f"no worker is left, waiting for one; {self.cluster.how_to_start(self.order.place)}")

    def _news(self, listeners: dict[str, Listener]) -> Iterator[tuple[Future[Any], Task]]:
        """Forward a report, or yield a task that has ended; wait a while for either."""
        try:
            news = self.inbox.get(timeout=BETWEEN)
        except Empty:
            return
        if isinstance(news, tuple):
            name, report = news
            if name in listeners:
                listeners[name](report)
            return
        yield self.running.pop(str(news.key))

    def _result(self, future: Future[Any], name: str) -> Any:
        from distributed import KilledWorker

        try:
            return future.result()
        except KilledWorker:
            why = "every worker that trained it died, perhaps because memory ran out"
            raise WorkerDiedError(f"{name}: {why}; {KEPT}") from None
        except CancelledError:
            raise self.cluster.gone() from None

    def _hear(self, event: tuple[float, list[Any]]) -> None:
        """Receive a progress event from Dask, which may belong to another command."""
        command, name, *values = event[1]
        if command == self.order.command:
            self.inbox.put((name, Report(*values)))


def tasks_of(run: Run) -> list[Task]:
    """Return the tasks that a run starts with: its parts, or the run itself."""
    parts = [Task(f"{run.name}, seed {part.seed}", part, run) for part in run.parts()]
    return parts or [Task(run.name, run, run)]


def together(shown: Listener, parts: int) -> Callable[[str], Listener]:
    """Show all parts of a run as one. Returns a function that makes a listener for each part."""
    reports: dict[str, Report] = {}

    def listen(name: str) -> Listener:
        def tell(report: Report) -> None:
            reports[name] = report
            done = sum(each.done for each in reports.values())
            shown(replace(report, done=done, total=parts * report.total))

        return tell

    return listen
