"""What a study is: a figure of the paper, the runs it is drawn from, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from anode.experiments.runs import Result
from anode.train.record import Array

Results = Mapping[str, Result]


@dataclass
class Drawing:
    """A figure that has been drawn.

    Attributes:
        figure: The figure.
        columns, rows: The numbers it shows, as a table.
        animations: Frames of animations, by name.
        scenes: Flows in three dimensions, for the report's viewer.
        remark: Sentences about what these runs show, which the caption ends with.
    """

    figure: Figure
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    animations: dict[str, Iterable[Any]] = field(default_factory=dict)
    scenes: list[dict[str, Any]] = field(default_factory=list)
    remark: str = ""


@dataclass(frozen=True)
class Study:
    """A figure of the paper.

    Attributes:
        id: As the paper numbers it, such as ``"fig07"``.
        title: What it shows, in a few words.
        caption: What is drawn, whatever came out; :attr:`Drawing.remark` says what did.
        runs: The names of the runs it is drawn from.
        draw: Draws it from their results.
    """

    id: str
    title: str
    caption: str
    runs: tuple[str, ...]
    draw: Callable[[Results], Drawing]


def epochs(result: Result) -> Array:
    """The numbers of a result's epochs, from 1."""
    return np.arange(1, result.run.epochs + 1)


def mean_std(values: Array, form: str = "{:.3g} ± {:.2g}") -> str:
    """Mean and standard deviation over repeats; if not all have a value, in how many of them."""
    values = np.asarray(values, dtype=float)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"in none of {len(values)} repeats"
    some = "" if len(finite) == len(values) else f" in {len(finite)} of {len(values)} repeats"
    return form.format(finite.mean(), finite.std()) + some


def scene(title: str, paths: Array, labels: Array) -> dict[str, Any]:
    """A flow for the report's viewer, from paths [times, points, 3]; every second time is enough there."""
    solved = np.isfinite(paths).all((0, 2))
    return {
        "title": title,
        "paths": np.round(paths[::2, solved].transpose(1, 0, 2), 3).tolist(),
        "labels": [int(label) for label in labels[solved]],
        "names": ["target -1", "target +1"],
        "axes": ["input x₁", "input x₂", "added"],
    }
