"""What happened during training."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anode.files import DamagedFileError, read_json, write_json, write_text

Array = NDArray[Any]

FORMAT = "anode history 1"
SERIES = {"loss": np.float32, "nfe": np.int64, "accepted": np.int64, "rejected": np.int64}
"""What is recorded of every iteration and every member, with its type."""
SHARED = {"nfe_backward": np.int64, "seconds": np.float32}
"""What is recorded of every iteration."""


@dataclass(frozen=True)
class Failure:
    """A member whose solve, or loss, failed: it was frozen as it was before that iteration.

    Attributes:
        member: Which; 0 for a model by itself.
        iteration: When.
        reason: The status of its solve, and what it means.
    """

    member: int
    iteration: int
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """The features of some points at some moment of training.

    Attributes:
        iteration: How many iterations had been made.
        features: [points, features], or [members, points, features].
        nfe: What solving for these points took, one number or one a member; 0 for a model without a solve.
    """

    iteration: int
    features: Array
    nfe: Array


@dataclass
class History:
    """The record of a training run. Arrays are [iterations], or [iterations, members] for a stack.

    Attributes:
        loss: The loss of every iteration's batch; NaN from where a member failed.
        nfe: Evaluations of the field in the forward solve; 0 for a model without one.
        accepted, rejected: Steps of the solver.
        nfe_backward: Evaluations of the field made by the gradient, [iterations].
        seconds: How long the iteration took, [iterations].
        batches: How many iterations make an epoch.
        validation: The loss on the validation set after every epoch, [epochs] or [epochs, members]; empty without one.
        failures: The members that failed.
        stopped: Why training ended before its last epoch; empty if it did not.
        snapshots: Features of chosen points at chosen moments.
        settings: How it was trained.
    """

    loss: Array
    nfe: Array
    accepted: Array
    rejected: Array
    nfe_backward: Array
    seconds: Array
    batches: int
    validation: Array
    failures: list[Failure] = field(default_factory=list)
    stopped: str = ""
    snapshots: list[Snapshot] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.loss)

    def __repr__(self) -> str:
        members = "" if self.members is None else f"{self.members} members, "
        final = "no iterations"
        if len(self):
            losses = np.atleast_1d(self.per_epoch("loss")[-1])
            loss = f"{losses[np.isfinite(losses)].mean():.4g}" if np.isfinite(losses).any() else "not finite"
            final = f"loss {loss}, nfe {np.mean(self.nfe[-1]):.4g} at the end"
        problems = f", {len(self.failures)} failed" if self.failures else ""
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({members}{len(self)} iterations, {final}{problems}{stopped})"

    @property
    def members(self) -> int | None:
        """How many members were trained together; ``None`` for a model by itself."""
        return None if self.loss.ndim == 1 else self.loss.shape[1]

    @property
    def epochs(self) -> int:
        """How many epochs were begun."""
        return -(-len(self) // self.batches)

    def per_epoch(self, series: str) -> Array:
        """The mean of a series over each epoch: [epochs], or [epochs, members]."""
        values = np.asarray(getattr(self, series), dtype=np.float64)
        means = [values[i : i + self.batches].mean(0) for i in range(0, len(values), self.batches)]
        return np.array(means).reshape(-1, *values.shape[1:]) if means else values

    def save(self, path: str | Path) -> Path:
        """Write to a file: all of it as ``.json``, or a row for each iteration and member as ``.csv``."""
        path = Path(path)
        if path.suffix == ".csv":
            return write_text(path, self._csv())
        if path.suffix != ".json":
            raise ValueError(f"path: takes a name that ends in .json or .csv, got {str(path)!r}")
        return write_json(path, self._content())

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read a history from a ``.json`` file, or from a ``.csv`` file what that holds."""
        path = Path(path)
        try:
            return cls._from_csv(path) if path.suffix == ".csv" else cls._from_content(read_json(path))
        except DamagedFileError:
            raise
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError, csv.Error) as error:
            why = error if isinstance(error, ValueError) else repr(error)
            raise DamagedFileError(f"{path}: is not a history ({why}); remove it or restore it") from None

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "members": self.members,
            "batches": self.batches,
            "stopped": self.stopped,
            "failures": [asdict(failure) for failure in self.failures],
            "settings": self.settings,
            **{name: as_list(getattr(self, name)) for name in (*SERIES, *SHARED, "validation")},
            "snapshots": [
                {
                    "iteration": s.iteration,
                    "dtype": str(s.features.dtype),
                    "features": as_list(s.features),
                    "nfe": as_list(s.nfe),
                }
                for s in self.snapshots
            ],
        }

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> History:
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        losses = _array("loss", content["loss"], np.float32)
        members = content.get("members", losses.shape[1] if losses.ndim == 2 else None)  # old files do not say
        _check("members", members, members is None or _is_whole(members, 1), "a whole number above 0 or null")
        width = () if members is None else (members,)
        shapes = {**dict.fromkeys(SERIES, (len(losses), *width)), **dict.fromkeys(SHARED, (len(losses),))}
        series: dict[str, Any] = {
            name: _array(name, content[name], {**SERIES, **SHARED}[name], shape) for name, shape in shapes.items()
        }
        validation = _array("validation", content["validation"], np.float32)
        history = cls(
            **series,
            batches=content["batches"],
            validation=_array("validation", content["validation"], np.float32, (len(validation), *width)),
            failures=[Failure(**failure) for failure in content["failures"]],
            stopped=content["stopped"],
            snapshots=[_snapshot(each, width) for each in content["snapshots"]],
            settings=content["settings"],
        )
        _check("batches", history.batches, _is_whole(history.batches, 1), "a whole number above 0")
        _check("stopped", history.stopped, isinstance(history.stopped, str), "text")
        _check("settings", history.settings, isinstance(history.settings, dict), "a table")
        for each in history.failures:
            fits = _is_whole(each.member) and _is_whole(each.iteration) and isinstance(each.reason, str)
            _check("failures", each, fits, "a whole member and iteration, and a reason")
        return history

    def _csv(self) -> str:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["iteration", "epoch", "member", *SERIES, *SHARED])
        series = [getattr(self, name).reshape(len(self), self.members or 1) for name in SERIES]
        for i in range(len(self)):
            shared = [getattr(self, name)[i] for name in SHARED]
            for member in range(self.members or 1):
                who = "" if self.members is None else member
                rows.writerow([i, i // self.batches, who, *(values[i, member] for values in series), *shared])
        return text.getvalue()

    @classmethod
    def _from_csv(cls, path: Path) -> History:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            rows = list(table)
        columns = ["iteration", "epoch", "member", *SERIES, *SHARED]
        _check("columns", table.fieldnames, list(table.fieldnames or []) == columns, ", ".join(columns))
        _check("rows", "others", all(None not in (*row, *row.values()) for row in rows), "a cell for every column")
        stacked = bool(rows) and rows[0]["member"] != ""
        each = sum(row["iteration"] == "0" for row in rows) if rows else 1
        batches = sum(row["epoch"] == "0" for row in rows) // max(each, 1) if rows else 1
        iterations = len(rows) // max(each, 1)
        places = [(row["iteration"], row["epoch"], row["member"]) for row in rows]
        members = [str(member) for member in range(each)] if stacked else [""]
        expected = [(str(i), str(i // max(batches, 1)), member) for i in range(iterations) for member in members]
        _check("rows", "others", places == expected, "every iteration and member once, in their order")

        def read(name: str, dtype: Any) -> Array:
            cells = np.array([row[name] for row in rows]).astype(np.float64).reshape(iterations, each)
            return _array(name, cells if stacked and name in SERIES else cells[:, 0], dtype)

        series: dict[str, Any] = {name: read(name, dtype) for name, dtype in {**SERIES, **SHARED}.items()}
        validation = np.empty((0, each) if stacked else 0, dtype=np.float32)
        return cls(**series, batches=batches, validation=validation)


def as_list(values: Array) -> Any:
    """An array as lists of numbers, float32 with no more digits than it has; ``None`` for what is not finite."""
    flat = values.reshape(-1).tolist()
    if values.dtype == np.float32:
        flat = [float(f"{value:.9g}") if math.isfinite(value) else None for value in flat]
    elif values.dtype.kind == "f":
        flat = [value if math.isfinite(value) else None for value in flat]
    for size in values.shape[:0:-1]:
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat if values.ndim else flat[0]


def _snapshot(content: dict[str, Any], width: tuple[int, ...]) -> Snapshot:
    dtype = content.get("dtype", "float32")
    _check("dtype", dtype, dtype in ("float32", "float64"), "float32 or float64")
    _check("iteration", content["iteration"], _is_whole(content["iteration"]), "a whole number from 0")
    features, nfe = _array("features", content["features"], np.dtype(dtype)), _array("nfe", content["nfe"], np.int64)
    _check("features", features.shape, features.ndim > 1 and features.shape[: len(width)] == width, "one for a member")
    _check("nfe", nfe.shape, nfe.shape in ((), width), "one number or one a member")
    return Snapshot(content["iteration"], features, nfe)


def _array(name: str, values: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> Array:
    array = np.array(values, dtype=np.float64)  # None becomes NaN
    if shape is not None:
        array = array.reshape(shape) if array.size == 0 == math.prod(shape) else array
        _check(name, array.shape, array.shape == shape, f"the shape {shape}")
    if np.dtype(dtype).kind == "i":
        whole = bool((np.isfinite(array) & (array % 1 == 0) & (abs(array) < 2**53)).all())
        _check(name, "others", whole, "whole numbers")
    with np.errstate(over="ignore"):
        found = array.astype(dtype)
    _check(name, "larger ones", bool((np.isfinite(found) | ~np.isfinite(array)).all()), f"numbers of {np.dtype(dtype)}")
    return found


def _is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check(name: str, got: Any, fits: bool, takes: str) -> None:
    if not fits:
        raise ValueError(f"{name}: takes {takes}, got {got!r}")
