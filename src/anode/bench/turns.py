"""Measures libraries in turns, each in its own process, so that slow moments of the machine affect all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median
from typing import Any

import numpy as np

from anode.bench.sides import machine
from anode.bench.tasks import Task

TOLERATED = 0.1
"""Largest relative difference of results: after hundreds of iterations, losses differ by some percent."""

STRICT = 1e-3
"""Largest relative difference of results of single solves and of the first iterations."""

FIRST = 47
"""How many iterations, or numbers of a state, :data:`STRICT` is about. Rounding errors grow in later iterations."""

SECONDS = 0.3
"""Minimum length of a turn."""


@dataclass(frozen=True)
class Entry:
    """A task for one library.

    Attributes:
        label: Its name in a table.
        side: One of ``anode.bench.sides.SIDES``.
        threads: Number of cores, and of threads if the library has such a setting.
        processes: Number of processes that run the task at the same time, each on its own cores.
    """

    label: str
    side: str
    task: Task
    threads: int = 1
    processes: int = 1

    @property
    def library(self) -> str:
        """The library that has to be installed."""
        return self.side.partition(",")[0]


@dataclass(frozen=True)
class Row:
    """The measurements of an entry.

    Attributes:
        seconds: Time per turn, for one iteration or one solve of one model.
        nfe: Network evaluations of the first solve, for which all libraries have the same weights and batch.
        mean_nfe: Mean over all solves of the task; training changes the weights, and so the steps.
        megabytes: Increase of the process's peak memory in the first run, including compilation.
        outcome: The first losses, states or classes.
        gigaflops: Operations per second, including those for gradients.
        failed: Why the measurement failed; empty if it did not.
        engine: The engine of anode that was used, and why not the compiled one.
    """

    label: str
    side: str
    threads: int
    seconds: list[float] = field(default_factory=list)
    nfe: float = 0.0
    mean_nfe: float = 0.0
    megabytes: float = 0.0
    outcome: list[float] = field(default_factory=list)
    gigaflops: float = 0.0
    failed: str = ""
    engine: str = ""

    @property
    def typical(self) -> float:
        """The median of its seconds; NaN if there are none."""
        return median(self.seconds) if self.seconds else float("nan")


class Worker:
    """One process that runs the task of an entry."""

    def __init__(self, entry: Entry, number: int) -> None:
        self.entry, first = entry, number * entry.threads
        command = [sys.executable, "-m", "anode.bench.worker", entry.side, str(entry.threads), str(first)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "OMP_NUM_THREADS": str(entry.threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )

    def send(self, request: dict[str, Any]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # ``answer`` reports why it ended
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a request."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            raise WorkerError(lines[-1] if lines else f"the process ended with {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()


class WorkerError(RuntimeError):
    """A worker process failed."""


def ask(workers: Sequence[Worker], **request: Any) -> list[dict[str, Any]]:
    """Send a request to all workers, which run it at the same time, and return their answers."""
    for worker in workers:
        worker.send(request)
    return [worker.answer() for worker in workers]


def measure(entries: Sequence[Entry], turns: int, show: Callable[[int, int, str], None]) -> list[Row]:
    """Measure all entries in turns.

    Args:
        entries: The entries.
        turns: Number of turns; 0 to run each task once, without timing.
        show: Called with the steps done, their total, and the next label.
    """
    total = len(entries) * (1 + turns)
    found: dict[int, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers: dict[int, list[Worker]] = {}
        for i, entry in enumerate(entries):
            show(i, total, entry.label)
            team = [stack.enter_context(Worker(entry, number)) for number in range(entry.processes)]
            try:
                found[i] = {**ask(team, task=asdict(entry.task))[0], "seconds": []}
                workers[i] = team
            except WorkerError as error:
                found[i] = {"failed": str(error)}
        for turn in range(turns):
            for i, team in workers.items():
                show(len(entries) * (1 + turn) + i, total, entries[i].label)
                if "failed" in found[i]:
                    continue
                try:
                    seconds = mean(answer["seconds"] for answer in ask(team, seconds=SECONDS))
                except WorkerError as error:
                    found[i] = {"failed": str(error)}
                else:
                    found[i]["seconds"].append(seconds / len(team) / entries[i].task.members)
    show(total, total, "")
    return agreeing([row(entry, found[i]) for i, entry in enumerate(entries)])


def row(entry: Entry, answer: dict[str, Any]) -> Row:
    """Return the row of an entry."""
    made = Row(entry.label, entry.side, entry.threads * entry.processes, **answer)
    if made.failed or not made.seconds:
        return made
    operations = machine.OPERATIONS if entry.side == "peak" else entry.task.operations(made.mean_nfe)
    return replace(made, gigaflops=operations / made.typical / 1e9)


def difference(one: Row, other: Row) -> float:
    """Return the mean difference of two outcomes, relative to the second."""
    a, b = (np.array(row.outcome, dtype=float) for row in (one, other))
    if a.shape != b.shape or not a.size:
        return float("nan")
    return float(np.abs(a - b).sum() / max(np.abs(b).sum(), 1e-30))


def agreeing(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, in which those whose outcome differs from the first are marked as failed."""
    checked = []
    for row in rows:
        apart = difference(row, rows[0]) if row.side != "peak" and not (row.failed or rows[0].failed) else 0.0
        other = "" if apart < TOLERATED else f"result differs by {100 * apart:.0f} %"
        checked.append(replace(row, failed=row.failed or other, seconds=[] if other else row.seconds))
    return checked


def alike(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, in which those that disagree with torchdiffeq are marked as failed.

    All results have to agree with its result. anode has to have the same NFE, as it makes the same step decisions.
    """
    theirs = next((row for row in rows if row.side == "torchdiffeq" and not row.failed), None)
    if theirs is None:
        return list(rows)
    checked = []
    for row in rows:
        apart = difference(*(replace(each, outcome=each.outcome[:FIRST]) for each in (row, theirs)))
        other = "" if row.failed or apart <= STRICT else f"result differs from torchdiffeq's by {apart:.1e}"
        if not (row.failed or other) and row.side.startswith("anode") and row.nfe != theirs.nfe:
            other = f"took {row.nfe:.0f} evaluations, torchdiffeq {theirs.nfe:.0f}"
        checked.append(replace(row, failed=row.failed or other, seconds=[] if other else row.seconds))
    return checked
