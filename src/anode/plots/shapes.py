"""The parts of diagrams: an empty figure measured in inches, and regions with smooth outlines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch
from matplotlib.path import Path

from anode.plots.inputs import Array
from anode.plots.style import INK, LARGE, MUTED, figure

Point = tuple[float, float]


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure whose coordinates are inches from its lower left corner."""
    made = figure(width, height)
    (ax,) = made.axes
    made.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set(xlim=(0, width), ylim=(0, height))
    return made, ax


def circle(center: Point, radius: float) -> Array:
    """Return a circle as a polygon with many vertices, [vertices, 2]."""
    return blob(center, radius, {})


def blob(center: Point, radius: float, waves: Mapping[int, Point]) -> Array:
    """Return a smooth closed curve around a centre, [vertices, 2].

    Args:
        center: The centre.
        radius: Mean distance from the centre.
        waves: Waves on the curve by their number per turn: amplitude relative to the radius, and the angle of a crest.
    """
    angles = np.linspace(0, 2 * np.pi, 121)
    distance = np.full_like(angles, radius)
    for k, (high, at) in waves.items():
        distance += radius * high * np.cos(k * (angles - at))
    return np.stack([np.cos(angles), np.sin(angles)], -1) * distance[:, None] + center


def region(
    ax: Axes,
    outline: Array,
    color: str,
    *,
    hole: Array | None = None,
    strength: float = 0.2,
    edge: str | None = None,
    width: float = 1.6,
) -> None:
    """Fill the inside of a curve, except a hole, with a tint of a colour, and draw its edges."""
    edges = [outline] if hole is None else [outline, hole[::-1]]  # opposite orientation, so that the hole is not filled
    path = Path.make_compound_path(*(Path(edge, closed=True) for edge in edges))
    ax.add_patch(PathPatch(path, facecolor=color, alpha=strength, linewidth=0, zorder=2))
    ax.add_patch(PathPatch(path, fill=False, edgecolor=edge or color, linewidth=width, zorder=2))


def write(ax: Axes, at: Point, text: str, *, size: float = LARGE, color: str = INK, **options: Any) -> None:
    """Write text centred at a point."""
    settings: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6} | options
    ax.text(*at, text, size=size, color=color, **settings)


def arrow(ax: Axes, start: Point, end: Point, *, color: str = MUTED, bend: float = 0.0) -> None:
    """Draw an arrow from one point to another."""
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>,head_length=0.5,head_width=0.22",
            connectionstyle=f"arc3,rad={bend}",
            mutation_scale=12,
            shrinkA=0,
            shrinkB=0,
            color=color,
            linewidth=1.3,
            zorder=4,
        )
    )


def line(ax: Axes, points: Sequence[Point] | Array, *, color: str = INK, **options: Any) -> None:
    """Draw a line through points."""
    settings: dict[str, Any] = {"linewidth": 1.5, "solid_capstyle": "round", "zorder": 3} | options
    x, y = np.asarray(points, dtype=np.float64).T
    ax.plot(x, y, color=color, **settings)
