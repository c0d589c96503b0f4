"""Plots of feature spaces, at the end of training or during it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from anode.checks import require
from anode.plots.classes import as_labels, colors_of
from anode.plots.inputs import Array, as_values
from anode.plots.marks import frame_2d, frame_3d
from anode.plots.style import RASTERIZED_FROM, bare, figure, styled


@styled()
def scatter(ax: Any, features: ArrayLike, labels: ArrayLike | None = None, *, size: float | None = None) -> Any:
    """Plot the points of a feature space in the colours of their classes.

    Args:
        ax: Axes to plot on; three-dimensional axes for three features.
        features: Features, [points, 2] or [points, 3].
        labels: Classes as whole numbers from 0, [points]. Defaults to one class.
        size: Area of a dot in square points. By default it decreases with the number of points.

    Returns:
        The matplotlib collection. The dots are drawn in a fixed random order, so that no class hides the others.
    """
    features = as_values("features", features, ["points", 3 if getattr(ax, "name", None) == "3d" else 2])
    size = float(np.clip(4000 / len(features), 5, 18)) if size is None else size
    return _scatter(ax, features, colors_of(as_labels(labels, len(features))), size)


@styled()
def strip(
    panels: Sequence[ArrayLike],
    labels: ArrayLike | Sequence[ArrayLike] | None = None,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    *,
    shared: bool = False,
    width: float = 7.0,
) -> Figure:
    """Plot several feature spaces side by side, for example at several stages of training, and return the figure.

    Args:
        panels: Features of each panel, [points, 2] or [points, 3].
        labels: Classes as whole numbers from 0, [points]; or one such array per panel. Defaults to one class.
        titles: Title of each panel, such as "epoch 5, NFE 26". By default there is none.
        columns: Number of panels per row. By default at most four, with rows of similar length.
        shared: Whether all panels have the same limits. By default each panel is scaled to its points.
        width: Width of the figure in inches.
    """
    count = len(panels)
    require(count > 0, "panels", count, "at least one array of features")
    require(titles is None or len(titles) == count, "titles", titles, f"a title for each of the {count} panels")
    require(columns is None or columns > 0, "columns", columns, "a whole number above 0")
    tiles = [as_values("panels", panel, ["points", (2, 3)]) for panel in panels]
    columns = columns or -(-count // -(-count // 4))
    rows = -(-count // columns)
    three_d = [i for i, tile in enumerate(tiles) if tile.shape[1] == 3]
    side = width / columns
    height = (side * (0.88 if len(three_d) == count else 1.0)) + (0.2 if titles else 0.0)  # a view of space is flatter
    made = figure(width, rows * height, rows, columns, three_d=three_d)
    everything = {dims: [tile for tile in tiles if tile.shape[1] == dims] for dims in (2, 3)}
    for i, (ax, tile, own) in enumerate(zip(made.axes, tiles, _colors_of_each(labels, tiles), strict=False)):
        _scatter(ax, tile, own, float(np.clip(600 * side**2 / len(tile), 1.5, 18)))
        frame(ax, np.concatenate(everything[tile.shape[1]]) if shared else tile)
        ax.set_title(titles[i] if titles else "", size=_title_size(side), pad=4)
    for ax in made.axes[count:]:
        ax.remove()
    return made


def frame(ax: Any, points: Array) -> None:
    """Set limits that contain points [..., 2 or 3], and remove ticks, because features have no units."""
    bare(ax)
    (frame_3d if points.shape[-1] == 3 else frame_2d)(ax, points)


def _scatter(ax: Any, features: Array, colors: Sequence[str], size: float) -> Any:
    order = np.random.default_rng(0).permutation(len(features))
    look: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.8, "rasterized": len(features) > RASTERIZED_FROM}
    if features.shape[1] == 3:
        look["depthshade"] = False
    return ax.scatter(*features[order].T, c=[colors[i] for i in order], **look)


def _colors_of_each(labels: ArrayLike | Sequence[ArrayLike] | None, tiles: Sequence[Array]) -> Iterator[list[str]]:
    """Return the colours of the points of each panel, from labels for all panels or one array per panel."""
    owned: Sequence[Any] = [labels] * len(tiles)
    if isinstance(labels, list | tuple) and len(labels) and np.ndim(labels[0]) == 1:
        require(len(labels) == len(tiles), "labels", len(labels), f"labels for each of the {len(tiles)} panels")
        owned = labels
    checked = [as_labels(own, len(tile)) for own, tile in zip(owned, tiles, strict=True)]
    colors = iter(colors_of(np.concatenate(checked)))
    return (list(islice(colors, len(tile))) for tile in tiles)


def _title_size(side: float) -> float:
    """Return the text size at which "epoch 20, NFE 104" fits above a panel of this width in inches."""
    return float(np.clip(6.4 * side, 8.5, 12))
