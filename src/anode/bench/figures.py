"""Figures of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anode.bench.speed import Found
from anode.bench.tables import seconds
from anode.bench.turns import Row
from anode.plots import style
from anode.plots.series import make_logarithmic

COLORS = {
    "anode": style.MODEL_COLORS["ANODE"],
    "anode, your module": "#7cc8c0",
    "anode, your module in solve": "#3f9d94",
    "anode, your module in fit": style.MODEL_COLORS["ANODE"],
    "anode, your loop": "#a9d6c5",
    "torchdiffeq": style.MODEL_COLORS["NODE"],
    "torchode": "#b0577d",
    "torchode, compiled": "#d9a3ba",
    "torchdyn": "#8a8f3c",
    "diffrax": style.MODEL_COLORS["ResNet"],
}
COLUMNS = 3


def draw(out: Path, found: Sequence[Found]) -> None:
    """Write the figures ``comparisons``, ``growth`` and ``module`` into a folder, if there is data for them."""
    points = [one for one in found if not (one.part.values or one.part.works) and rows_of(one)]
    sweeps = [one for one in found if one.part.values]
    if points:
        style.save(comparisons(points), out / "comparisons")
    if sweeps:
        style.save(growth(sweeps), out / "growth")
    for one in found:
        if one.part.works:
            style.save(own(one), out / one.name)


def comparisons(found: Sequence[Found]) -> Figure:
    """Draw the time of each library as a bar, with one panel per comparison."""
    counts = [len(rows_of(one)) for one in found]
    made = style.figure(9.0, sum(0.75 + 0.34 * count for count in counts), len(found), 1, height_ratios=counts)
    for ax, one in zip(made.axes, found, strict=True):
        rows = rows_of(one)
        for at, row in enumerate(rows):
            ax.barh(at, row.typical, color=COLORS[row.side], height=0.68)
            ax.annotate(
                f" {seconds(row.typical)}", (row.typical, at), va="center", fontsize=style.SMALL, color=style.INK
            )
        ax.set_yticks(range(len(rows)), [row.label for row in rows])
        ax.set_xlim(0, 1.15 * max(row.typical for row in rows))  # room for the longest text
        ax.set_title(one.part.title, loc="left")
        ax.invert_yaxis()
        ax.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
        ax.spines["bottom"].set_visible(False)
    return made


def rows_of(found: Found) -> list[Row]:
    """Return the rows that have a time."""
    return [row for row in found.rows[0] if row.seconds and row.side != "peak"]


def own(found: Found) -> Figure:
    """Draw the times on users' own modules on a logarithmic axis, with one line of marks per work."""
    works = found.part.works
    made = style.figure(9.0, 1.2 + 0.34 * len(works), 1, 1)
    (ax,) = made.axes
    drawn = set()
    for at, rows in enumerate(found.rows):
        for row in rows:
            if row.seconds:
                label = None if row.label in drawn else row.label
                ax.plot(row.typical * 1e3, at, "o", color=COLORS[row.side], markersize=7, label=label)
                drawn.add(row.label)
    ax.set_yticks(range(len(works)), works)
    ax.set(xscale="log", xlabel="milliseconds", title=found.part.title)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.invert_yaxis()
    style.grid(ax)
    style.shared_legend(made)
    return made


def growth(found: Sequence[Found]) -> Figure:
    """Draw time or memory as the work grows, with one panel per sweep."""
    lines = -(-len(found) // COLUMNS)
    made = style.figure(4.3 * COLUMNS, 3.6 * lines, lines, COLUMNS)
    for ax, one in zip(made.axes, found, strict=False):
        draw_sweep(ax, one)
    for ax in made.axes[len(found) :]:
        ax.remove()
    style.shared_legend(made)
    return made


def draw_sweep(ax: Axes, found: Found) -> None:
    """Draw one line per library; if errors are known, time against error."""
    part, values = found.part, []
    for label in dict.fromkeys(row.label for rows in found.rows for row in rows):
        cells = [(i, j) for i, rows in enumerate(found.rows) for j, row in enumerate(rows) if row.label == label]
        rows = [found.rows[i][j] for i, j in cells]
        x = [found.errors[i][j] if found.errors else part.values[i] for i, j in cells]
        y = np.array([row.typical * 1e3 if part.timed else row.megabytes for row in rows])
        values.append(y)
        ax.plot(x, y, "o-", color=COLORS[rows[0].side], markersize=4.5, linewidth=1.8, label=label)
    ax.set(xscale="log", title=part.title)
    if all((y > 0).all() for y in values):
        make_logarithmic(ax, np.concatenate(values))
    ax.set_xlabel("error" if found.errors else part.axis)
    ax.set_ylabel("milliseconds" if part.timed else "megabytes")
    if found.errors:
        ax.invert_xaxis()
    style.grid(ax)
