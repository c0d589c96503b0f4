"""A study: a figure of the paper, the runs it needs, and the function that draws it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from anode.experiments.certificates import shared
from anode.experiments.runs import Result
from anode.plots.animate import gif
from anode.plots.style import save as save_figure
from anode.storage import write_json
from anode.train.record import Array

Results = Mapping[str, Result]


@dataclass
class Drawing:
    """A figure that has been drawn.

    Attributes:
        figure: The figure.
        columns, rows: The numbers it shows, as a table.
        animations: Frames of animations, by name.
        scenes: Flows in three dimensions, for the interactive views of the report.
        remark: Sentences about the outcome of these runs, appended to the caption.
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
        id: The paper's number, such as ``"fig07"``.
        title: What it shows, in a few words.
        caption: What the figure shows, independent of the outcome; :attr:`Drawing.remark` describes the outcome.
        runs: The names of the runs it needs.
        draw: Draws it from their results.
    """

    id: str
    title: str
    caption: str
    runs: tuple[str, ...]
    draw: Callable[[Results], Drawing]


def draw(study: Study, results: Results, folder: Path) -> None:
    """Draw a study and write its files: images, animations, and caption and numbers as JSON."""
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
    }
    write_json(folder / f"{study.id}.json", content)


def epochs(result: Result) -> Array:
    """Return the epoch numbers of a result, from 1."""
    return np.arange(1, result.run.epochs + 1)


def nfe_growth(result: Result) -> Array:
    """Return the mean NFE of the last epoch divided by that of the first."""
    nfe = result.per_epoch("nfe")
    return nfe[-1] / nfe[0]


def mean_std(values: Array, form: str = "{:.3g} ± {:.2g}") -> str:
    """Return mean ± standard deviation over repeats, and how many repeats have a value if not all do."""
    values = np.asarray(values, dtype=float)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"in none of {len(values)} repeats"
    some = "" if len(finite) == len(values) else f" in {len(finite)} of {len(values)} repeats"
    form = re.sub(r" ± {[^}]*}", "", form) if len(values) == 1 else form
    return form.format(finite.mean(), finite.std()) + some


def median_mean(values: Array) -> str:
    """Return the median over repeats, which is robust to outliers, followed by mean and standard deviation."""
    finite = np.asarray(values, dtype=float)[np.isfinite(values)]
    if len(values) == 1:
        return mean_std(values)
    return f"median {np.median(finite):.3g}; {mean_std(values, '{:.3g} ± {:.3g}')}" if len(finite) else mean_std(values)


def tolerance_range(values: Array) -> str:
    """Return median and range of tolerances over repeats, and how many repeats have one if not all do."""
    finite = np.asarray(values, dtype=float)[np.isfinite(values)]
    if not len(finite):
        return mean_std(values)
    some = "" if len(finite) == len(values) else f" in {len(finite)} of {len(values)} repeats"
    typical = np.sort(finite)[(len(finite) - 1) // 2]  # a tolerance that was tried, not the mean of two
    return f"{typical:.0e}{'' if len(values) == 1 else f' ({finite.max():.0e} to {finite.min():.0e})'}{some}"


CERTIFIED_COLUMNS = ["certified tolerance", "NFE there"]


def certified_cells(results: Mapping[str, Result], data: Callable[[Result], Hashable]) -> dict[str, list[str]]:
    """Return two cells per row: the tolerance certified for all rows on the same data, and the NFE there.

    Args:
        results: By the name of their row.
        data: Returns a key for the data of a result.
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
    """Return a flow for the interactive view, from paths [times, points, 3]. It keeps every second time."""
    solved = np.isfinite(paths).all((0, 2))
    return {
        "title": title,
        "paths": np.round(paths[::2, solved].transpose(1, 0, 2), 3).tolist(),
        "labels": [int(label) for label in labels[solved]],
        "names": ["target -1", "target +1"],
        "axes": ["input x₁", "input x₂", "added"],
    }
