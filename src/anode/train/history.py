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
            final = f"loss {np.nanmean(self.per_epoch('loss')[-1]):.4g}, nfe {np.mean(self.nfe[-1]):.4g} at the end"
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
        return np.stack([values[i : i + self.batches].mean(0) for i in range(0, len(values), self.batches)])

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
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            if isinstance(error, DamagedFileError):
                raise
            raise DamagedFileError(f"{path}: is not a history ({error!r}); remove it or restore it") from None

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "batches": self.batches,
            "stopped": self.stopped,
            "failures": [asdict(failure) for failure in self.failures],
            "settings": self.settings,
            **{name: as_list(getattr(self, name)) for name in (*SERIES, *SHARED, "validation")},
            "snapshots": [
                {"iteration": s.iteration, "features": as_list(s.features), "nfe": as_list(s.nfe)}
                for s in self.snapshots
            ],
        }

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> History:
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        types: dict[str, Any] = {**SERIES, **SHARED, "validation": np.float32}
        series: dict[str, Any] = {name: _array(content[name], dtype) for name, dtype in types.items()}
        history = cls(
            **series,
            batches=content["batches"],
            failures=[Failure(**failure) for failure in content["failures"]],
            stopped=content["stopped"],
            snapshots=[
                Snapshot(s["iteration"], _array(s["features"], np.float32), _array(s["nfe"], np.int64))
                for s in content["snapshots"]
            ],
            settings=content["settings"],
        )
        lengths = {name: len(getattr(history, name)) for name in (*SERIES, *SHARED)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"series of different lengths: {lengths}")
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
            rows = list(csv.DictReader(file))
        iterations = int(rows[-1]["iteration"]) + 1
        stacked = rows[0]["member"] != ""
        each = len(rows) // iterations

        def read(name: str, dtype: Any) -> Array:
            values = np.array([row[name] for row in rows]).astype(np.float64).astype(dtype).reshape(iterations, each)
            return values if stacked and name in SERIES else values[:, 0]

        series: dict[str, Any] = {name: read(name, dtype) for name, dtype in {**SERIES, **SHARED}.items()}
        return cls(
            **series,
            batches=sum(row["epoch"] == "0" for row in rows) // each,
            validation=np.empty((0, each) if stacked else 0, dtype=np.float32),
        )


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


def _array(values: Any, dtype: Any) -> Array:
    array = np.array(values, dtype=np.float64)  # None becomes NaN
    return array.astype(dtype)
