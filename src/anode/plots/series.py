"""Plots of quantities during training, over repeats: loss, NFE and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike

from anode.checks import require
from anode.plots.inputs import Array, as_array, as_values
from anode.plots.style import INK, MODEL_COLORS, MUTED, grid, legend, styled, whole_ticks

OTHER_COLORS = (*MODEL_COLORS.values(), "#b5487d", "#3f8fd2", MUTED)
"""Colours for labels that are not the name of a model, in order."""

FEW_DECADES = 200
"""A logarithmic axis whose ends have a smaller ratio than this is labelled with plain numbers."""


@styled()
def band(ax: Axes, x: ArrayLike, values: ArrayLike, label: str, color: str) -> tuple[Line2D, PolyCollection]:
    """Plot the mean over repeats, and a band of one standard deviation on each side.

    Args:
        ax: Axes to plot on.
        x: Horizontal coordinates, such as epochs, [x].
        values: Values, [x, repeats], or [x] for one repeat. NaN and infinite values, as after a failure, are left out.
            If the band would go below 0 but no repeat does, it ends at the smallest repeat.
        label: Label in the legend.
        color: Colour of line and band.

    Example:
        >>> import numpy as np
        >>> from anode import plots
        >>> line, _ = plots.band(plots.figure().axes[0], [0, 1], [[1.0, 3.0], [5.0, np.nan]], "NODE", "red")
        >>> line.get_ydata().tolist()
        [2.0, 5.0]
    """
    x = as_values("x", x, ["x"])
    mean, std, smallest = _moments("values", values, len(x))
    low = np.where((mean < std) & (smallest >= 0), smallest, mean - std)
    alone = "o" if len(x) == 1 else None  # a line of one point is invisible
    (line,) = ax.plot(x, mean, label=label, color=color, linewidth=2, solid_capstyle="round", marker=alone, zorder=3)
    shade = ax.fill_between(x, low, mean + std, color=color, alpha=0.18, linewidth=0, zorder=2)
    return line, shade


@styled()
def curves(
    ax: Axes,
    x: ArrayLike | Mapping[str, ArrayLike],
    series: Mapping[str, ArrayLike],
    colors: Mapping[str, str] | None = None,
    ylabel: str = "",
    *,
    xlabel: str = "epoch",
    log: bool = False,
) -> None:
    """Plot several bands, with a legend.

    Args:
        ax: Axes to plot on.
        x: Horizontal coordinates, such as epochs, [x]; or one such array per label.
        series: Values by label, see :func:`band`.
        colors: Colours by label. By default a model's name has its colour in :data:`anode.plots.MODEL_COLORS`, and
            other labels have other colours.
        ylabel, xlabel: Labels of the axes.
        log: Whether the vertical axis is logarithmic, if any mean is above 0.

    Example:
        >>> from anode import plots
        >>> ax = plots.figure().axes[0]
        >>> repeats = [[0.9, 0.8], [0.5, 0.4], [0.3, 0.1]]    # three epochs of two repeats
        >>> plots.curves(ax, [1, 2, 3], {"NODE": repeats, "ANODE": [0.7, 0.2, 0.1]}, ylabel="loss", log=True)
        >>> [line.get_label() for line in ax.lines]
        ['NODE', 'ANODE']
    """
    require(len(series) > 0, "series", series, "at least one label with its values")
    chosen = chosen_colors(series, colors)
    across = x if isinstance(x, Mapping) else dict.fromkeys(series, x)
    drawn = [band(ax, across[label], values, label, chosen[label]) for label, values in series.items()]
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.margins(x=0.02)
    whole_ticks(ax.xaxis)
    if log:
        edges = [np.asarray(path.vertices)[:, 1] for _, shade in drawn for path in shade.get_paths()]
        make_logarithmic(ax, np.concatenate([_heights(line) for line, _ in drawn]), edges)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5))
    _show_covered([line for line, _ in drawn], np.log if ax.get_yscale() == "log" else np.asarray)
    grid(ax)
    if len(series) > 1:
        legend(ax)


@styled()
def paths(
    ax: Axes,
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    colors: Mapping[str, str] | None = None,
    *,
    xlabel: str = "",
    ylabel: str = "",
    log: bool = False,
) -> None:
    """Plot two quantities against each other during training, as means over repeats.

    Args:
        ax: Axes to plot on.
        series: The two quantities by label, each [times, repeats] or [times].
        colors: See :func:`curves`.
        xlabel, ylabel: Labels of the axes.
        log: Whether the vertical axis is logarithmic, if any mean is above 0.

    Example:
        >>> from anode import plots
        >>> ax = plots.figure().axes[0]
        >>> plots.paths(ax, {"NODE": ([20, 26, 32], [1.0, 0.5, 0.4])}, xlabel="NFE", ylabel="loss")
        >>> ax.get_lines()[0].get_xdata().tolist()
        [20.0, 26.0, 32.0]
    """
    require(len(series) > 0, "series", series, "at least one label with its values")
    chosen = chosen_colors(series, colors)
    heights = []
    for label, (x, y) in series.items():
        across, up = (_moments(label, values, len(as_array(values)))[0] for values in (x, y))
        ax.plot(across, up, label=label, color=chosen[label], linewidth=1.2, marker="o", markersize=3.5, zorder=3)
        heights.append(up)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    whole_ticks(ax.xaxis)
    if log:
        make_logarithmic(ax, np.concatenate(heights))
    grid(ax)
    if len(series) > 1:
        legend(ax)


@styled()
def compared(
    ax: Axes,
    found: Mapping[str, Mapping[str, ArrayLike]],
    reported: Mapping[str, Mapping[str, float]],
    ylabel: str = "",
) -> None:
    """Plot the results of all repeats, and next to them the results that the paper reports, as hollow diamonds.

    Args:
        ax: Axes to plot on.
        found: Values by group and model, one per repeat.
        reported: The paper's value by group and model.
        ylabel: Label of the vertical axis.

    Example:
        >>> from anode import plots
        >>> ax = plots.figure().axes[0]
        >>> plots.compared(ax, {"MNIST": {"NODE": [95.0, 96.0]}}, {"MNIST": {"NODE": 96.4}})
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['MNIST']
    """
    require(len(found) > 0, "found", found, "at least one group")
    models = list(dict.fromkeys(model for group in found.values() for model in group))
    chosen = chosen_colors(dict.fromkeys(models), None)
    named = set()
    for place, (group, values) in enumerate(found.items()):
        for i, (model, repeats) in enumerate(values.items()):
            x = place + 0.4 * ((i + 0.5) / len(values) - 0.5)
            y = as_values(model, repeats, ["repeats"])
            label = None if model in named else model
            named.add(model)
            ax.plot(np.full(len(y), x), y, "o", color=chosen[model], alpha=0.6, markersize=5, label=label, zorder=3)
            mean = y[np.isfinite(y)].mean() if np.isfinite(y).any() else np.nan
            ax.plot([x - 0.05, x + 0.05], [mean, mean], color=chosen[model], linewidth=2, zorder=3)
            if model in reported.get(group, {}):
                ax.plot(x + 0.1, reported[group][model], "D", color=chosen[model], markerfacecolor="none", zorder=3)
    ax.plot([], [], "D", color=MUTED, markerfacecolor="none", label="paper")
    ax.set_xticks(range(len(found)), list(found))
    ax.set_xlim(-0.6, len(found) - 0.4)
    ax.set_ylabel(ylabel)
    grid(ax)
    legend(ax)


def chosen_colors(series: Mapping[str, object], colors: Mapping[str, str] | None) -> dict[str, str]:
    """Return a colour for each label: the given one, the model's, or another."""
    chosen = {label: MODEL_COLORS[label] for label in series if label in MODEL_COLORS}
    chosen |= {label: color for label, color in (colors or {}).items() if label in series}
    others = cycle([color for color in OTHER_COLORS if color not in chosen.values()] or OTHER_COLORS)
    return chosen | {label: next(others) for label in series if label not in chosen}


