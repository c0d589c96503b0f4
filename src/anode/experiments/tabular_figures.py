"""Figures of the estimators on small tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from anode.experiments.tabular import CLASSIFICATION, CLASSIFIERS, Cell
from anode.plots import style
from anode.plots.planes import colorbar, plane
from anode.train.progress import Bars

COLUMNS = 4
FINE = 120
"""Points per side of the grid on the plane."""


def draw(out: Path, cells: Sequence[Cell], seed: int, bars: Bars) -> None:
    """Write the figures of the measurements into a folder."""
    bars.show("drawing", 0, 2, "scores")
    style.save(scores(cells), out / "scores")
    bars.show("drawing", 1, 2, "circles and spirals")
    style.save(planes(seed), out / "planes")
    bars.show("drawing", 2, 2)


def scores(cells: Sequence[Cell]) -> Figure:
    """Draw the scores of all models, one panel per table. Dots are folds, lines are means."""
    tables = list(dict.fromkeys(cell.table for cell in cells))
    rows = -(-len(tables) // COLUMNS)
    made = style.figure(13.0, 3.1 * rows, rows, COLUMNS)
    for ax, table in zip(made.axes, tables, strict=False):
        of_table = {cell.model: cell.scores for cell in cells if cell.table == table}
        for at, (model, values) in enumerate(of_table.items()):
            color = style.MODEL_COLORS.get(model, style.MUTED)
            ax.plot(values, np.full(len(values), at), "o", color=color, markersize=4, alpha=0.55)
            ax.plot([np.mean(values)] * 2, [at - 0.32, at + 0.32], color=color, linewidth=2.4)
        first = table in tables[::COLUMNS]
        ax.set_yticks(range(len(of_table)), list(of_table) if first else [""] * len(of_table))
        ax.set(title=table, xlabel="accuracy" if table in CLASSIFICATION else "R²")
        ax.grid(axis="x", color=style.FAINT, linewidth=0.8)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.invert_yaxis()
    for ax in made.axes[len(tables) :]:
        ax.remove()
    return made


def planes(seed: int) -> Figure:
    """Draw the predictions of a NODE and an ANODE for circles and spirals."""
    made = style.figure(8.6, 8.2, 2, 2)
    for row, table in enumerate(("circles", "spirals")):
        points, labels = CLASSIFICATION[table]()
        reach = 1.1 * np.abs(points).max()
        along = np.linspace(-reach, reach, FINE)
        grid = np.stack(np.meshgrid(along, along), axis=-1).reshape(-1, 2)
        for column, name in enumerate(("NODE", "ANODE")):
            ax = made.axes[2 * row + column]
            model = CLASSIFIERS[name](seed).fit(points, labels)
            values = 2 * model.predict_proba(grid)[:, 1] - 1
            mesh = plane(ax, along, along, values.reshape(FINE, FINE), points, labels)
            right = 100 * model.score(points, labels)
            nfe = model.n_function_evaluations_
            ax.set_title(f"{name} on {table}: {right:.1f} %, NFE {nfe:.0f}")
    colorbar(mesh, made.axes, "difference of the probabilities")
    return made
