"""A saved run in words: the last lines of ``anode train``, and the text of ``anode show``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anode.data.encoding import Category, Number
from anode.experiments.descriptions import Description
from anode.experiments.judging import Result, load_result
from anode.experiments.kinds import PICTURES, POINTS, TABLE
from anode.experiments.options import TrainOptions
from anode.experiments.predicting import described_data
from anode.experiments.single import Saved
from anode.train.history import History
from anode.words import counted, duration

MOST_CLASSES = 12
"""Largest number of classes whose confusion matrix is printed."""
WIDTH = 12
"""Largest number of characters of a class name in the matrix."""


def summary(run: Saved) -> list[str]:
    """Return lines about the model, its training and its score."""
    found = described_data(run)
    result = load_result(Path(run.name), found)[0]
    return [
        model_line(run.single, run.model),
        training_line(run.history, run.single.patience is not None),
        score_line(found, result),
    ]


def details(run: Saved) -> list[str]:
    """Return lines about the data, the model, its training, its cost and its score."""
    found = described_data(run)
    result = load_result(Path(run.name), found)[0]
    return [
        *data_lines(run.single, found),
        "",
        model_line(run.single, run.model),
        training_line(run.history, run.single.patience is not None),
        *cost_lines(run, result),
        "",
        score_line(found, result),
        *confusion_lines(found, result),
    ]


def model_line(single: TrainOptions, model: Any) -> str:
    """Return the model and its number of parameters."""
    count = sum(p.numel() for p in model.parameters())
    line = f"{single.model_name} on {single.data}: {count:,} parameters"
    if not single.is_image:
        return line
    of_time = sum(p.numel() for name, p in model.flow.field.named_parameters() if "time_weights." in name)
    return f"{line}, {of_time:,} of which multiply the time t" if of_time else f"{line}; the field does not use time"


def training_line(history: History, keeps_best: bool) -> str:
    """Return the length of training, the final loss and, if it is that with the lowest validation loss, the model."""
    if not len(history):
        return "not trained: 0 epochs"
    loss = "loss not finite" if history.last_loss is None else f"loss {history.last_loss:.4g}"
    repeats = "" if history.members is None else f"{history.members} repeats "
    checked = "" if history.last_check is None else f", reconstruction error {history.last_check:.2%}"
    stopped = f"; stopped: {history.stopped}" if history.stopped else ""
    failed = f"; {len(history.failures)} failed" if history.failures else ""
    seconds = float(history.seconds.sum())
    length = f"{history.epochs} epochs, {len(history):,} iterations, {duration(seconds)}"
    kept = _best(history) if keeps_best and len(history.validation) else ""
    return f"trained {repeats}for {length}: {loss}{checked}{stopped}{failed}{kept}"


def _best(history: History) -> str:
    """Return which model was kept; empty if it is the last."""
    at = int(np.argmin(np.nan_to_num(history.validation, nan=np.inf)))
    if at == len(history.validation) - 1:
        return ""
    epoch = history.validation_at[at] / history.batches
    return f"; the model of epoch {epoch:.3g} was kept, with a validation loss of {float(history.validation[at]):.4g}"


def score_line(found: Description, result: Result) -> str:
    """Return the score and the baseline."""
    if result.failure:
        return f"no score on {found.judged_by}: {result.failure}"
    low, mean, high = (_score(found, float(of(result.scores))) for of in (np.min, np.mean, np.max))
    several = f" (mean of {len(result.scores)} repeats, {low} to {high})" if len(result.scores) > 1 else ""
    line = f"{'accuracy' if found.classes else 'R²'} {mean}{several} on {found.judged_by}"
    if found.classes:
        return f"{line}; guessing the largest class: {_score(found, result.baseline)}"
    error = f"root mean squared error {np.mean(result.errors[:-1]):.4g}"
    return f"{line}, {error}; guessing the mean: {_score(found, result.baseline)} and {result.errors[-1]:.4g}"


def _score(found: Description, value: float) -> str:
    return f"{value:.1%}" if found.classes else f"{value + 0.0:.3f}"


def data_lines(single: TrainOptions, found: Description) -> list[str]:
    """Return lines about the data."""
    unit = {POINTS: "points", TABLE: "rows"}.get(found.kind, "pictures" if found.kind == PICTURES else "images")
    counts = ", ".join(f"{count:,} for {name}" for name, count in found.counts.items() if count)
    size = found.sizes.inputs
    shape = f"{counted(size, 'number')} each" if isinstance(size, int) else "x".join(map(str, size))
    lines = [f"data: {single.data}", f"{unit}: {counts}; {shape}"]
    if found.classes:
        shown = ", ".join(found.classes[:MOST_CLASSES]) + (", ..." if len(found.classes) > MOST_CLASSES else "")
        lines.append(f"classes: {len(found.classes)} ({shown})")
    if found.encoding is not None:
        columns = found.encoding.columns
        numbers = [column.name for column in columns if isinstance(column, Number)]
        categories = [f"{column.name} ({len(column.categories)})" for column in columns if isinstance(column, Category)]
        for what, names in (("numbers", numbers), ("categories", categories)):
            lines += [f"{what}: {', '.join(names)}"] if names else []
    return [*lines, *found.notes]


def cost_lines(run: Saved, result: Result) -> list[str]:
    """Return the cost of an iteration and of a prediction."""
    history = run.history
    if not len(history) or not history.nfe.any():
        return []
    last = slice((history.epochs - 1) * history.batches, None)
    forward, backward = float(history.nfe[last].mean()), float(history.nfe_backward[last].mean())
    solver = run.single.solver
    tolerances = f"rtol {solver.rtol:g}, atol {solver.atol:g}"
    how = tolerances if solver.step_size is None else f"step size {solver.step_size:g}"
    again = f" and {backward:.0f} in the backward pass" if backward else ""
    each = 1000 * float(np.median(history.seconds))
    return [
        f"an iteration: {forward:.0f} evaluations of the field{again}, {each:.3g} ms",
        f"a prediction: {result.nfe:.1f} evaluations of the field, with {solver.method}, {how}",
    ]


def confusion_lines(found: Description, result: Result) -> list[str]:
    """Return the confusion matrix as lines; nothing if there are too many classes."""
    if not result.confusion or len(found.classes) > MOST_CLASSES:
        return []
    names = [name[: WIDTH - 1] + "…" if len(name) > WIDTH else name for name in found.classes]
    rows: list[Sequence[object]] = [["true \\ predicted", *names]]
    rows += [[name, *counts] for name, counts in zip(names, result.confusion, strict=True)]
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return ["", *("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)]
