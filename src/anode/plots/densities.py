"""Plots of densities in the plane, and of points drawn from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import ArrayLike

from anode.checks import number
from anode.plots.inputs import Array, as_values
from anode.plots.style import BACKGROUND, INK, RASTERIZED_FROM, bare, styled

SEQUENTIAL = LinearSegmentedColormap.from_list(
    "anode density", [BACKGROUND, "#b9dcd6", "#3aa99c", "#14606a", "#16243f"]
)
"""A colour map for densities, from the colour of the background for 0 to a dark blue."""
SHARE = 0.999
"""The fraction of the values that get different colours. With a few much larger ones, the others would be pale."""


@styled()
def density(
    ax: Axes,
    xs: ArrayLike,
    ys: ArrayLike,
    values: ArrayLike,
    points: ArrayLike | None = None,
    *,
    top: float | None = None,
) -> QuadMesh:
    """Plot a density on the plane. Darker colours are higher densities.

    Args:
        ax: Axes to plot on.
        xs, ys: Coordinates of a grid, [columns] and [rows].
        values: The density on the grid, [rows, columns]: the exponential of log-probabilities.
        points: Points to plot on top, [points, 2], such as data or samples. By default there are none.
        top: The density of the darkest colour. Pass the same value for densities that you compare. By default it is
            close to the largest value.

    Returns:
        The coloured mesh.

    Example:
        >>> import anode, torch
        >>> from anode import plots
        >>> model, side = anode.DensityFlow(2), torch.linspace(-4, 4, 50)
        >>> grid = torch.cartesian_prod(side, side).flip(1)    # x varies along the columns
        >>> ax = plots.figure(4, 4).axes[0]
        >>> mesh = plots.density(ax, side, side, model.log_prob(grid).exp().reshape(50, 50), model.sample(200))
    """
    xs, ys = as_values("xs", xs, ["columns"]), as_values("ys", ys, ["rows"])
    values = as_values("values", values, [len(ys), len(xs)])
    shown = values[np.isfinite(values)]
    most = number("top", top, optional=True, finite=True) or (float(np.quantile(shown, SHARE)) if shown.size else 0.0)
    # A density of 0 everywhere has no scale of its own.
    mesh = ax.pcolormesh(xs, ys, values, cmap=SEQUENTIAL, vmin=0, vmax=most or 1.0, shading="gouraud", rasterized=True)
    if points is not None:
        _dots(ax, as_values("points", points, ["points", 2]), INK)
    _frame(ax, (xs.min(), xs.max()), (ys.min(), ys.max()))
    return mesh


@styled()
def samples(ax: Axes, points: ArrayLike, *, reach: float | None = None) -> PathCollection:
    """Plot points in the plane, such as samples of a density, as small dots.

    Args:
        ax: Axes to plot on.
        points: Points, [points, 2].
        reach: The axes show the square [-reach, reach]². By default it contains all points.

    Returns:
        The dots.

    Example:
        >>> import anode
        >>> from anode import plots
        >>> dots = plots.samples(plots.figure(4, 4).axes[0], anode.densities.load("rings"), reach=4)
    """
    at = as_values("points", points, ["points", 2])
    most = number("reach", reach, optional=True, finite=True) or 1.05 * float(np.nanmax(np.abs(at), initial=1e-9))
    dots = _dots(ax, at, SEQUENTIAL(0.75))
    _frame(ax, (-most, most), (-most, most))
    return dots


def _dots(ax: Axes, points: Array, color: Any) -> PathCollection:
    """Plot transparent dots, which are smaller if there are more of them."""
    size = float(np.clip(6000 / max(len(points), 1), 1.5, 12))
    (x, y), raster = points.T, len(points) > RASTERIZED_FROM
    return ax.scatter(x, y, s=size, color=color, linewidths=0, alpha=0.55, zorder=3, rasterized=raster)


def _frame(ax: Axes, across: tuple[float, float], up: tuple[float, float]) -> None:
    """Set limits with equal scales, and remove ticks."""
    bare(ax)
    ax.set_aspect("equal")
    ax.set_xlim(*across)
    ax.set_ylim(*up)
