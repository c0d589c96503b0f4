"""The parts of the speed benchmark: what they compare, and how results are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anode
from anode.bench.sides import RIVALS, SIDES, version
from anode.bench.sides.fields_in_torch import Network
from anode.bench.tasks import Task
from anode.bench.turns import Entry, Row, alike, measure
from anode.bench.works import members, works
from anode.checks import lookup
from anode.experiments.environment import environment
from anode.files import DamagedFileError, locked, make_folder
from anode.storage import read_json, write_json
from anode.train.progress import Bars

FORMAT = "anode speed 1"

TOY = Task("train", time=True, zeros=5, epochs=5)
SMALL = Task("gradient", sizes=(4, 32, 4), activations=("softplus", "tanh"), t1=100.0, tol=1e-6)
PREDICT = Task("predict", activations=("gelu", "gelu", "none"), time=True, zeros=5, batch=100_000)
NET = Task("gradient", sizes=(8, 64, 64, 8), activations=("tanh", "tanh", "none"), tol=1e-4)
EXACT = replace(NET, kind="solve", double=True, t1=10.0)


@dataclass(frozen=True)
class Part:
    """Entries that are compared with each other.

    Attributes:
        title: What is compared.
        entries: The entries of each point; a sweep has one point per value.
        values: The values of a sweep; empty if there is one point.
        axis: What these values are.
        timed: Whether time is measured, or only memory.
        works: Names of the points, if these are different works instead of a sweep. Results then have to agree with
            torchdiffeq's, and so does our NFE.
    """

    title: str
    entries: tuple[tuple[Entry, ...], ...]
    values: tuple[float, ...] = ()
    axis: str = ""
    timed: bool = True
    works: tuple[str, ...] = ()


def one(title: str, *entries: Entry) -> Part:
    """Return a comparison at one point."""
    return Part(title, (entries,))


def all_libraries(task: Task, *more: Entry, threads: int = 1) -> list[Entry]:
    """Return the entries of a task for all libraries."""
    return [Entry(side, side, task, threads) for side in ("anode", *RIVALS)] + list(more)


def peak(threads: int) -> Entry:
    """Return the entry that measures the peak of the machine."""
    return Entry("matrix product", "peak", Task("solve"), threads)


def sweep(title: str, axis: str, values: Sequence[float], task: Callable[[Any], Task], timed: bool = True) -> Part:
    """Return a sweep for three libraries. torchdiffeq trains models in sequence, so one model is enough for it."""

    def entries(task: Task) -> tuple[Entry, ...]:
        theirs = replace(task, members=1)
        return (
            Entry("anode", "anode", task),
            Entry("torchdiffeq", "torchdiffeq", theirs),
            Entry("diffrax", "diffrax", task),
        )

    return Part(title, tuple(entries(task(value)) for value in values), tuple(values), axis, timed)


TWENTY = replace(TOY, members=20)
OWN = works(TOY, EXACT)
FAMILY = members(TOY)
PARTS: dict[str, Part] = {
    "toy": one(
        "a training iteration of the toy experiments, one thread",
        *all_libraries(TOY, Entry("torchode, compiled", "torchode, compiled", TOY), peak(1)),
    ),
    "repeats": one(
        "the same with 20 repeats on two processors, per repeat",
        Entry("anode, 20 at once", "anode", TWENTY, 2),
        Entry("anode, 20 at once, one thread", "anode", TWENTY),
        Entry("torchdiffeq, one after another", "torchdiffeq", TOY, 2),
        Entry("torchdiffeq, two processes", "torchdiffeq", TOY, processes=2),
        Entry("diffrax, 20 at once by vmap", "diffrax", TWENTY, 2),
        Entry("diffrax, two processes", "diffrax", TOY, processes=2),
        peak(2),
        peak(1),
    ),
    "small": one("4-32-4, to t = 100 with tolerance 1e-6, with gradient, one thread", *all_libraries(SMALL, peak(1))),
    "predict": one("classes of 100,000 rows, two threads", *all_libraries(PREDICT, peak(2), threads=2)),
    "batch": sweep("batch", "points", (1, 8, 64, 512, 4096), lambda n: replace(NET, batch=n)),
    "width": sweep("width", "width", (8, 32, 128, 512), lambda n: replace(NET, sizes=(8, n, n, 8))),
    "dimension": sweep("dimension", "dimension", (2, 8, 32, 128), lambda n: replace(NET, sizes=(n, 64, 64, n))),
    "members": sweep(
        "models at once, per model", "models", (1, 4, 16, 64), lambda n: replace(TOY, members=n, epochs=1)
    ),
    "tolerance": sweep(
        "work and precision",
        "tolerance",
        (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9),
        lambda tol: replace(EXACT, tol=tol),
    ),
    "memory": sweep("memory", "points", (1024, 4096, 16384), lambda n: replace(NET, batch=n, t1=10.0), timed=False),
    "module": Part("what users write themselves, one thread", tuple(OWN.values()), works=tuple(OWN)),
    "family": Part("training iterations of the family, one thread", tuple(FAMILY.values()), works=tuple(FAMILY)),
}


@dataclass(frozen=True)
class Found:
    """The measurements of a part.

    Attributes:
        rows: The rows of every point.
        errors: The error of every row, if exact solutions are known; NaN for other solves.
        when: The date of the measurement.
    """

    name: str
    rows: list[list[Row]]
    errors: list[list[float]]
    when: str = ""

    @property
    def part(self) -> Part:
        """The part that was measured."""
        return PARTS[self.name]


def bench(out: Path, names: Sequence[str], turns: int, bars: Bars) -> list[Found]:
    """Measure the named parts, or all parts that a folder does not hold yet; returns all parts that it then holds.

    Args:
        out: The folder.
        names: Names from :data:`PARTS`.
        turns: Number of turns per library.
        bars: Shows the progress.
    """
    for name in names:
        lookup("part", name, PARTS)
    make_folder(out)
    with locked(out, "out"):
        for name in names or [name for name in PARTS if not (out / f"{name}.json").exists()]:
            keep(out, measured(name, turns, bars))
        return [kept(out, name) for name in PARTS if (out / f"{name}.json").exists()]


def measured(name: str, turns: int, bars: Bars) -> Found:
    """Measure a part; libraries that are not installed are skipped."""
    part = PARTS[name]
    rows, errors = [], []
    for i, entries in enumerate(part.entries):
        here = [entry for entry in entries if entry.library not in RIVALS or version(entry.library)]
        where = f"{part.axis} {part.values[i]:g}, " if part.values else f"{part.works[i]}, " if part.works else ""

        def show(done: int, total: int, label: str, before: int = i, where: str = where) -> None:
            bars.show(name, before * total + done, len(part.entries) * total, where + label)

        found = measure(here, turns if part.timed else 0, show)
        rows.append(alike(found) if part.works else found)
        errors.append([error_of(entry, row) for entry, row in zip(here, rows[-1], strict=True)])
    known = any(math.isfinite(error) for point in errors for error in point)
    return Found(name, rows, errors if known else [])


def error_of(entry: Entry, row: Row) -> float:
    """Return the error of :data:`EXACT`, with any tolerance or batch size; NaN for other tasks."""
    known = replace(entry.task, tol=EXACT.tol, batch=EXACT.batch) == EXACT
    if not known or not row.outcome:
        return math.nan
    return float(np.abs(np.array(row.outcome) - truth()[: len(row.outcome)]).max())


@cache
def truth() -> Any:
    """Return the exact final state for the work-precision diagram, from another method and a far tighter tolerance."""
    net, y0 = Network(EXACT).net, torch.tensor(EXACT.state())
    with torch.no_grad():
        solution = anode.solve(net, y0, (0.0, EXACT.t1), method="dopri8", rtol=1e-13, atol=1e-13).check()
    y1: Any = solution.y1
    return y1.ravel().numpy()


def keep(out: Path, found: Found) -> None:
    """Write the measurements of a part."""
    content = {
        "format": FORMAT,
        "environment": environment(),
        "versions": {side: version(side) for side in (*RIVALS, "jax") if version(side)},
        "title": found.part.title,
        "axis": found.part.axis,
        "values": found.part.values,
        "works": found.part.works,
        "points": without_nan([[asdict(row) for row in rows] for rows in found.rows]),
        "errors": without_nan(found.errors),
    }
    write_json(out / f"{found.name}.json", content, indent=1)


def without_nan(content: Any) -> Any:
    """Replace numbers that are not finite by ``None``, as JSON does not have them."""
    if isinstance(content, list):
        return [without_nan(each) for each in content]
    if isinstance(content, dict):
        return {name: without_nan(each) for name, each in content.items()}
    return None if isinstance(content, float) and not math.isfinite(content) else content


def kept(out: Path, name: str) -> Found:
    """Read the stored measurements of a part."""
    path, part = out / f"{name}.json", PARTS[name]
    content = read_json(path)
    try:
        rows = [[read_row(row) for row in rows] for rows in content["points"]]
        errors = [[math.nan if error is None else float(error) for error in point] for point in content["errors"]]
        right = content["format"] == FORMAT and content["values"] == list(part.values)
        right = right and content.get("works", []) == list(part.works)
        right = right and len(rows) == len(part.entries) and all(rows)
        if right and (not errors or [len(point) for point in errors] == [len(point) for point in rows]):
            return Found(name, rows, errors, content["environment"]["date"])
    except (KeyError, TypeError, ValueError):
        pass
    raise DamagedFileError(f"{path}: is damaged or was written by another version; remove it to measure it again")


def read_row(content: dict[str, Any]) -> Row:
    """Read a stored row."""
    made = Row(**content)
    lookup("side", made.side, SIDES)
    outcome = [math.nan if value is None else float(value) for value in made.outcome]
    return replace(made, seconds=[float(value) for value in made.seconds], outcome=outcome)
