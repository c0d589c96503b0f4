"""Plots of a model's output on the input plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colorbar import Colorbar
from matplotlib.colors import to_rgba_array
from matplotlib.patches import Circle
from numpy.typing import ArrayLike

from anode.checks import require
from anode.plots.classes import Labels, as_labels, colors_of
from anode.plots.inputs import Array, as_array, as_values
from anode.plots.style import BACKGROUND, DIVERGING, INK, MUTED, NORMAL, RASTERIZED_FROM, SMALL, styled

REACH = 1.2
"""Values are clipped to this distance from 0, because the targets are -1 and 1."""

TINT = 0.35
"""Opacity of the colour of a class's region on white."""


@styled()
def plane(
    ax: Axes,
    xs: ArrayLike,
    ys: ArrayLike,
    values: ArrayLike,
    points: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    radii: Sequence[float] = (),
) -> QuadMesh:
    """Plot a function on the plane in colours, with white for 0 and a line where it changes sign.

    Args:
        ax: Axes to plot on.
        xs, ys: Coordinates of a grid, [columns] and [rows].
        values: Values of the function on the grid, [rows, columns].
        points: Points to plot on top, [points, 2]. By default there are none.
        labels: Classes of the points as whole numbers from 0, [points].
        radii: Radii of circles around the origin, such as the boundaries of the data.

    Returns:
        The coloured mesh, for :func:`colorbar`.
    """
    xs, ys = as_values("xs", xs, ["columns"]), as_values("ys", ys, ["rows"])
    values = np.clip(as_values("values", values, [len(ys), len(xs)]), -REACH, REACH)
    mesh = ax.pcolormesh(xs, ys, values, cmap=DIVERGING, vmin=-REACH, vmax=REACH, shading="gouraud", rasterized=True)
    if (values < 0).any() and (values > 0).any():  # otherwise there is no such line, and matplotlib warns
        ax.contour(xs, ys, values, levels=[0.0], colors=[INK], linewidths=1.3)
    for radius in radii:
        ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6))
    at, own = _checked_points(points, labels)
    _put_on_top(ax, at, colors_of(own))
    _fill(ax, xs, ys)
    return mesh


@styled()
def regions(
    ax: Axes,
    xs: ArrayLike,
    ys: ArrayLike,
    classes: ArrayLike,
    points: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> QuadMesh:
    """Plot the class that a model predicts at each point of the plane, in light tones of the classes' colours.

    Args:
        ax: Axes to plot on.
        xs, ys: Coordinates of a grid, [columns] and [rows].
        classes: Classes on the grid as whole numbers from 0, [rows, columns].
        points: Points to plot on top, [points, 2]. By default there are none.
        labels: Classes of the points as whole numbers from 0, [points].

    Returns:
        The coloured mesh.

    Example:
        >>> import numpy as np
        >>> from anode import plots
        >>> xs = ys = np.linspace(-1, 1, 50)
        >>> x, y = np.meshgrid(xs, ys)
        >>> ax = plots.figure(4, 4).axes[0]
        >>> mesh = plots.regions(ax, xs, ys, (x > 0).astype(int) + (y > 0))    # three classes
        >>> plots.class_legend(ax, [0, 1, 2])
    """
    xs, ys = as_values("xs", xs, ["columns"]), as_values("ys", ys, ["rows"])
    shape = as_values("classes", classes, [len(ys), len(xs)]).shape
    grid = as_labels(as_array(classes).ravel(), len(xs) * len(ys), "classes")
    at, own = _checked_points(points, labels)
    colors = colors_of(np.concatenate([grid, own]))
    tones = 1 - TINT * (1 - to_rgba_array(colors[: len(grid)])[:, :3].reshape(*shape, 3))
    mesh = ax.pcolormesh(xs, ys, tones, shading="nearest", rasterized=True)
    _put_on_top(ax, at, colors[len(grid) :])
    _fill(ax, xs, ys)
    return mesh


def _checked_points(points: ArrayLike | None, labels: ArrayLike | None) -> tuple[Array, Labels]:
    """Check points [points, 2] and their labels; both are empty if not given."""
    require((points is None) == (labels is None), "labels", labels, "labels if points are given, otherwise None")
    if points is None or labels is None:
        return np.empty((0, 2)), np.empty(0, dtype=np.int64)
    at = as_values("points", points, ["points", 2])
    return at, as_labels(labels, len(at))


def _put_on_top(ax: Axes, points: Array, colors: Sequence[str]) -> None:
    if len(points):
        (x, y), raster = points.T, len(points) > RASTERIZED_FROM
        ax.scatter(x, y, s=15, c=colors, edgecolors=BACKGROUND, linewidths=0.5, zorder=3, rasterized=raster)


def _fill(ax: Axes, xs: Array, ys: Array) -> None:
    """Set the limits to those of the grid, with equal scales."""
    ax.set_aspect("equal")
    ax.set_xlim(xs.min(), xs.max())
    ax.set_ylim(ys.min(), ys.max())


@styled()
def colorbar(mesh: QuadMesh, axes: Axes | Sequence[Axes], label: str = "") -> Colorbar:
    """Add the colour bar of a :func:`plane`, or of several, next to their axes.

    Args:
        mesh: The mesh that :func:`plane` returned.
        axes: The axes of the planes.
        label: Label of the colour bar.
    """
    figure = mesh.get_figure(root=True)
    assert figure is not None, "plane put it on axes"
    bar = figure.colorbar(mesh, ax=axes, shrink=0.75, aspect=18, pad=0.03, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL, length=3.5, width=0.8, color=MUTED, labelcolor=INK)
    bar.ax.set_yticklabels(["\N{MINUS SIGN}1", "0", "+1"])
    bar.set_label(label, size=NORMAL, color=INK)
    return bar
