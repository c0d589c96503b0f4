"""Quantities against training time, over repeats: loss, NFE, accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from anode.ode.inputs import require
from anode.plots.inputs import Array, as_values
from anode.plots.style import INK, MODEL_COLORS, MUTED, grid, legend, styled

OTHER_COLORS = (*MODEL_COLORS.values(), "#b5487d", "#3f8fd2", MUTED)
"""For labels that are no model's name, in order."""


@styled()
def band(ax: Axes, x: ArrayLike, values: ArrayLike, label: str, color: str) -> tuple[Line2D, PolyCollection]:
    """Draw the mean over repeats, and a band of one standard deviation to either side.

    Args:
        ax: Where.
        x: [x], such as epochs.
        values: [x, repeats], or [x] for one repeat. Repeats are left out where they are NaN or infinite, as after a
            failure. The band does not go below 0 if no value does.
        label: What the legend says.
        color: Of both.

    Example:
        >>> import numpy as np
        >>> from anode.plots.curves import band
        >>> from anode.plots.style import figure
        >>> line, _ = band(figure().axes[0], [0, 1], [[1.0, 3.0], [5.0, np.nan]], "NODE", "red")
        >>> line.get_ydata().tolist()
        [2.0, 5.0]
    """
    x = as_values("x", x, ["x"])
    mean, std, positive = _moments("values", values, len(x))
    low = np.maximum(mean - std, 0) if positive else mean - std
    (line,) = ax.plot(x, mean, label=label, color=color, linewidth=2, solid_capstyle="round", zorder=3)
    shade = ax.fill_between(x, low, mean + std, color=color, alpha=0.18, linewidth=0, zorder=2)
    return line, shade


@styled()
def curves(
    ax: Axes,
    x: ArrayLike,
    series: Mapping[str, ArrayLike],
    colors: Mapping[str, str] | None = None,
    ylabel: str = "",
    *,
    xlabel: str = "epoch",
    log: bool = False,
) -> None:
    """Draw several bands in one plot, with a legend.

    Args:
        ax: Where.
        x: [x], such as epochs.
        series: By label, values as in :func:`band`.
        colors: By label; those of the models, or some others, where a label is missing.
        ylabel, xlabel: What the axes say.
        log: Whether the vertical axis is logarithmic, if any mean is above 0.
    """
    require(len(series) > 0, "series", series, "at least one label with its values")
    others = iter(OTHER_COLORS * len(series))
    chosen = {label: color for label, color in (colors or {}).items() if label in series}
    chosen = {**{label: MODEL_COLORS[label] for label in series if label in MODEL_COLORS}, **chosen}
    lines = []
    for label, values in series.items():
        color = chosen.get(label) or next(color for color in others if color not in chosen.values())
        lines.append(band(ax, x, values, label, color)[0])
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.margins(x=0.02)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if log:
        _make_logarithmic(ax, np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in lines]))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5))
    grid(ax)
    if len(series) > 1:
        legend(ax)


def _make_logarithmic(ax: Axes, means: Array) -> None:
    """A band that reaches 0 would make the axis endless: the means decide how far down it goes."""
    above_zero = means[means > 0]
    if not above_zero.size:
        return  # there is no such axis for them
    ax.set_yscale("log")
    ax.set_ylim(bottom=above_zero.min() / 2)
    ax.tick_params(axis="y", which="minor", length=2, width=0.6, color=INK)


def _moments(name: str, values: ArrayLike, count: int) -> tuple[Array, Array, bool]:
    """Mean and standard deviation of each row, NaN for a row without values, and whether all values are from 0."""
    array = as_values(name, values, [count, "repeats"] if np.ndim(values) == 2 else [count]).reshape(count, -1)
    present = np.isfinite(array)
    number = np.where(present.any(1), present.sum(1), np.nan)
    mean = np.where(present, array, 0).sum(1) / number
    deviations = np.where(present, array - mean[:, None], 0)
    return mean, np.sqrt((deviations**2).sum(1) / number), bool((array[present] >= 0).all())
