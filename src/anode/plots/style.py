"""The style of all figures, and how they are saved.

Figures are plain ``matplotlib.figure.Figure`` objects. Without pyplot there is nothing to close, and no display is
needed. matplotlib's settings are global and are read whenever something is drawn. Every function that draws is
therefore :func:`styled`: it changes the settings under a lock and restores them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from PIL import Image

from anode.checks import lookup, require
from anode.files import write, write_text

INK, MUTED, FAINT, BACKGROUND = "#22262e", "#6a7180", "#dcdfe5", "#ffffff"
"""The colours of text, secondary text, grid lines and the background."""

CLASS_COLORS = (
    *("#2f6db5", "#d9482f", "#efcd10", "#301090", "#80d0e0"),  # blue, red, yellow, indigo, cyan
    *("#903060", "#c080a0", "#504010", "#a0b060", "#40a0f0"),  # plum, pink, olive, sage, sky
)
"""The colours of classes 0 to 9, which are distinguishable with any kind of colour vision."""

MODEL_COLORS: Mapping[str, str] = MappingProxyType({"NODE": "#e08e0b", "ANODE": "#0a9a8b", "ResNet": "#4b4a6b"})
"""The colours of the models. They differ from the colours of classes, and in lightness."""

DIVERGING = LinearSegmentedColormap.from_list(
    "anode", [CLASS_COLORS[0], "#8fb4dc", "#f7f6f4", "#f0a897", CLASS_COLORS[1]], N=257
)
"""A colour map from class 0 to class 1, whose middle is as light as the background."""

SMALL, NORMAL, LARGE = 10.5, 12.0, 13.0
"""Sizes of text in points, for figures 7 inches wide."""

STYLE: Mapping[str, Any] = MappingProxyType(
    {
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],  # the first comes with matplotlib
        "font.size": NORMAL,
        "mathtext.fontset": "stix",  # has the metrics of Times, which most browsers have
        "axes.titlesize": LARGE,
        "axes.labelsize": NORMAL,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "text.color": INK,
        "grid.color": FAINT,
        "grid.linewidth": 0.7,
        "svg.fonttype": "none",  # keeps text searchable and accessible
        "svg.hashsalt": "anode",  # without it, the ids of elements are random
        "svg.image_inline": True,
    }
)
"""matplotlib's settings while figures are drawn and saved."""

RASTERIZED_FROM = 300
"""Number of points from which a scatter plot is rasterized in an SVG file; fewer are smaller and sharper as shapes."""

DPI = 130
"""Pixels per inch of saved figures."""

_SETTINGS_LOCK = RLock()


@contextmanager
def styled() -> Iterator[None]:
    """Apply :data:`STYLE` in a block, or to a function as ``@styled()``, and restore the settings afterwards."""
    with _SETTINGS_LOCK, mpl.rc_context(dict(STYLE)):  # type: ignore[arg-type]  # wants literals
        yield


@styled()
def figure(
    width: float = 7.0,
    height: float = 4.0,
    rows: int = 1,
    columns: int = 1,
    *,
    three_d: Collection[int] = (),
    width_ratios: Sequence[float] | None = None,
    height_ratios: Sequence[float] | None = None,
) -> Figure:
    """Return a figure with a grid of axes in the style of anode, row by row in ``figure.axes``.

    Args:
        width, height: Size in inches. Text is sized for a width of 7.
        rows, columns: Number of rows and columns of axes. With 0 rows the figure is empty; style axes that you add with
            :func:`clean`.
        three_d: Indices of the axes that are three-dimensional.
        width_ratios, height_ratios: Relative sizes of columns and rows. By default all are equal.

    Example:
        >>> from anode import plots
        >>> left, right = plots.figure(7, 3, columns=2, three_d=[1]).axes
        >>> right.name
        '3d'
    """
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)
    made = Figure(figsize=(width, height), dpi=100, layout=layout, facecolor=BACKGROUND)
    if rows * columns == 0:
        return made
    grid = made.add_gridspec(rows, columns, width_ratios=width_ratios, height_ratios=height_ratios)
    for i in range(rows * columns):
        clean(made.add_subplot(grid[divmod(i, columns)], projection="3d" if i in three_d else None))
    return made


@styled()
def clean(ax: Axes) -> Axes:
    """Give any axes the style of :func:`figure`, and return them.

    Args:
        ax: The axes.
    """
    ax.set_axisbelow(True)
    ax.title.set(size=LARGE, color=INK)
    for axis in _axis_lines(ax):
        axis.label.set(size=NORMAL, color=INK)
        axis.set_tick_params(labelsize=SMALL, length=3.5, width=0.8, color=MUTED, labelcolor=INK)
    if ax.name == "3d":
        _clean_3d(ax)
        return ax
    for side, spine in ax.spines.items():
        spine.set(visible=side in ("left", "bottom"), edgecolor=MUTED, linewidth=0.8)
    return ax


def _axis_lines(ax: Any) -> list[Any]:
    """Return the x axis, the y axis and, for three-dimensional axes, the z axis."""
    return [ax.xaxis, ax.yaxis, *([ax.zaxis] if ax.name == "3d" else [])]


def _clean_3d(ax: Any) -> None:
    """Style three-dimensional axes with light panes and faint lines."""
    for axis in _axis_lines(ax):
        axis.set_pane_color((0.97, 0.97, 0.98, 1.0))
        axis.line.set(color=FAINT, linewidth=0.8)
        axis.set_tick_params(labelsize=SMALL - 1.5, pad=-2, length=0)