def _heights(line: Line2D) -> Array:
    return np.asarray(line.get_ydata(), dtype=np.float64)


def _show_covered(lines: Sequence[Line2D], scale: Callable[[Array], Array]) -> None:
    """Widen lines that later lines cover along more than half of their length, so that their edges stay visible."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heights = [scale(_heights(line)) for line in lines]
    known = np.concatenate([each[np.isfinite(each)] for each in heights])
    near = 0.01 * np.ptp(known) if len(known) else 0.0
    for i, line in enumerate(lines):
        later = [each for each in heights[i + 1 :] if len(each) == len(heights[i])]
        covering = sum(np.mean(np.isclose(each, heights[i], rtol=0, atol=near)) > 0.5 for each in later)
        line.set_linewidth(2 + 2.2 * covering)


def make_logarithmic(ax: Axes, means: Array, bands: Sequence[Array] = ()) -> None:
    """Make the vertical axis logarithmic.

    Bands are cut off below a hundredth of the lowest mean, because a band that reaches 0 would need an infinite axis.
    """
    above_zero = means[means > 0]
    if not above_zero.size:
        return  # a logarithmic axis needs a positive value
    ax.set_yscale("log")
    edges = [edge[edge > above_zero.min() / 100] for edge in bands]
    shown = np.concatenate([above_zero, *edges])
    low, high = float(shown.min()), float(shown.max())
    ax.set_ylim(low / max(1.1, (high / low) ** 0.08), high * max(1.1, (high / low) ** 0.08))
    if high / low < FEW_DECADES and low > 0.01 and high < 1000:  # plain numbers are easier to read than powers of ten
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 3 else range(1, 10)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="y", which="minor", length=2, width=0.6, color=INK)


def _moments(name: str, values: ArrayLike, count: int) -> tuple[Array, Array, Array]:
    """Return mean, standard deviation and smallest value of each row; NaN for a row without values."""
    array = as_values(name, values, [count, "repeats"] if np.ndim(values) == 2 else [count]).reshape(count, -1)
    present = np.isfinite(array)
    number = np.where(present.any(1), present.sum(1), np.nan)
    mean = np.where(present, array, 0).sum(1) / number
    deviations = np.where(present, array - mean[:, None], 0)
    smallest = np.where(present, array, np.inf).min(1)
    return mean, np.sqrt((deviations**2).sum(1) / number), np.where(present.any(1), smallest, np.nan)
