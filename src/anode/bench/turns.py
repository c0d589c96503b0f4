"""Measuring in turns: every library in a process of its own, one at a time, so that a slow moment hits all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from anode.bench.sides import machine
from anode.bench.tasks import Task

SECONDS = 0.3
"""How long a turn is, if a task does not take longer."""


@dataclass(frozen=True)
class Entry:
    """A task for one library.

    Attributes:
        label: Its name in a table.
        side: One of ``anode.bench.sides.SIDES``.
        threads: So many processors, and threads where the library has such a setting.
    """

    label: str
    side: str
    task: Task
    threads: int = 1


@dataclass(frozen=True)
class Row:
    """What came of it.

    Attributes:
        seconds: Of every turn: for one iteration, or one solve, of one model.
        nfe: How often a solve at the start evaluates the network.
        megabytes: How far the first time it was done raised the peak of the process's memory, compilation included.
        outcome: The first losses, states or classes.
        gigaflops: What was computed in a second, that is once and again for gradients.
        failed: Why there is nothing else.
    """

    label: str
    side: str
    threads: int
    seconds: list[float] = field(default_factory=list)
    nfe: float = 0.0
    megabytes: float = 0.0
    outcome: list[float] = field(default_factory=list)
    gigaflops: float = 0.0
    failed: str = ""

    @property
    def typical(self) -> float:
        """The median of its seconds; NaN if there are none."""
        return median(self.seconds) if self.seconds else float("nan")


class Worker:
    """A process that does one entry's task."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        command = [sys.executable, "-m", "anode.bench.worker", entry.side, str(entry.threads)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "OMP_NUM_THREADS": str(entry.threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
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
        self._process.communicate()
        self._errors.close()


class WorkerError(RuntimeError):
    """What was asked for could not be done."""


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
        workers: dict[int, Worker] = {}
        for i, entry in enumerate(entries):
            show(i, total, entry.label)
            worker = stack.enter_context(Worker(entry))
            try:
                found[i] = {**worker.ask(task=asdict(entry.task)), "seconds": []}
                workers[i] = worker
            except WorkerError as error:
                found[i] = {"failed": str(error)}
        for turn in range(turns):
            for i, worker in workers.items():
                show(len(entries) * (1 + turn) + i, total, entries[i].label)
                if "failed" in found[i]:
                    continue
                try:
                    seconds = worker.ask(seconds=SECONDS)["seconds"]
                except WorkerError as error:
                    found[i] = {"failed": str(error)}
                else:
                    found[i]["seconds"].append(seconds / entries[i].task.members)
    show(total, total, "")
    return [row(entry, found[i]) for i, entry in enumerate(entries)]


def row(entry: Entry, answer: dict[str, Any]) -> Row:
    """An entry and what came of it."""
    made = Row(entry.label, entry.side, entry.threads, **answer)
    if made.failed or not made.seconds:
        return made
    operations = machine.OPERATIONS if entry.side == "peak" else entry.task.operations(made.nfe)
    return Row(**{**asdict(made), "gigaflops": operations / made.typical / 1e9})


def difference(one: Row, other: Row) -> float:
    """How far what came of two entries is apart, over the largest of its numbers."""
    a, b = (np.array(row.outcome, dtype=float) for row in (one, other))
    if a.shape != b.shape or not a.size:
        return float("nan")
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))
