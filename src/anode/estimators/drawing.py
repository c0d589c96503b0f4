"""The plot of an estimator's flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from sklearn.decomposition import PCA

from anode.estimators.rows import Array
from anode.plots.classes import class_legend, colors_of
from anode.plots.flows import ARROWS
from anode.plots.marks import arrowheads, dots, lines
from anode.plots.style import clean, figure, styled

SHADES = "viridis"
"""The colour map of targets."""


@styled()
def draw_flow(ax: Axes | None, times: Sequence[float], paths: Array, values: Array, names: Sequence[str]) -> Axes:
    """Plot paths in the plane of their two principal components; one-dimensional paths against time.

    Args:
        ax: Axes to plot on; ``None`` for new axes.
        times: Times of the states, [times].
        paths: States, [times, rows, features].
        values: Class numbers or targets that the colours show, [rows].
        names: Names of the classes; empty for targets.
    """
    ax = figure(6.2, 5.2).axes[0] if ax is None else ax
    plane, names_of_axes = _in_time(times, paths) if paths.shape[2] == 1 else _principal(paths)
    colors = _class_colors(ax, values, names) if names else _shades(ax, values)
    lines(ax, plane, colors)
    dots(ax, plane[0], colors, hollow=True)
    dots(ax, plane[-1], colors)
    arrowheads(ax, plane, colors, ARROWS)
    ax.autoscale_view()
    ax.set(**names_of_axes)
    return ax


def _in_time(times: Sequence[float], paths: Array) -> tuple[Array, dict[str, str]]:
    """Return one-dimensional paths against time, and the labels of the axes."""
    at = np.broadcast_to(np.reshape(times, (-1, 1)), paths.shape[:2])
    return np.stack([at, paths[..., 0]], -1), {"xlabel": "$t$", "ylabel": "$h(t)$"}


def _principal(paths: Array) -> tuple[Array, dict[str, str]]:
    """Return paths projected to their two principal components, and the labels of the axes."""
    found: Array = PCA(2, random_state=0).fit_transform(paths.reshape(-1, paths.shape[2]))
    labels = {"xlabel": "first principal component", "ylabel": "second principal component"}
    return found.reshape(*paths.shape[:2], 2), labels


def _class_colors(ax: Axes, numbers: Array, names: Sequence[str]) -> list[str]:
    """Return the colour of each row's class, and add a legend."""
    class_legend(ax, numbers, names)
    return colors_of(numbers)


def _shades(ax: Axes, targets: Array) -> list[str]:
    """Return the colour of each row's target, and add a colour bar."""
    scale = ScalarMappable(Normalize(targets.min(), targets.max()), SHADES)
    drawn_on = ax.get_figure(root=True)
    assert drawn_on is not None, "axes are on a figure"
    bar = drawn_on.colorbar(scale, ax=ax, shrink=0.85)
    bar.set_label("target")
    clean(bar.ax)
    return [to_hex(color) for color in scale.to_rgba(targets)]
