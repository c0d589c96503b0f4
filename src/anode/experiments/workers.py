"""Trains runs in parallel processes; each run is saved when it is finished."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from anode.experiments.forecast import Forecast
from anode.experiments.runs import HERE, Place, Run, certify, save
from anode.train.callbacks import Report
from anode.train.interrupts import ENDING, ended_like_ctrl_c
from anode.train.progress import Bars, Listener, Patient

Message = tuple[str, Report]
BETWEEN = 0.2
"""Seconds between two progress reports of a process."""
_progress: Any = None
_stop: Any = None


class WorkerDiedError(RuntimeError):
    """A training process was killed."""


class Workers(ABC):
    """Trains runs: processes on this machine, or a cluster."""

    def check(self, folder: Path, place: Place) -> None:  # noqa: B027, processes of this machine need nothing
        """Raise an error unless runs can be trained and saved.

        Args:
            folder: An existing folder for the results.
            place: Where runs are trained.
        """

    @abstractmethod
    def do(self, runs: Sequence[Run], folder: Path, bars: Bars, place: Place = HERE) -> None:
        """Train runs and save each; see :func:`do_runs`."""


@dataclass(frozen=True)
class Processes(Workers):
    """Processes on this machine.

    Attributes:
        jobs: Number of parallel runs.
    """

    jobs: int

    def do(self, runs: Sequence[Run], folder: Path, bars: Bars, place: Place = HERE) -> None:
        do_runs(runs, folder, self.jobs, bars, place)


def do_runs(runs: Sequence[Run], folder: Path, jobs: int, bars: Bars, place: Place = HERE) -> None:
    """Train runs and save each. Runs that were saved before a failure or Ctrl-C are kept.

    Args:
        runs: The runs, which start in this order; the longest should come first.
        folder: The folder to save them to.
        jobs: Number of parallel runs.
        bars: Shows the progress.
        place: Where they are trained.
    """
    jobs = min(jobs, len(runs))
    if jobs > 1:
        _in_processes(runs, folder, jobs, bars, place)
        return
    with one_thread():
        forecast = Forecast({run.name: run.forecast(folder, place) for run in runs}, 1, bars)
        forecast.announce()
        with errors_last(bars) as caught:
            for run in runs:
                with caught(run.name):
                    do_run(run, forecast.listen(run.name), folder, place)


@contextmanager
def errors_last(bars: Bars) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Yield a function that catches the error of a run, by its name, so that the other runs are trained.

    The first error is raised in the end. Errors of the system, such as a full disk, are not caught, as other runs would
    meet them too; a folder that another process uses is an exception.
    """
    errors: list[Exception] = []

    @contextmanager
    def caught(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            shared = isinstance(error, OSError) and not isinstance(error, BlockingIOError)
            if shared or isinstance(error, BrokenProcessPool | WorkerDiedError):
                raise
            bars.say(f"{name}: {error}; the other runs are trained nevertheless")
            errors.append(error)

    yield caught
    if errors:
        raise errors[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread, as worker processes do, so that results do not depend on where a run is trained."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def do_run(run: Run, tell: Listener | None, folder: Path, place: Place) -> None:
    """Train a run and save it. Its models are certified afterwards, so that an interruption costs no training."""
    result = run.train(tell, folder, place)
    save(result, folder)
    run.clean(folder)
    certify(result, folder, place)


def _in_processes(runs: Sequence[Run], folder: Path, jobs: int, bars: Bars, place: Place) -> None:
    # Spawn, do not fork: a fork would copy torch's threads in an arbitrary state.
    context = multiprocessing.get_context("spawn")
    # Python's own process for semaphores begins here. A closed terminal must not end it before the others.
    with _blocked(*ENDING):
        progress, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(jobs, context, _begin_worker, (progress, stop)) as pool:
        try:
            measured = _begin(pool, _forecast, runs, folder, place)
            seconds = {run.name: future.result() for run, future in zip(runs, measured, strict=True)}
            forecast = Forecast(seconds, jobs, bars)
            forecast.announce()
            begun = _begin(pool, _work, runs, folder, place)
            _follow({future: run.name for future, run in zip(begun, runs, strict=True)}, progress, forecast)
        except BrokenProcessPool:
            raise WorkerDiedError(
                "a training process was killed, perhaps because memory ran out; finished runs are kept; run the same "
                "command again to continue (--jobs 1 needs the least memory)"
            ) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _begin(
    pool: ProcessPoolExecutor, what: Callable[..., Any], runs: Sequence[Run], folder: Path, place: Place
) -> list[Future[Any]]:
    """Submit a call for each run, to processes that ignore Ctrl-C."""
    # Ctrl-C reaches every process of the terminal, but only the parent should handle it and tell the others to stop.
    with _blocked(signal.SIGINT):
        return [pool.submit(what, run, folder, place) for run in runs]


@contextmanager
def _blocked(*signals: int) -> Iterator[None]:
    """Block signals for a while, and for good in child processes that are begun meanwhile, which inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(futures: Mapping[Future[Any], str], progress: Any, forecast: Forecast) -> None:
    """Show the progress until all runs are finished or have failed."""
    pending = set(futures)
    with errors_last(forecast.bars) as caught:
        while pending:
            done, pending = wait(pending, timeout=0.1)
            try:
                while True:
                    name, report = progress.get_nowait()
                    forecast.listen(name)(report)
            except Empty:
                pass
            for future in done:
                with caught(futures[future]):
                    future.result()


def _begin_worker(progress: Any, stop: Any) -> None:
    global _progress, _stop
    torch.set_num_threads(1)
    _progress, _stop = progress, stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent process is killed; nothing else would stop this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has one"
    parent.join()
    os._exit(1)


def _forecast(run: Run, folder: Path, place: Place) -> float | None:
    return None if _stop.is_set() else run.forecast(folder, place)


def _work(run: Run, folder: Path, place: Place) -> None:
    if _stop.is_set():  # still queued when the others were told to stop
        return
    with ended_like_ctrl_c() as signals, suppress(KeyboardInterrupt):  # if told to stop, nobody waits for a result
        do_run(run, passing_on(run.name, _progress.put, _stop.is_set), folder, place)
    if signals:  # the parent, if it is not ending too, must not take the run for finished
        os._exit(1)


def passing_on(name: str, put: Callable[[Message], None], should_stop: Callable[[], bool]) -> Listener:
    """Return a listener that forwards some reports, always those with an evaluation, and stops training on request."""
    last = 0.0

    def tell(report: Report) -> None:
        nonlocal last
        if should_stop():
            raise KeyboardInterrupt
        now = time.monotonic()
        if now - last >= BETWEEN or report.validation is not None or report.done == report.total:
            last = now
            put((name, report))

    return Patient(tell)
