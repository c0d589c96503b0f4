"""Plots of trajectories: the paths of points from input to features.

Paths are arrays [times, points, dims]. A hollow dot marks the start of a path, a full dot its end. Some paths have an
arrowhead in the middle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from anode.checks import require
from anode.plots.classes import as_labels, colors_of
from anode.plots.inputs import Array, as_values
from anode.plots.marks import CAMERA, arrowheads, dots, frame_2d, frame_3d, lines
from anode.plots.style import styled

ARROWS = 24
"""Default number of paths with an arrowhead; more would hide the lines."""


@styled()
def flow_2d(ax: Axes, paths: ArrayLike, labels: ArrayLike | None = None, *, arrows: int = ARROWS) -> None:
    """Plot paths in the plane, with equal scales on both axes.

    Args:
        ax: Axes to plot on.
        paths: States, [times, points, 2].
        labels: Classes as whole numbers from 0, [points]. Defaults to one class.
        arrows: Number of paths with an arrowhead.
    """
    paths = as_values("paths", paths, ["times", "points", 2])
    _flow(ax, paths, labels, arrows)
    frame_2d(ax, paths)


@styled()
def flow_3d(
    ax: Any,
    paths: ArrayLike,
    labels: ArrayLike | None = None,
    elev: float = CAMERA[0],
    azim: float = CAMERA[1],
    *,
    arrows: int = ARROWS,
) -> None:
    """Plot paths in three dimensions.

    Args:
        ax: Three-dimensional axes to plot on.
        paths: States, [times, points, 3]; see :func:`project_3d` for more dimensions.
        labels: Classes as whole numbers from 0, [points]. Defaults to one class.
        elev, azim: Elevation and azimuth of the camera in degrees.
        arrows: Number of paths with an arrowhead.
    """
    require(getattr(ax, "name", None) == "3d", "ax", ax, "three-dimensional axes")
    paths = as_values("paths", paths, ["times", "points", 3])
    _flow(ax, paths, labels, arrows)
    frame_3d(ax, paths, elev, azim)


@styled()
def flow_1d(
    ax: Axes, times: ArrayLike, paths: ArrayLike, labels: ArrayLike | None = None, *, arrows: int = ARROWS
) -> None:
    """Plot the first coordinate of paths against time.

    Args:
        ax: Axes to plot on.
        times: Times of the states, [times].
        paths: States, [times, points, dims]; the first dimension is plotted.
        labels: Classes as whole numbers from 0, [points]. Defaults to one class.
        arrows: Number of paths with an arrowhead.
    """
    times = as_values("times", times, ["times"])
    paths = as_values("paths", paths, [len(times), "points", "dims"])
    in_time = np.stack([np.broadcast_to(times[:, None], paths.shape[:2]), paths[:, :, 0]], -1)
    _flow(ax, in_time, labels, arrows, size=26, width=1.5, alpha=0.75)
    ax.margins(0.05)
    ax.autoscale_view()
    ax.set(xlabel="$t$", ylabel="$h(t)$")


@styled()
def vector_field_1d(ax: Axes, times: ArrayLike, states: ArrayLike, slopes: ArrayLike) -> None:
    """Plot the direction field (dt, dh) of a one-dimensional ODE in the background, with arrows of equal length.

    Args:
        ax: Axes to plot on.
        times: Times of the grid, [times].
        states: States of the grid, [states].
        slopes: The values f(h, t), [times, states].
    """
    times, states = as_values("times", times, ["times"]), as_values("states", states, ["states"])
    slopes = as_values("slopes", slopes, [len(times), len(states)])
    length = np.hypot(1, slopes)
    t, h = np.meshgrid(times, states, indexing="ij")
    ax.quiver(
        *(t, h, 1 / length, slopes / length),
        angles="xy",  # directions in the units of the axes, as those of the paths
        scale_units="width",
        scale=len(times) / 0.72,  # an arrow fills three quarters of the distance to the next
        pivot="mid",
        color="#c3c9d3",
        width=0.0035,
        headwidth=4.5,
        headlength=5,
        headaxislength=4.5,
        zorder=0.5,
    )


def project_3d(paths: ArrayLike, input_dims: int = 2) -> Array:
    """Project paths of any dimension to three dimensions.

    The dimensions of the input come first and are not changed. The others are the first principal components of the
    final states in the augmented dimensions. They are not centred, so paths that start at zero still do, and the
    largest entry of each component is positive. Paths with three dimensions are not changed. Paths with fewer are
    padded with zeros.

    Args:
        paths: States, [times, points, dims].
        input_dims: Number of dimensions of the input, at most 3.

    Returns:
        The projected paths, [times, points, 3].

    Example:
        >>> import numpy as np
        >>> from anode import plots
        >>> plots.project_3d(np.zeros((10, 50, 7)), input_dims=2).shape
        (10, 50, 3)
    """
    paths = as_values("paths", paths, ["times", "points", "dims"])
    most = min(3, paths.shape[-1])
    require(0 < input_dims <= most, "input_dims", input_dims, f"a number from 1 to {most}")
    if paths.shape[-1] > 3:
        directions = _principal(paths[-1, :, input_dims:])[: 3 - input_dims]
        paths = np.concatenate([paths[..., :input_dims], paths[..., input_dims:] @ directions.T], -1)
    return np.pad(paths, ((0, 0), (0, 0), (0, 3 - paths.shape[-1])))


def _principal(points: Array) -> Array:
    """Return the principal components of points [points, dims] as rows, the largest first."""
    points = points[np.isfinite(points).all(1)]
    covariance = np.atleast_2d(np.cov(points, rowvar=False)) if len(points) > 1 else np.eye(points.shape[1])
    rows = np.linalg.eigh(covariance)[1].T[::-1]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1, keepdims=True), 1)
    return rows * np.sign(largest)  # the sign is arbitrary, but must be the same every time


def _flow(ax: Any, paths: Array, labels: ArrayLike | None, arrows: int, *, size: float = 11.0, **look: float) -> None:
    colors = colors_of(as_labels(labels, paths.shape[1]))
    lines(ax, paths, colors, **look)
    dots(ax, paths[0], colors, size, hollow=True)
    dots(ax, paths[-1], colors, size)
    arrowheads(ax, paths, colors, arrows)
