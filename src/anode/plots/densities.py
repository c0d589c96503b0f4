"""Densities in the plane, and points drawn from them."""

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
"""From nothing, the ground, to the largest density: the darker, the more."""
SHARE = 0.999
"""The part of the values that the colours tell apart; a few that are larger would leave the others pale."""


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
    """Draw a density of the plane: the darker, the denser.

    Args:
        ax: Where.
        xs, ys: The coordinates of a grid, [columns] and [rows].
        values: The density on that grid, [rows, columns]: the exponential of log-probabilities.
        points: Points to be drawn on top, [points, 2], such as data or samples.
        top: The density of the darkest colour. Pass the same for densities that are to be compared. Defaults to nearly
            the largest of the values.

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
    """Draw points of the plane, such as samples of a density, as a cloud of small dots.

    Args:
        ax: Where.
        points: [points, 2].
        reach: The axes show the square [-reach, reach]². Defaults to what holds all points.

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
    """Dots that get smaller the more there are, and let each other be seen."""
    size = float(np.clip(6000 / max(len(points), 1), 1.5, 12))
    (x, y), raster = points.T, len(points) > RASTERIZED_FROM
    return ax.scatter(x, y, s=size, color=color, linewidths=0, alpha=0.55, zorder=3, rasterized=raster)


def _frame(ax: Axes, across: tuple[float, float], up: tuple[float, float]) -> None:
    """Limits in equal units, without ticks."""
    bare(ax)
    ax.set_aspect("equal")
    ax.set_xlim(*across)
    ax.set_ylim(*up)
