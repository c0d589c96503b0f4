"""Animations of feature spaces during training, and of points moving through a flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from anode.checks import require
from anode.files import write
from anode.plots.classes import as_labels, colors_of
from anode.plots.features import frame
from anode.plots.inputs import Array, as_values
from anode.plots.marks import CAMERA, dots, lines
from anode.plots.style import CLASS_COLORS, FAINT, INK, MUTED, figure, styled

Picture = NDArray[np.uint8]

SIZE = 4.8
"""Width and height of a frame in inches, at 100 pixels per inch."""

COLORS, MANY_COLORS = 24, 128
"""Palette size for two classes with text and background, and for anything else. Twice as many add a fifth to a file."""

MOST_POINTS, MOST_TRAILS = 500, 60
"""Maximum number of points and of trails per frame, to keep files small and frames readable."""

LAST = 1000
"""Duration of the last frame in milliseconds."""


def gif(frames: Iterable[Figure | Picture], path: Path | str, fps: float = 10.0) -> Path:
    """Write an animation that repeats forever and pauses at its end.

    Args:
        frames: Figures, or images of the same size as ``uint8`` arrays [height, width, 3].
        path: Path of the file, which ends in ".gif".
        fps: Frames per second, at most 50, because viewers slow down faster animations.

    Returns:
        The path of the file. Equal consecutive frames are merged into one longer frame.
    """
    path = Path(path)
    require(path.suffix == ".gif", "path", str(path), 'a name that ends in ".gif"')
    require(0 < fps <= 50, "fps", fps, "a number above 0, at most 50")
    pictures = [Image.fromarray(_picture(frame)) for frame in frames]
    require(len(pictures) > 0, "frames", len(pictures), "at least one frame")
    sizes = {picture.size for picture in pictures}
    require(len(sizes) == 1, "frames", sorted(sizes), "frames of one size")
    palette = _palette(pictures)
    # No dithering: it would turn even areas into noise that flickers and compresses badly.
    first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    durations = [10 * round(100 / fps)] * len(rest) + [LAST]
    return write(
        path,
        lambda file: first.save(
            file, format="GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True
        ),
    )


def feature_frames(
    snapshots: Sequence[ArrayLike], labels: ArrayLike | None = None, titles: Sequence[str] | None = None
) -> Iterator[Figure]:
    """Return one frame per snapshot of a feature space, all with the same limits.

    Args:
        snapshots: Features of each frame, [points, 2] or [points, 3]. Only some of many points are drawn.
        labels: Classes as whole numbers from 0, [points]. Defaults to one class.
        titles: Title of each frame, such as "epoch 5, NFE 26". By default there is none.
    """
    count = len(snapshots)
    require(count > 0, "snapshots", count, "at least one array of features")
    require(titles is None or len(titles) == count, "titles", titles, f"a title for each of the {count} snapshots")
    arrays = [as_values("snapshots", features, ["points", (2, 3)]) for features in snapshots]
    shapes = sorted({features.shape for features in arrays})
    require(len(shapes) == 1, "snapshots", shapes, "arrays of one shape")
    everything, colors = np.stack(arrays), colors_of(as_labels(labels, shapes[0][0]))
    return (_frame(everything, colors, i, titles[i] if titles else "", trails=0) for i in range(count))


def trajectory_frames(
    paths: ArrayLike, labels: ArrayLike | None = None, times: ArrayLike | None = None, *, turn: float = 60.0
) -> Iterator[Figure]:
    """Return one frame per time: the points at that time, and the trails of some of them.

    Args:
        paths: States, [times, points, 2] or [times, points, 3]; see :func:`anode.plots.flows.project_3d` for more
            dimensions. Only some of many points are drawn.
        labels: Classes as whole numbers from 0, [points]. Defaults to one class.
        times: Times to write above the frames, [times]. By default there are none.
        turn: Degrees by which the camera turns around three-dimensional paths, from the first frame to the last.
    """
    paths = as_values("paths", paths, ["times", "points", (2, 3)])
    colors = colors_of(as_labels(labels, paths.shape[1]))
    titles = [""] * len(paths) if times is None else [f"$t = {t:.2f}$" for t in as_values("times", times, [len(paths)])]
    turns = turn * np.linspace(-0.5, 0.5, len(paths))
    return (_frame(paths, colors, i, titles[i], trails=MOST_TRAILS, turn=turns[i]) for i in range(len(paths)))


@styled()
def _frame(paths: Array, colors: list[str], i: int, title: str, *, trails: int, turn: float | None = None) -> Figure:
    """Draw the points of paths [times, points, 2 or 3] at time i, and the trails of some of them."""
    dims = paths.shape[2]
    made = figure(SIZE, SIZE, three_d=[0] if dims == 3 else [])
    ax: Any = made.axes[0]
    some, followed = _some(len(colors), MOST_POINTS), _some(len(colors), trails)
    lines(ax, paths[: i + 1, followed], [colors[j] for j in followed])
    dots(ax, paths[i, some], [colors[j] for j in some], size=16)
    frame(ax, paths)
    if dims == 3 and turn is not None:
        ax.view_init(CAMERA[0], CAMERA[1] + turn)
    ax.set_title(title)
    return made


def _some(count: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` of the numbers below ``count``, in a fixed random order."""
    return np.random.default_rng(0).permutation(count)[:most]


def _picture(frame: Figure | Picture) -> Picture:
    """Return a frame as a ``uint8`` array [height, width, 3]."""
    if isinstance(frame, Figure):
        canvas = FigureCanvasAgg(frame)
        with styled():
            canvas.draw()  # type: ignore[no-untyped-call]
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
    array = np.asarray(frame)
    right = array.ndim == 3 and array.shape[-1] == 3 and array.dtype == np.uint8
    require(right, "frames", (array.dtype.name, array.shape), "figures, or arrays of uint8 [height, width, 3]")
    return array


def _palette(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return one palette for all frames, so that nothing flickers, computed from up to eight of them.

    The most frequent colours (background, panes and classes) and the greys of lines are exact. The others are spread
    over all colours: chosen by frequency, they would all be shades of the background.
    """
    some = [np.asarray(pictures[round(i)]) for i in np.linspace(0, len(pictures) - 1, min(8, len(pictures)))]
    together = Image.fromarray(np.concatenate(some))
    numbers = np.asarray(together).astype(np.int64) @ (65536, 256, 1)  # numbers sort much faster than rows
    distinct, counts = np.unique(numbers, return_counts=True)
    classes = np.isin([int(color[1:], 16) for color in CLASS_COLORS], distinct)
    two = classes[:2].any() and not classes[2:].any()
    size = COLORS if two else MANY_COLORS
    greys = [int(color[1:], 16) for color in (INK, MUTED, FAINT)]  # otherwise thin lines would get a class's tint
    frequent = np.append(greys, distinct[np.argsort(-counts, kind="stable")[: size // 4]])
    exact = frequent[:, None] >> np.array([16, 8, 0]) & 255
    others = together.quantize(size - len(frequent), method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    chosen = [*exact, *np.reshape(others, (-1, 3))]
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.ravel(chosen if two else _apart(chosen)).tolist())
    return palette


def _apart(colors: Sequence[Array]) -> list[Array]:
    """Drop colours that are too similar to an earlier one, because Pillow would confuse them."""
    kept: list[Array] = []
    for color in colors:
        if all(np.abs(color - other).max() > 8 for other in kept):
            kept.append(color)
    return kept
