"""The history of a training run."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anode.files import DamagedFileError, write_text
from anode.models.certify import BOUND
from anode.storage import read_json, write_sealed
from anode.train.formats import from_csv, from_json, to_columns, to_csv, to_evaluated_columns, to_json
from anode.train.record import CHECKED, EVALUATED, MOMENTS, OPTIONAL, Array, Failure, Snapshot, latest_check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-untyped]

STRETCHES = 40
"""Minimum number of intervals of training whose means are plotted, because single iterations are noisy."""


def _none() -> Array:
    return np.empty(0, np.float32)


@dataclass
class History:
    """The history of a training run: losses, costs, evaluations and failures.

    Arrays are [iterations], or [iterations, members] for a stack. Arrays of evaluations are [evaluations], or
    [evaluations, members]. There is one evaluation per epoch unless ``evaluate_every`` was passed to :func:`anode.fit`.
    Arrays of values that were not recorded are empty.

    Attributes:
        loss: Loss of each iteration's batch. NaN after a member has failed, and for skipped iterations.
        nfe: Number of evaluations of the field in the forward solve, or of all fields in all forward solves of the
            model; 0 without any. Solves by other libraries are not counted.
        accepted, rejected: Number of accepted and rejected steps of the solver.
        nfe_backward: Number of evaluations of the field in the backward pass, [iterations].
        seconds: Duration of each iteration in seconds, [iterations].
        batches: Number of iterations per epoch.
        validation: Loss on the validation set at each evaluation. NaN if a solve failed.
        failures: The members that failed, or the iterations that were skipped.
        stopped: Why training ended early; empty if it did not.
        snapshots: Features that were recorded during training, see :class:`anode.Snapshots`.
        settings: The settings of the training run.
        accuracy: Accuracy on each iteration's batch, if the targets are classes.
        validation_accuracy: Accuracy on the validation set at each evaluation, if the targets are classes.
        validation_nfe: Number of evaluations of the field per batch of the validation set, averaged over its batches.
        validation_at: Number of iterations before each evaluation, [evaluations].
        engine: Which engine ran the training: ``"native"``, or ``"torch"`` with the reason.
        check: Relative error of the inputs after solving the flow forward and back, [checks] or [checks, members].
            Infinite if a solve failed, NaN after a member has failed.
        check_at: Number of iterations before each check, [checks].
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
        }.items():  # empty arrays have a shape and a dtype too
            if not getattr(self, name).size:
                width = () if name in MOMENTS or self.members is None else (self.members,)
                setattr(self, name, np.empty((0, *width), dtype))

    def __len__(self) -> int:
        return len(self.loss)

    def __repr__(self) -> str:
        members = "" if self.members is None else f"{self.members} members, "
        final = "no iterations"
        if len(self):
            loss = "not finite" if self.last_loss is None else f"{self.last_loss:.4g}"
            nfe = f", nfe {np.mean(self.nfe[-1]):.4g}" if self.nfe.any() else ""
            final = f"loss {loss}{nfe} at the end{self._validated}{self._checked}"
        problems = f", {len(self.failures)} failed" if self.failures else ""
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({members}{len(self)} iterations, {final}{problems}{stopped})"

    @property
    def _validated(self) -> str:
        """The result of the last evaluation, for the repr."""
        if not len(self.validation):
            return ""
        loss = f", validation loss {np.mean(self.validation[-1]):.4g}"
        return loss + (
            f", accuracy {np.mean(self.validation_accuracy[-1]):.1%}" if len(self.validation_accuracy) else ""
        )

    @property
    def _checked(self) -> str:
        """The result of the last check, for the repr."""
        up_to = "" if self.members is None else "up to "
        return "" if self.last_check is None else f", reconstruction error {up_to}{self.last_check:.2%}"

    @property
    def last_loss(self) -> float | None:
        """The mean of the finite losses of the last epoch; ``None`` if there are none."""
        losses = self.loss[(self.epochs - 1) * self.batches :]
        finite = losses[np.isfinite(losses)]
        return float(finite.mean()) if finite.size else None

    @property
    def last_check(self) -> float | None:
        """The reconstruction error in the last check, for a stack the largest; ``None`` if there is none."""
        return latest_check(self.check)

    @property
    def members(self) -> int | None:
        """The number of members of the stack; ``None`` for a single model."""
        return None if self.loss.ndim == 1 else self.loss.shape[1]

    @property
    def epochs(self) -> int:
        """The number of epochs that were started."""
        return -(-len(self) // self.batches)

    def per_epoch(self, series: str) -> Array:
        """Return the mean of a series over each epoch: [epochs], or [epochs, members].

        Args:
            series: Name of a series with one value per iteration, such as ``"loss"``.
        """
        values = np.asarray(getattr(self, series), dtype=np.float64)
        means = [values[i : i + self.batches].mean(0) for i in range(0, len(values), self.batches)]
        return np.array(means).reshape(-1, *values.shape[1:]) if means else values

    def windows(self, series: str, count: int) -> tuple[Array, Array]:
        """Return the means of a series over equal intervals of training.

        Args:
            series: Name of a series with one value per iteration, such as ``"loss"``.
            count: Number of intervals; fewer if there are fewer iterations.

        Returns:
            A tuple of the iterations at which the intervals end, and the means: [intervals], or [intervals, members].
            Skipped iterations and iterations after a member failed are left out. The mean is NaN if nothing is left.

        Raises:
            ValueError: If the series does not have one value per iteration.
        """
        values = np.asarray(getattr(self, series), dtype=np.float64)
        if len(values) != len(self):
            raise ValueError(f"series: takes the name of a series with one value per iteration, got {series!r}")
        if values.ndim == self.loss.ndim:
            values = np.where(np.isnan(self.loss) & (values == 0), np.nan, values)
        ends = np.unique(np.linspace(0, len(values), min(count, len(values)) + 1).round().astype(int))
        parts = [values[start:end] for start, end in pairwise(ends)]
        counts = [np.isfinite(part).sum(0) for part in parts]
        sums = [np.nansum(part, 0) for part in parts]
        means = [np.where(n > 0, total / np.maximum(n, 1), np.nan) for total, n in zip(sums, counts, strict=True)]
        return ends[1:], np.array(means).reshape(-1, *values.shape[1:])

    def plot(self, ax: Axes | None = None) -> Figure:
        """Plot the loss during training on a logarithmic axis, and next to it the NFE.

        Lines are means over intervals of training. For a stack, they are means over its members, with a band of one
        standard deviation on each side. The validation loss is plotted if it was recorded, and the NFE if the model
        solves an ODE. If ``check_every`` was used, a third plot shows the reconstruction errors and the bound of 1 %.

        Args:
            ax: Axes to plot only the loss on. By default everything is plotted in a new figure.

        Returns:
            The figure. Show it in a notebook, or write it with ``anode.plots.save`` or ``savefig``.

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
            raise ValueError("history: plot takes a history of at least one iteration, got none; train first")
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
        """Return a data frame with one row per iteration and member.

        Its columns are those of the CSV file that :meth:`save` writes, and the results of evaluations and checks. These
        are in the row of the iteration before each evaluation or check, and NaN in other rows. For a single model, the
        member is 0.

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
        """Save the history: everything as ``.json``, or one row per iteration and member as ``.csv``.

        Args:
            path: Path of the file, which ends in ``.json`` or ``.csv``.

        Returns:
            The path of the file.
        """
        path = Path(path)
        if path.suffix == ".csv":
            return write_text(path, to_csv(self))
        if path.suffix != ".json":
            raise ValueError(f"path: takes a path that ends in .json or .csv, got {str(path)!r}")
        return write_sealed(path, to_json(self))

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Load a history from a ``.json`` file, or the part that a ``.csv`` file holds.

        Args:
            path: Path of a file that :meth:`save` wrote.

        Raises:
            DamagedFileError: If the file does not hold a history.
        """
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
