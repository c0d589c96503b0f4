"""What a study is: a figure of the paper, the runs it is drawn from, and how it is drawn."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from anode.experiments.certificates import shared
from anode.experiments.runs import Result
from anode.files import write_json
from anode.plots.animate import gif
from anode.plots.style import save as save_figure
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


def draw(study: Study, results: Results, folder: Path) -> None:
    """Draw a study and write its files: pictures, animations, and what they show as JSON."""
    start = time.perf_counter()
    drawing = study.draw(results)
    files = save_figure(drawing.figure, folder / study.id)
    files += [gif(frames, folder / f"{study.id}-{name}.gif") for name, frames in drawing.animations.items()]
    content = {
        "id": study.id,
        "title": study.title,
        "caption": f"{study.caption} {drawing.remark}".strip(),
        "images": [file.name for file in files],
        "protocol": [results[name].run.described() for name in study.runs],
        "numbers": {"columns": drawing.columns, "rows": drawing.rows} if drawing.rows else None,
        "scenes": drawing.scenes,
        "seconds": round(time.perf_counter() - start, 2),
    }
    write_json(folder / f"{study.id}.json", content)


def epochs(result: Result) -> Array:
    """The numbers of a result's epochs, from 1."""
    return np.arange(1, result.run.epochs + 1)


def mean_std(values: Array, form: str = "{:.3g} ± {:.2g}") -> str:
    """Mean and, of more than one, standard deviation over repeats; if not all have a value, in how many of them."""
    values = np.asarray(values, dtype=float)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"in none of {len(values)} repeats"
    some = "" if len(finite) == len(values) else f" in {len(finite)} of {len(values)} repeats"
    form = re.sub(r" ± {[^}]*}", "", form) if len(values) == 1 else form
    return form.format(finite.mean(), finite.std()) + some


def median_mean(values: Array) -> str:
    """The median over repeats, which a few outliers do not move, before mean and standard deviation."""
    finite = np.asarray(values, dtype=float)[np.isfinite(values)]
    return f"median {np.median(finite):.3g}; {mean_std(values, '{:.3g} ± {:.3g}')}" if len(finite) else mean_std(values)


def tolerance_range(values: Array) -> str:
    """The median of tolerances over repeats, and their range; if not all have one, in how many of them."""
    finite = np.asarray(values, dtype=float)[np.isfinite(values)]
    if not len(finite):
        return mean_std(values)
    some = "" if len(finite) == len(values) else f" in {len(finite)} of {len(values)} repeats"
    typical = np.sort(finite)[(len(finite) - 1) // 2]  # one that was tried, not a mean of two
    return f"{typical:.0e} ({finite.max():.0e} to {finite.min():.0e}){some}"


CERTIFIED_COLUMNS = ["certified tolerance", "NFE there"]


def certified_cells(results: Mapping[str, Result], data: Callable[[Result], Hashable]) -> dict[str, list[str]]:
    """For each row of a table, the tolerance certified for all rows about the same data, and the evaluations there.

    Args:
        results: By the name of their row.
        data: Tells the data of a result from others.
    """
    return {
        name: _certified(result, [each for each in results.values() if data(each) == data(result)])
        for name, result in results.items()
    }


def _certified(result: Result, compared: Sequence[Result]) -> list[str]:
    if not all(each.certificates for each in compared):
        return ["not certified", ""]
    tolerance = shared(each.certificates["last"] for each in compared)
    return [tolerance_range(tolerance), median_mean(result.certificates["last"].at(tolerance))]


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
