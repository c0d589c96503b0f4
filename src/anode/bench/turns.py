"""Measuring in turns: every library in a process of its own, one at a time, so that a slow moment hits all of them."""

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
"""How far results may be apart: after hundreds of iterations with other steps, losses are some per cent apart."""

STRICT = 1e-3
"""How far results of single solves and of a few iterations may be apart."""

SECONDS = 0.3
"""How long a turn is, if a task does not take longer."""


@dataclass(frozen=True)
class Entry:
    """A task for one library.

    Attributes:
        label: Its name in a table.
        side: One of ``anode.bench.sides.SIDES``.
        threads: So many processors, and threads where the library has such a setting.
        processes: How many do the task at the same time, each on processors of its own.
    """

    label: str
    side: str
    task: Task
    threads: int = 1
    processes: int = 1

    @property
    def library(self) -> str:
        """What has to be installed."""
        return self.side.partition(",")[0]


@dataclass(frozen=True)
class Row:
    """What came of it.

    Attributes:
        seconds: Of every turn: for one iteration, or one solve, of one model.
        nfe: How often the first solve evaluates the network: with the weights and the batch that all begin with.
        mean_nfe: The mean over all solves of the task; training changes the weights, and with them the steps.
        megabytes: How far the first time it was done raised the peak of the process's memory, compilation included.
        outcome: The first losses, states or classes.
        gigaflops: What was computed in a second, that is once and again for gradients.
        failed: Why there is nothing else.
        engine: Which of anode's engines worked, and why not the compiled one.
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
    """A process that does one entry's task, one of as many as the entry says."""

    def __init__(self, entry: Entry, number: int) -> None:
        self.entry, first = entry, number * entry.threads
        command = [sys.executable, "-m", "anode.bench.worker", entry.side, str(entry.threads), str(first)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "OMP_NUM_THREADS": str(entry.threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )

    def send(self, request: dict[str, Any]) -> None:
        """Ask for something."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # why it ended, its answer says
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for what was asked for."""
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
    """What was asked for could not be done."""


def ask(workers: Sequence[Worker], **request: Any) -> list[dict[str, Any]]:
    """The answers of all of them, who work at the same time."""
    for worker in workers:
        worker.send(request)
    return [worker.answer() for worker in workers]


def measure(entries: Sequence[Entry], turns: int, show: Callable[[int, int, str], None]) -> list[Row]:
    """Do all entries' tasks in turns.

    Args:
        entries: What to do.
        turns: How often; 0 to do everything once, untimed.
        show: Told how much is done, of how much, and what comes next.
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
    """An entry and what came of it."""
    made = Row(entry.label, entry.side, entry.threads * entry.processes, **answer)
    if made.failed or not made.seconds:
        return made
    operations = machine.OPERATIONS if entry.side == "peak" else entry.task.operations(made.mean_nfe)
    return replace(made, gigaflops=operations / made.typical / 1e9)


def difference(one: Row, other: Row) -> float:
    """How far what came of two entries is apart, on average and relative to the second."""
    a, b = (np.array(row.outcome, dtype=float) for row in (one, other))
    if a.shape != b.shape or not a.size:
        return float("nan")
    return float(np.abs(a - b).sum() / max(np.abs(b).sum(), 1e-30))


def agreeing(rows: Sequence[Row]) -> list[Row]:
    """The same rows; those that came to something else than the first count as failed, as that is other work."""
    checked = []
    for row in rows:
        apart = difference(row, rows[0]) if row.side != "peak" and not (row.failed or rows[0].failed) else 0.0
        other = "" if apart < TOLERATED else f"came to another result, {100 * apart:.0f} % apart"
        checked.append(replace(row, failed=row.failed or other, seconds=[] if other else row.seconds))
    return checked


def alike(rows: Sequence[Row]) -> list[Row]:
    """The same rows; those that do not do what torchdiffeq does count as failed.

    All have to come to its result, and anode has to evaluate the right-hand side as often: its decisions are the same.
    """
    theirs = next((row for row in rows if row.side == "torchdiffeq" and not row.failed), None)
    if theirs is None:
        return list(rows)
    checked = []
    for row in rows:
        apart = difference(row, theirs)
        other = "" if row.failed or apart <= STRICT else f"came to another result than torchdiffeq, {apart:.1e} apart"
        if not (row.failed or other) and row.side.startswith("anode") and row.nfe != theirs.nfe:
            other = f"took {row.nfe:.0f} evaluations in place of torchdiffeq's {theirs.nfe:.0f}"
        checked.append(replace(row, failed=row.failed or other, seconds=[] if other else row.seconds))
    return checked
