"""What happened during training."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anode.files import DamagedFileError, read_json, write_json, write_text
from anode.models.certify import BOUND
from anode.train.formats import from_csv, from_json, to_columns, to_csv, to_evaluated_columns, to_json
from anode.train.record import CHECKED, EVALUATED, MOMENTS, OPTIONAL, Array, Failure, Snapshot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-untyped]

STRETCHES = 40
"""Stretches of training whose means are drawn, unless there are more epochs: single iterations are noisy."""


def _none() -> Array:
    return np.empty(0, np.float32)


@dataclass
class History:
    """The record of a training run. Arrays are [iterations], or [iterations, members] for a stack.

    Those of evaluations are [evaluations], or [evaluations, members]: one an epoch, unless :func:`anode.fit` was told
    otherwise. Arrays of what was not recorded are empty.

    Attributes:
        loss: The loss of every iteration's batch; NaN from where a member failed, and where an iteration was skipped.
        nfe: Evaluations of the field in the forward solve; 0 for a model without one.
        accepted, rejected: Steps of the solver.
        nfe_backward: Evaluations of the field made by the gradient, [iterations].
        seconds: How long the iteration took, [iterations].
        batches: How many iterations make an epoch.
        validation: The loss on the validation set at every evaluation; NaN if a solve failed.
        failures: The members that failed, or the iterations that were skipped.
        stopped: Why training ended before its last epoch; empty if it did not.
        snapshots: Features of chosen points at chosen moments.
        settings: How it was trained.
        accuracy: The share of every iteration's batch that was classified right; for ``loss="cross_entropy"``.
        validation_accuracy: The same of the validation set.
        validation_nfe: Evaluations of the field for a batch of the validation set, the mean over its batches.
        validation_at: How many iterations had been made, [evaluations].
        engine: Who made the iterations: ``"native"`` for the compiled engine, or ``"torch"`` with the reason.
        check: How far inputs were from where they started when the flow was solved forward and back, as a fraction of
            their size; [checks], or [checks, members]. Infinite where a solve failed, NaN once a member has failed.
        check_at: How many iterations had been made, [checks].
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
    accuracy: Array = field(default_factory=_none)
    validation_accuracy: Array = field(default_factory=_none)
    validation_nfe: Array = field(default_factory=_none)
    validation_at: Array = field(default_factory=_none)
    engine: str = ""
    check: Array = field(default_factory=_none)
    check_at: Array = field(default_factory=_none)

    def __post_init__(self) -> None:
        for name, dtype in {
            **OPTIONAL,
            **EVALUATED,
            **MOMENTS,
            **CHECKED,
        }.items():  # nothing at all has a shape and a type too
            if not getattr(self, name).size:
                width = () if name in MOMENTS or self.members is None else (self.members,)
                setattr(self, name, np.empty((0, *width), dtype))

    def __len__(self) -> int:
        return len(self.loss)

    def __repr__(self) -> str:
        members = "" if self.members is None else f"{self.members} members, "
        final = "no iterations"
        if len(self):
            losses = self.loss[(self.epochs - 1) * self.batches :]
            loss = f"{losses[np.isfinite(losses)].mean():.4g}" if np.isfinite(losses).any() else "not finite"
            final = f"loss {loss}, nfe {np.mean(self.nfe[-1]):.4g} at the end{self._validated}{self._checked}"
        problems = f", {len(self.failures)} failed" if self.failures else ""
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({members}{len(self)} iterations, {final}{problems}{stopped})"

    @property
    def _validated(self) -> str:
        """What the last evaluation of the validation data found."""
        if not len(self.validation):
            return ""
        loss = f", validation loss {np.mean(self.validation[-1]):.4g}"
        return loss + (
            f", accuracy {np.mean(self.validation_accuracy[-1]):.1%}" if len(self.validation_accuracy) else ""
        )

    @property
    def _checked(self) -> str:
        """What the last check of the solves found, of a stack the largest error."""
        present = self.check[-1:][~np.isnan(self.check[-1:])]
        if not present.size:
            return ""
        up_to = "" if self.members is None else "up to "
        return f", reconstruction error {up_to}{present.max():.2%}"

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

    def windows(self, series: str, count: int) -> tuple[Array, Array]:
        """The means of a series over equal stretches of training: single iterations are noisy.

        Args:
            series: One that is recorded of every iteration.
            count: How many stretches; fewer if there are fewer iterations.

        Returns:
            The iterations at which the stretches end, and the means: [stretches], or [stretches, members]. What there
            is no value of is left out, as losses of skipped iterations, and everything of a member that is frozen; a
            stretch that has nothing else is NaN.
        """
        values = np.asarray(getattr(self, series), dtype=np.float64)
        if len(values) != len(self):
            raise ValueError(f"series: takes one that was recorded of every iteration, got {series!r}")
        if values.ndim == self.loss.ndim:
            values = np.where(np.isnan(self.loss) & (values == 0), np.nan, values)
        ends = np.unique(np.linspace(0, len(values), min(count, len(values)) + 1).round().astype(int))
        parts = [values[start:end] for start, end in pairwise(ends)]
        counts = [np.isfinite(part).sum(0) for part in parts]
        sums = [np.nansum(part, 0) for part in parts]
        means = [np.where(n > 0, total / np.maximum(n, 1), np.nan) for total, n in zip(sums, counts, strict=True)]
        return ends[1:], np.array(means).reshape(-1, *values.shape[1:])

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the loss in the course of training on a logarithmic axis, and beside it the NFE.

        Lines are means over stretches of training; of a stack they are means over its members, with a band of one
        standard deviation to either side. The validation loss is drawn if it was recorded, and the NFE if the model
        has a solve. If the solves were checked, a third plot has the reconstruction errors, with the bound of 1 %.

        Args:
            ax: Where to draw the loss alone; by default everything is drawn in a new figure.

        Returns:
            The figure: show it in a notebook, or write it with ``anode.plots.save`` or ``savefig``.

        Example:
            >>> import anode
            >>> train, test = anode.datasets.load("moons").split(0.8)
            >>> models = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=range(3))
            >>> history = anode.fit(models, train, epochs=2, validation=test)
            >>> figure = history.plot()
            >>> [ax.get_ylabel() for ax in figure.axes]
            ['loss', 'function evaluations']
        """
        from anode.plots.certificates import reconstructions
        from anode.plots.series import curves
        from anode.plots.style import INK, MODEL_COLORS, figure

        if not len(self):
            raise ValueError("history: takes at least one iteration to be plotted, got none; train first")
        solves, checks = (ax is None and bool(there) for there in (self.nfe.any(), len(self.check_at)))
        columns = 1 + solves + checks
        axes = figure((4.5, 8.0, 11.5)[columns - 1], 3.4, columns=columns).axes if ax is None else [ax]
        ends, loss = self.windows("loss", max(self.epochs, STRETCHES))
        series, at = {"training": loss}, {"training": ends}
        if len(self.validation_at):
            series["validation"], at["validation"] = self.validation, self.validation_at
        colors = {"training": INK, "validation": MODEL_COLORS["ANODE"]}
        curves(axes[0], at, series, colors, "loss", xlabel="iteration", log=True)
        if solves:
            ends, nfe = self.windows("nfe", max(self.epochs, STRETCHES))
            curves(axes[1], ends, {"NFE": nfe}, {"NFE": INK}, "function evaluations", xlabel="iteration")
        if checks:
            reconstructions(axes[-1], self.check_at, self.check, BOUND)
        made: Any = axes[0].figure
        return made

    def to_pandas(self) -> DataFrame:
        """Return a data frame with a row for each iteration and member.

        Its columns are those of the CSV file that :meth:`save` writes, and what was found on the validation set in the
        rows of the iterations after which it was evaluated; NaN in the others. The member of a model by itself is 0.

        Raises:
            ImportError: If pandas is not installed.

        Example:
            >>> import anode
            >>> models = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=range(3))
            >>> history = anode.fit(models, anode.datasets.load("moons"), epochs=2)
            >>> table = history.to_pandas()
            >>> table.groupby("member")["loss"].mean().shape
            (3,)
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas, which is not installed: run `pip install pandas`") from None
        return pandas.DataFrame(to_columns(self) | to_evaluated_columns(self))

    def save(self, path: str | Path) -> Path:
        """Write to a file: all of it as ``.json``, or a row for each iteration and member as ``.csv``."""
        path = Path(path)
        if path.suffix == ".csv":
            return write_text(path, to_csv(self))
        if path.suffix != ".json":
            raise ValueError(f"path: takes a name that ends in .json or .csv, got {str(path)!r}")
        return write_json(path, to_json(self))

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read a history from a ``.json`` file, or from a ``.csv`` file what that holds."""
        path = Path(path)
        try:
            if path.suffix != ".csv":
                return cls(**from_json(read_json(path)))
            with path.open(newline="", encoding="utf-8") as file:
                return cls(**from_csv(file))
        except DamagedFileError:
            raise
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError, csv.Error) as error:
            why = error if isinstance(error, ValueError) else repr(error)
            raise DamagedFileError(f"{path}: is not a history ({why}); remove it or restore it") from None
