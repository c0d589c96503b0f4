"""What a model makes of every point of the input plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colorbar import Colorbar
from matplotlib.patches import Circle
from numpy.typing import ArrayLike

from anode.checks import require
from anode.plots.inputs import as_labels, as_values
from anode.plots.style import DIVERGING, INK, MUTED, NORMAL, PAPER, RASTERIZED_FROM, SMALL, colors_of, styled

REACH = 1.2
"""Values are shown up to this far from 0: the targets are -1 and 1, and beyond them nothing is to be told apart."""


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
    """Draw a function of the plane in colours, white where it is 0, with a line where it changes its sign.

    Args:
        ax: Where.
        xs, ys: The coordinates of a grid, [columns] and [rows].
        values: The function on that grid, [rows, columns].
        points: Points to be drawn on top, [points, 2].
        labels: Theirs, [points], 0 or 1.
        radii: Of circles around the origin to be drawn, such as the boundaries of the data.

    Returns:
        The coloured mesh, for a colour bar.
    """
    xs, ys = as_values("xs", xs, ["columns"]), as_values("ys", ys, ["rows"])
    values = np.clip(as_values("values", values, [len(ys), len(xs)]), -REACH, REACH)
    require((points is None) == (labels is None), "labels", labels, "labels with points, and none without")
    mesh = ax.pcolormesh(xs, ys, values, cmap=DIVERGING, vmin=-REACH, vmax=REACH, shading="gouraud", rasterized=True)
    if (values < 0).any() and (values > 0).any():  # or there is no such line, and matplotlib warns
        ax.contour(xs, ys, values, levels=[0.0], colors=[INK], linewidths=1.3)
    for radius in radii:
        ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6))
    if points is not None and labels is not None:
        x, y = as_values("points", points, ["points", 2]).T
        colors, raster = colors_of(as_labels(labels, len(x))), len(x) > RASTERIZED_FROM
        ax.scatter(x, y, s=15, c=colors, edgecolors=PAPER, linewidths=0.5, zorder=3, rasterized=raster)
    ax.set_aspect("equal")
    ax.set_xlim(xs.min(), xs.max())
    ax.set_ylim(ys.min(), ys.max())
    return mesh


@styled()
def colorbar(mesh: QuadMesh, axes: Axes | Sequence[Axes], label: str = "") -> Colorbar:
    """Draw the scale of a :func:`plane`, or of several that are alike, beside its axes."""
    figure = mesh.get_figure(root=True)
    assert figure is not None, "plane put it on axes"
    bar = figure.colorbar(mesh, ax=axes, shrink=0.75, aspect=18, pad=0.03, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL, length=3.5, width=0.8, color=MUTED, labelcolor=INK)
    bar.ax.set_yticklabels(["\N{MINUS SIGN}1", "0", "+1"])
    bar.set_label(label, size=NORMAL, color=INK)
    return bar
