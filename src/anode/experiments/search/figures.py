"""Figures of a search: how the loss depends on each hyperparameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from anode.experiments.search.grid import Judged
from anode.experiments.search.spaces import PAPER_GRIDS, PAPERS_BEST
from anode.plots import style
from anode.plots.series import make_logarithmic

NAMES = {
    "batch_size": "batch size",
    "lr": "learning rate",
    "hidden": "hidden units",
    "layers": "layers",
    "augment": "p",
}
MOST_VALUES = 8
"""With at most this many values, the axis has one group per value; with more, it is numeric."""
SPREAD = 0.22
"""Half the width of the group of settings that share a value."""


def grid_figure(found: Sequence[Judged], dim: int) -> Figure:
    """Draw all settings in a dimension, with one row per model and one column per hyperparameter.

    Dots are settings, and a line joins their medians. The best setting is black; the paper's choice has a ring.
    """
    models = list(dict.fromkeys(each.setting.model for each in found))
    columns = max(len(PAPER_GRIDS[model]) for model in models)
    made = style.figure(3.2 * columns, 3.0 * len(models), len(models), columns)
    for row, model in enumerate(models):
        alike = [each for each in found if (each.setting.model, each.dim) == (model, dim) and np.isfinite(each.mean)]
        axes = made.axes[row * columns : (row + 1) * columns]
        for ax, name in zip(axes, PAPER_GRIDS[model], strict=False):
            draw_parameter(ax, alike, name)
            ax.set(xlabel=NAMES[name], ylabel="loss" if ax is axes[0] else "", title=model if ax is axes[0] else "")
        for ax in axes[len(PAPER_GRIDS[model]) :]:
            ax.set_visible(False)
    return made


def draw_parameter(ax: Any, alike: Sequence[Judged], name: str) -> None:
    """Draw the losses of one model's settings against the value of one hyperparameter."""
    values = sorted({each.setting.searched[name] for each in alike})
    color = style.MODEL_COLORS[alike[0].setting.model] if alike else style.MUTED
    where = places(alike, name, values)
    for each, x in where.items():
        ax.plot(x, each.mean, "o", color=color, markersize=4.5, alpha=0.6, zorder=2)
        if each.rank == 1:
            ax.plot(x, each.mean, "o", color=style.INK, markersize=6, zorder=4)
        if each.setting == PAPERS_BEST[each.setting.model]:
            ax.plot(x, each.mean, "o", markerfacecolor="none", markeredgecolor=style.INK, markersize=10, zorder=3)
    if len(values) <= MOST_VALUES:
        medians = [np.median([each.mean for each in alike if each.setting.searched[name] == v]) for v in values]
        ax.plot(range(len(values)), medians, color=color, linewidth=1.6, zorder=1)
        ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    elif name == "lr":
        ax.set_xscale("log")
    make_logarithmic(ax, np.array([each.mean for each in alike]))
    style.grid(ax)


def places(alike: Sequence[Judged], name: str, values: Sequence[float]) -> dict[Judged, float]:
    """Return the position of each setting: its value or, if there are few values, a place in its group."""
    if len(values) > MOST_VALUES:
        return {each: each.setting.searched[name] for each in alike}
    found: dict[Judged, float] = {}
    for at, value in enumerate(values):
        some = [each for each in alike if each.setting.searched[name] == value]
        some.sort(key=lambda each: str(each.setting))
        offsets = np.linspace(-SPREAD, SPREAD, len(some)) if len(some) > 1 else [0.0]
        found |= {each: at + float(offset) for each, offset in zip(some, offsets, strict=True)}
    return found
