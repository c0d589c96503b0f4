"""Trajectories: how a flow carries points from the input to the features.

Paths are arrays [times, points, dims]. A hollow dot is where a path starts, a full one where it ends, and some carry an
arrowhead halfway.
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
"""How many paths carry an arrowhead: more would hide the lines."""


@styled()
def flow_2d(ax: Axes, paths: ArrayLike, labels: ArrayLike, *, arrows: int = ARROWS) -> None:
    """Draw paths in the plane, in equal units.

    Args:
        ax: Where.
        paths: [times, points, 2].
        labels: [points], classes as whole numbers from 0.
        arrows: How many paths carry an arrowhead.
    """
    paths = as_values("paths", paths, ["times", "points", 2])
    _flow(ax, paths, labels, arrows)
    frame_2d(ax, paths)


@styled()
def flow_3d(
    ax: Any,
    paths: ArrayLike,
    labels: ArrayLike,
    elev: float = CAMERA[0],
    azim: float = CAMERA[1],
    *,
    arrows: int = ARROWS,
) -> None:
    """Draw paths in space.

    Args:
        ax: Where, three-dimensional axes.
        paths: [times, points, 3]; see :func:`project_3d` for more dimensions.
        labels: [points], classes as whole numbers from 0.
        elev, azim: Where the camera stands, in degrees above the ground and around the vertical axis.
        arrows: How many paths carry an arrowhead.
    """
    require(getattr(ax, "name", None) == "3d", "ax", ax, "three-dimensional axes")
    paths = as_values("paths", paths, ["times", "points", 3])
    _flow(ax, paths, labels, arrows)
    frame_3d(ax, paths, elev, azim)


@styled()
def flow_1d(ax: Axes, times: ArrayLike, paths: ArrayLike, labels: ArrayLike, *, arrows: int = ARROWS) -> None:
    """Draw the first coordinate of paths against time.

    Args:
        ax: Where.
        times: [times].
        paths: [times, points, dims], of which the first dimension is drawn.
        labels: [points], classes as whole numbers from 0.
        arrows: How many paths carry an arrowhead.
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
    """Draw the direction (dt, dh) of a field on the line, in the background, all arrows of one length.

    Args:
        ax: Where.
        times: [times].
        states: [states].
        slopes: f(h, t), [times, states].
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
    """Three coordinates of states that may have more.

    The input's dimensions come first and stay as they are. The rest of the three are the directions among the augmented
    dimensions in which the ends of the paths vary most: their principal components. Nothing is centred, so paths that
    start with zeros there still do, and each direction's largest entry is positive. States of three dimensions stay as
    they are; those with fewer get zeros.

    Args:
        paths: [times, points, dims].
        input_dims: How many of the dimensions are the input's, at most 3.

    Returns:
        [times, points, 3].

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
    """The directions in which points [points, dims] vary, most first, as rows."""
    points = points[np.isfinite(points).all(1)]
    covariance = np.atleast_2d(np.cov(points, rowvar=False)) if len(points) > 1 else np.eye(points.shape[1])
    rows = np.linalg.eigh(covariance)[1].T[::-1]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1, keepdims=True), 1)
    return rows * np.sign(largest)  # either sign would do, but it has to be the same one every time


def _flow(ax: Any, paths: Array, labels: ArrayLike, arrows: int, *, size: float = 11.0, **look: float) -> None:
    colors = colors_of(as_labels(labels, paths.shape[1]))
    lines(ax, paths, colors, **look)
    dots(ax, paths[0], colors, size, hollow=True)
    dots(ax, paths[-1], colors, size)
    arrowheads(ax, paths, colors, arrows)