def bare(ax: Axes) -> Axes:
    """Remove ticks and tick labels, for a space whose coordinates have no meaning, and return the axes.

    Args:
        ax: The axes.
    """
    for axis in _axis_lines(ax):
        axis.set_ticklabels([])
        axis.set_tick_params(length=0, color=FAINT)  # three-dimensional ticks keep their length
    if ax.name != "3d":
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set(visible=True, edgecolor=FAINT, linewidth=1.0)
    return ax


def grid(ax: Axes) -> Axes:
    """Draw faint horizontal grid lines, and return the axes.

    Args:
        ax: The axes.
    """
    ax.grid(axis="y", color=FAINT, linewidth=0.8)
    return ax


def whole_ticks(axis: Axis, most: int = 6) -> None:
    """Put ticks at whole numbers only, for epochs and counts.

    Args:
        axis: ``ax.xaxis`` or ``ax.yaxis``.
        most: Maximum number of intervals between ticks.
    """
    axis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


@styled()
def legend(ax: Axes, **options: Any) -> None:
    """Add a legend without an outline, on a nearly opaque background.

    Args:
        ax: The axes.
        options: Further arguments of matplotlib's ``legend``.
    """
    settings = {
        "framealpha": 0.75,
        "edgecolor": "none",
        "fontsize": SMALL + 0.5,
        "labelcolor": INK,
        "handlelength": 1.4,
        "labelspacing": 0.3,
        "borderaxespad": 0.3,
    } | options
    ax.legend(**settings)


@styled()
def legend_above(figure: Figure, **options: Any) -> None:
    """Add a legend above all axes of a figure, with its entries side by side, in several rows if one is too wide."""
    labels = options.get("labels") or [handle.get_label() for handle in options.get("handles", ())]
    inches = [0.6 + 0.09 * len(str(label)) for label in labels]  # about how many an entry takes
    in_one_row = sum(inches) <= figure.get_figwidth()
    settings = {
        "loc": "outside upper center",
        "ncols": len(labels) if in_one_row else max(1, int(figure.get_figwidth() / max(inches))),
        "frameon": False,
        "fontsize": SMALL + 0.5,
        "labelcolor": INK,
        "handlelength": 1.4,
        "columnspacing": 1.6,
    } | options
    figure.legend(**settings)


def shared_legend(figure: Figure) -> None:
    """Replace the legends of all axes by one above the figure, for axes with the same labels.

    Args:
        figure: The figure, whose axes have labelled lines.
    """
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        entries = {**dict(zip(labels, handles, strict=True)), **entries}
        own = ax.get_legend()
        if own is not None:
            own.remove()
    legend_above(figure, handles=list(entries.values()), labels=list(entries))


def shades(count: int, model: str = "ANODE") -> list[str]:
    """Return colours from a light to a dark tone of a model's colour, for example for increasing augmentation.

    Args:
        count: Number of colours.
        model: A name in :data:`anode.plots.MODEL_COLORS`.

    Example:
        >>> from anode import plots
        >>> len(set(plots.shades(4)))
        4
    """
    require(count > 0, "count", count, "a whole number above 0")
    color = lookup("model", model, dict(MODEL_COLORS))
    tones = LinearSegmentedColormap.from_list(model, ["#e9f0ef", color, "#101418"])
    return [to_hex(tones(tone)) for tone in np.linspace(0.25, 0.8, count)]


@styled()
def save(figure: Figure, path: Path | str, formats: Sequence[str] | None = None) -> list[Path]:
    """Save a figure to files. The same figure gives the same bytes. Saving fixes the layout of the figure.

    Args:
        figure: The figure.
        path: Path of a file that ends in .png, .svg or .pdf; or of all files, without the suffix of a picture.
        formats: Formats to write, a list of "png", "svg" and "pdf". Defaults to the suffix of ``path``, or to PNG and
            SVG if it has none.

    Returns:
        The paths of the files.
    """
    path = Path(path)
    kind = path.suffix[1:].lower()
    named = kind in _WRITERS
    if kind in FigureCanvasBase.filetypes:  # a name such as "flow.v2" has no suffix
        check_picture(path, "path")
    if formats is None:
        formats = [kind] if named else ["png", "svg"]
    require(not isinstance(formats, str), "formats", formats, f"a list, such as [{formats!r}]")
    for name in formats:
        lookup("formats", name, _WRITERS)
    stem = path.stem if named else path.name
    _settle(figure)
    return [_WRITERS[name](figure, path.with_name(f"{stem}.{name}")) for name in formats]


def check_picture(path: Path, name: str = "out") -> None:
    """Raise ``ValueError`` unless a figure can be saved under this path, the argument of this name."""
    require(path.suffix[1:] in _WRITERS, name, str(path), "a name that ends in .png, .svg or .pdf")


def _write_png(figure: Figure, path: Path) -> Path:
    # Without this, matplotlib writes its name and version.
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    # 256 colours are enough for a plot, and reduce the size to a third.
    small = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.FLOYDSTEINBERG)
    return write(path, lambda file: small.save(file, format="PNG", optimize=True))


def _write_svg(figure: Figure, path: Path) -> Path:
    text = io.StringIO()
    figure.savefig(text, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    # Formulas name one font that few systems have, without a fallback.
    return write_text(
        path, re.sub(r"(font-family: 'STIX\w*')", r"\1, 'Times New Roman', Times, serif", text.getvalue())
    )


def _write_pdf(figure: Figure, path: Path) -> Path:
    return write(path, lambda file: figure.savefig(file, dpi=DPI, metadata={"CreationDate": None}))


_WRITERS = {"png": _write_png, "svg": _write_svg, "pdf": _write_pdf}


def _settle(figure: Figure) -> None:
    """Fix the layout, because matplotlib starts from the last layout and changes it a little with every drawing."""
    engine = figure.get_layout_engine()
    if engine is not None:
        for _ in range(4):
            engine.execute(figure)
        figure.set_layout_engine("none")
