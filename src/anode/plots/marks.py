"""Lines, dots, arrowheads and axis limits for paths and points in two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import FixedLocator, MaxNLocator
from mpl_toolkits.mplot3d import proj3d  # type: ignore[import-untyped]
from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

from anode.plots.inputs import Array
from anode.plots.style import BACKGROUND, RASTERIZED_FROM

CAMERA = (18.0, -62.0)
"""Elevation and azimuth of three-dimensional plots in degrees."""

CORNERS_RASTERIZED_FROM = 10_000
"""Number of vertices from which lines are rasterized in an SVG file."""


def lines(ax: Any, paths: Array, colors: Sequence[str], width: float = 0.9, alpha: float = 0.45) -> None:
    """Draw one line per path, [times, points, 2 or 3]."""
    kind = LineCollection if paths.shape[2] == 2 else Line3DCollection
    drawn = kind(list(paths.swapaxes(0, 1)), colors=colors, linewidths=width, alpha=alpha, zorder=2)
    drawn.set_rasterized(paths[..., 0].size > CORNERS_RASTERIZED_FROM)
    ax.add_collection(drawn)


def dots(ax: Any, points: Array, colors: Sequence[str], size: float = 11.0, *, hollow: bool = False) -> None:
    """Draw one dot per point, [points, 2 or 3]."""
    look: dict[str, Any] = {"s": size, "zorder": 3 if hollow else 4, "rasterized": len(points) > RASTERIZED_FROM}
    if points.shape[1] == 3:
        look["depthshade"] = False  # shading would change the colours, which show the classes
    if hollow:
        ax.scatter(*points.T, facecolors=BACKGROUND, edgecolors=colors, linewidths=0.9, **look)
    else:
        ax.scatter(*points.T, c=colors, linewidths=0, **look)


def arrowheads(ax: Any, paths: Array, colors: Sequence[str], count: int) -> None:
    """Draw arrowheads in the middle of some of the paths, [times, points, 2 or 3]."""
    for i in far_apart(paths, count):
        tail, tip = _halfway(paths[:, i])
        ax.add_patch(_Arrow3D(tail, tip, colors[i]) if len(tip) == 3 else _Arrow(tail, tip, colors[i]))


def limits(points: Array, margin: float = 0.06) -> list[tuple[float, float]]:
    """Return the extent of points [..., dims] along each dimension, with a margin on each side."""
    extents = []
    for values in points.reshape(-1, points.shape[-1]).T:
        known = values[np.isfinite(values)]
        low, high = (known.min(), known.max()) if known.size else (-1.0, 1.0)
        room = margin * ((high - low) or 1.0)
        extents.append((float(low - room), float(high + room)))
    return extents


def frame_2d(ax: Any, points: Array) -> None:
    """Set square limits, with equal scales, that contain points [..., 2]."""
    (left, right), (bottom, top) = limits(points)
    reach = max(right - left, top - bottom) / 2
    ax.set_xlim((left + right) / 2 - reach, (left + right) / 2 + reach)
    ax.set_ylim((bottom + top) / 2 - reach, (bottom + top) / 2 + reach)
    ax.set_aspect("equal")


def frame_3d(ax: Any, points: Array, elev: float = CAMERA[0], azim: float = CAMERA[1]) -> None:
    """Set the camera, and limits that contain points [..., 3], with a separate scale per dimension."""
    extents = limits(points)
    ax.set(**dict(zip(("xlim", "ylim", "zlim"), extents, strict=True)))
    for axis, (low, high) in zip((ax.xaxis, ax.yaxis, ax.zaxis), extents, strict=True):
        ticks = MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(low, high)
        corner = 0.1 * (high - low)  # where the numbers of two axes would meet
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low + corner <= tick <= high - corner]))
    ax.set_box_aspect((1, 1, 0.85), zoom=1.15)
    ax.view_init(elev=elev, azim=azim)


def far_apart(paths: Array, count: int) -> list[int]:
    """Return the indices of up to ``count`` moving paths with distant starts, by farthest point sampling."""
    lengths = np.linalg.norm(np.diff(paths, axis=0), axis=-1).sum(0)  # NaN, and so left out, if any state is NaN
    extent = max(high - low for low, high in limits(paths, margin=0.0))
    candidates = np.flatnonzero(lengths > 0.05 * extent)
    distance = np.full(len(candidates), np.inf)
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        newest = int(distance.argmax())
        chosen.append(int(candidates[newest]))
        distance = np.minimum(distance, np.linalg.norm(paths[0, candidates] - paths[0, candidates[newest]], axis=-1))
        distance[newest] = -1
    return chosen


def _halfway(path: Array) -> tuple[Array, Array]:
    """Return a point just before the middle of a path [times, dims], by arc length, and the middle."""
    gone = np.concatenate([[0], np.linalg.norm(np.diff(path, axis=0), axis=-1).cumsum()])
    tail, tip = (
        np.array([np.interp(part * gone[-1], gone, coordinate) for coordinate in path.T]) for part in (0.48, 0.5)
    )
    return tail, tip


class _Arrow(FancyArrowPatch):
    """An arrowhead of fixed size, whatever the scales of the axes."""

    def __init__(self, tail: Array, tip: Array, color: str) -> None:
        super().__init__(
            (tail[0], tail[1]),
            (tip[0], tip[1]),
            arrowstyle="-|>,head_length=0.8,head_width=0.22",
            mutation_scale=11,
            shrinkA=0,
            shrinkB=0,
            color=color,
            linewidth=0,
            zorder=5,
        )


class _Arrow3D(_Arrow):
    """An arrowhead in three dimensions, which always lies in the plane of the image."""

    def __init__(self, tail: Array, tip: Array, color: str) -> None:
        super().__init__(tail, tip, color)
        self._ends = np.stack([tail, tip])

    def do_3d_projection(self) -> float:
        """Project the patch and return its depth. Called by matplotlib before drawing."""
        x, y, depth = proj3d.proj_transform(*self._ends.T, self.axes.M)  # type: ignore[union-attr]
        self.set_positions((x[0], y[0]), (x[1], y[1]))
        return float(min(depth))
