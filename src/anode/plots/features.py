"""Feature spaces: where a model has put the points, at the end or while it was trained."""

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
def scatter(ax: Any, features: ArrayLike, labels: ArrayLike, *, size: float | None = None) -> Any:
    """Draw points of a feature space in the colours of their labels.

    Args:
        ax: Where; three-dimensional axes for three features.
        features: [points, 2] or [points, 3].
        labels: [points], classes as whole numbers from 0.
        size: Area of a dot in square points; by default less for more points.

    Returns:
        The dots, in a random but always the same order, so that no class lies on top of the others.
    """
    features = as_values("features", features, ["points", 3 if getattr(ax, "name", None) == "3d" else 2])
    size = float(np.clip(4000 / len(features), 5, 18)) if size is None else size
    return _scatter(ax, features, colors_of(as_labels(labels, len(features))), size)


@styled()
def strip(
    panels: Sequence[ArrayLike],
    labels: ArrayLike | Sequence[ArrayLike],
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    *,
    shared: bool = False,
    width: float = 7.0,
) -> Figure:
    """Tiles of one feature space after the other, such as it was at moments of training.

    Args:
        panels: For each tile its features, [points, 2] or [points, 3].
        labels: [points], classes as whole numbers from 0; or such an array for each tile.
        titles: For each tile, such as "epoch 5, NFE 26".
        columns: Tiles in a row; by default as even rows as there can be of at most four.
        shared: Whether all tiles have the same limits. If not, each shows all of its points as large as it can.
        width: Of the figure, in inches.
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
    """Limits that hold points [..., 2 or 3], without ticks: the coordinates of features mean nothing by themselves."""
    bare(ax)
    (frame_3d if points.shape[-1] == 3 else frame_2d)(ax, points)


def _scatter(ax: Any, features: Array, colors: Sequence[str], size: float) -> Any:
    order = np.random.default_rng(0).permutation(len(features))
    look: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.8, "rasterized": len(features) > RASTERIZED_FROM}
    if features.shape[1] == 3:
        look["depthshade"] = False
    return ax.scatter(*features[order].T, c=[colors[i] for i in order], **look)


def _colors_of_each(labels: ArrayLike | Sequence[ArrayLike], tiles: Sequence[Array]) -> Iterator[list[str]]:
    """The colours of the points of each tile, from labels for all of them or for each; the same for a class in all."""
    owned: Sequence[Any] = [labels] * len(tiles)
    if isinstance(labels, list | tuple) and len(labels) and np.ndim(labels[0]) == 1:
        require(len(labels) == len(tiles), "labels", len(labels), f"labels for each of the {len(tiles)} panels")
        owned = labels
    checked = [as_labels(own, len(tile)) for own, tile in zip(owned, tiles, strict=True)]
    colors = iter(colors_of(np.concatenate(checked)))
    return (list(islice(colors, len(tile))) for tile in tiles)


def _title_size(side: float) -> float:
    """A size of text at which "epoch 20, NFE 104" fits over a tile so many inches wide."""
    return float(np.clip(6.4 * side, 8.5, 12))
