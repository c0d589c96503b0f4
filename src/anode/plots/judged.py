"""Plots of predictions against the truth: confusion matrices, and predicted against true numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import ArrayLike

from anode.plots.inputs import as_values
from anode.plots.style import BACKGROUND, INK, MODEL_COLORS, MUTED, grid, styled

LABELLED = 20
"""Maximum number of classes with names and counts; more would not be legible."""
FEW = 5
"""Number of classes up to which a confusion matrix also has its zeros."""
LONGEST = 12
"""Maximum number of characters of a name."""


@styled()
def confusion(ax: Axes, counts: ArrayLike, names: Sequence[str]) -> None:
    """Plot a confusion matrix.

    Args:
        ax: Axes to plot on.
        counts: Counts, [classes, classes], with one row per true class and one column per predicted class.
        names: Names of the classes.
    """
    found = as_values("counts", counts, (len(names), len(names)))
    shares = found / np.maximum(found.sum(1, keepdims=True), 1)
    shades = LinearSegmentedColormap.from_list("shares", [BACKGROUND, MODEL_COLORS["ANODE"]])
    ax.imshow(shares, cmap=shades, vmin=0, vmax=1)
    if len(names) <= LABELLED:
        short = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
        turned = sum(map(len, short)) > 30
        ax.set_xticks(range(len(names)), short, rotation=45 if turned else 0, ha="right" if turned else "center")
        ax.set_yticks(range(len(names)), short)
        few = len(names) <= FEW
        size = 11 if few else 7
        for row, column in np.argwhere((found > 0) | few):
            color = BACKGROUND if shares[row, column] > 0.55 else INK if found[row, column] else MUTED
            ax.text(column, row, f"{found[row, column]:.0f}", ha="center", va="center", color=color, size=size)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="predicted", ylabel="true")


@styled()
def against(ax: Axes, true: ArrayLike, predicted: ArrayLike, name: str = "") -> None:
    """Plot predicted against true numbers, and the line where they are equal.

    Args:
        ax: Axes to plot on.
        true, predicted: The numbers, [points].
        name: Name of the target.
    """
    truth = as_values("true", true, ("points",))
    guess = as_values("predicted", predicted, (len(truth),))
    ends = [float(truth.min()), float(truth.max())]
    ax.plot(ends, ends, color=MUTED, linewidth=1.2, linestyle="--", label="predicted = true")
    ax.scatter(truth, guess, s=12, color=MODEL_COLORS["ANODE"], alpha=0.6, linewidths=0)
    grid(ax)
    ax.set(xlabel=f"true {name}".strip(), ylabel=f"predicted {name}".strip())
