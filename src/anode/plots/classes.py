"""Classes of points: labels, colours and legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from anode.checks import require
from anode.plots.inputs import as_array
from anode.plots.style import CLASS_COLORS, legend, legend_above, styled

Labels = NDArray[np.int64]


def as_labels(labels: ArrayLike | None, count: int, name: str = "labels") -> Labels:
    """Check the labels of ``count`` points and return them as class indices from 0.

    Args:
        labels: Whole numbers from 0, booleans, or -1 and 1, which become classes 0 and 1; [count]. ``None`` puts all
            points in class 0.
        count: Number of points.
        name: Name of the argument, for error messages.
    """
    array = np.zeros(count, dtype=np.int64) if labels is None else as_array(labels)
    require(array.shape == (count,), name, array.shape, f"an array of shape [{count}], one label per point")
    require(array.dtype.kind in "biuf", name, array.dtype.name, "whole numbers from 0; number the classes first")
    array = array.astype(np.float64)
    if (array == -1).any() and (np.abs(array) == 1).all():
        array = (array + 1) / 2
    others = np.unique(array[~(np.isfinite(array) & (array >= 0) & (array == np.floor(array)))])
    require(others.size == 0, name, others[:3].tolist(), "whole numbers from 0, or -1 and 1")
    return array.astype(np.int64)


def colors_of(labels: Labels) -> list[str]:
    """Return the colour of each label.

    Up to ten classes have the colours of :data:`anode.plots.CLASS_COLORS`. More classes have evenly spaced colours of
    viridis, where neighbouring classes look similar.
    """
    last = int(labels.max(initial=0))
    if last < len(CLASS_COLORS):
        return [CLASS_COLORS[label] for label in labels]
    return [to_hex(color) for color in mpl.colormaps["viridis"](labels / last)]


@styled()
def class_legend(where: Axes | Figure, labels: ArrayLike, names: Sequence[str] | None = None, **options: Any) -> None:
    """Add a legend of the classes.

    Args:
        where: Axes, or a figure to place the legend above all of its axes.
        labels: Labels of the points that were drawn, [points]. If there are more than ten classes, the legend shows ten
            of them, evenly spaced.
        names: Names of the classes. Defaults to "class 0", "class 1" and so on.
        options: Further arguments of matplotlib's ``legend``.

    Example:
        >>> from anode import plots
        >>> figure = plots.figure(4, 4)
        >>> ax = figure.axes[0]
        >>> _ = plots.scatter(ax, [[0, 0], [1, 0], [0, 1]], [0, 1, 2])
        >>> plots.class_legend(ax, [0, 1, 2], ["cat", "dog", "owl"])
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['cat', 'dog', 'owl']
    """
    classes = np.unique(as_labels(labels, as_array(labels).size))
    takes = f"a name for each class, at least {classes.max(initial=-1) + 1}"
    require(names is None or len(names) > classes.max(initial=-1), "names", names, takes)
    shown = np.linspace(0, len(classes) - 1, min(len(classes), len(CLASS_COLORS))).round().astype(int)
    colors = colors_of(classes)
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=6, color=colors[i], label=_name(classes[i], names))
        for i in shown
    ]
    (legend_above if isinstance(where, Figure) else legend)(where, handles=handles, **options)  # type: ignore[arg-type]


def _name(label: int, names: Sequence[str] | None) -> str:
    return f"class {label}" if names is None else names[label]
