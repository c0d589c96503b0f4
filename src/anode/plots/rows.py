"""Plots of the values of repeats, with one row per model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from anode.checks import require
from anode.plots.inputs import as_values
from anode.plots.style import FAINT, INK, styled


@styled()
def rows(
    ax: Axes,
    values: Mapping[str, ArrayLike],
    colors: Mapping[str, str] | None = None,
    *,
    xlabel: str = "",
    log: bool = False,
    named: bool = True,
) -> None:
    """Plot the values of repeats as dots and their medians as strokes, with one row per label, from the top.

    Args:
        ax: Axes to plot on.
        values: Values by label, [repeats]. Values that are not finite are left out.
        colors: Colours by label. Labels without a colour are drawn in the colour of text.
        xlabel: Label of the horizontal axis.
        log: Whether the horizontal axis is logarithmic.
        named: Whether to write the labels. Set it to ``False`` for all but the first of several panels side by side.

    Example:
        >>> from anode import plots
        >>> ax = plots.figure().axes[0]
        >>> plots.rows(ax, {"NODE": [0.4, 0.5], "ANODE": [0.01, 0.02]}, log=True, xlabel="loss")
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['NODE', 'ANODE']
    """
    require(len(values) > 0, "values", values, "at least one label with its values")
    for place, (label, repeats) in enumerate(values.items()):
        x = as_values(label, repeats, ["repeats"])
        x, color = x[np.isfinite(x)], (colors or {}).get(label, INK)
        spread = place + 0.25 * np.linspace(-1, 1, len(x)) if len(x) > 1 else np.full(len(x), place)
        ax.scatter(x, spread, s=9, color=color, alpha=0.45, linewidths=0, zorder=3)
        if len(x):
            ax.plot([np.median(x)] * 2, [place - 0.36, place + 0.36], color=color, linewidth=2.2, zorder=4)
    ax.set_yticks(range(len(values)), list(values) if named else [""] * len(values))
    ax.set_ylim(len(values) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(numticks=5))
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="y", color=FAINT, linewidth=0.7)
    ax.set_xlabel(xlabel)
