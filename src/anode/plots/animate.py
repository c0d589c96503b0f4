"""Animations: feature spaces during training, and points on their way through a flow."""

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
"""Width and height of a frame in inches of 100 pixels."""

COLORS, MANY_COLORS = 24, 128
"""Size of the palette: of two classes, text, and what lies between them and the ground; and of anything else.

Twice as many cost a fifth.
"""

MOST_POINTS, MOST_TRAILS = 500, 60
"""How many points, and how many of their ways, are in a frame: files grow with what moves, and eyes follow few."""

LAST = 1000
"""How many milliseconds the last frame stays."""


def gif(frames: Iterable[Figure | Picture], path: Path | str, fps: float = 10.0) -> Path:
    """Write an animation that repeats for ever and rests at its end.

    Args:
        frames: Figures, or pictures of one size as arrays [height, width, 3] of bytes.
        path: The file, which ends in ".gif".
        fps: Frames a second, at most 50: the format counts in hundredths and viewers slow down what is faster.

    Returns:
        The file. Frames in a row that are alike are one longer frame in it.
    """
    path = Path(path)
    require(path.suffix == ".gif", "path", str(path), 'a name that ends in ".gif"')
    require(0 < fps <= 50, "fps", fps, "a number above 0, at most 50")
    pictures = [Image.fromarray(_picture(frame)) for frame in frames]
    require(len(pictures) > 0, "frames", len(pictures), "at least one frame")
    sizes = {picture.size for picture in pictures}
    require(len(sizes) == 1, "frames", sorted(sizes), "frames of one size")
    palette = _palette(pictures)
    # Without dithering, which would make noise of even areas: a noise that changes and that compresses badly.
    first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    durations = [10 * round(100 / fps)] * len(rest) + [LAST]
    return write(
        path,
        lambda file: first.save(
            file, format="GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True
        ),
    )


def feature_frames(
    snapshots: Sequence[ArrayLike], labels: ArrayLike, titles: Sequence[str] | None = None
) -> Iterator[Figure]:
    """One frame a snapshot of a feature space, all with the same limits.

    Args:
        snapshots: For each frame its features, [points, 2] or [points, 3]; of many points some are drawn.
        labels: [points], classes as whole numbers from 0.
        titles: For each frame, such as "epoch 5, NFE 26".
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
    paths: ArrayLike, labels: ArrayLike, times: ArrayLike | None = None, *, turn: float = 60.0
) -> Iterator[Figure]:
    """One frame a time: the points where they are, and the way some have come.

    Args:
        paths: [times, points, 2], or [times, points, 3]; see :func:`anode.plots.flows.project_3d` for more dimensions.
            Of many points some are drawn.
        labels: [points], classes as whole numbers from 0.
        times: [times], to be written over the frames.
        turn: By how many degrees the camera goes around a space of three dimensions from the first frame to the last.
    """
    paths = as_values("paths", paths, ["times", "points", (2, 3)])
    colors = colors_of(as_labels(labels, paths.shape[1]))
    titles = [""] * len(paths) if times is None else [f"$t = {t:.2f}$" for t in as_values("times", times, [len(paths)])]
    turns = turn * np.linspace(-0.5, 0.5, len(paths))
    return (_frame(paths, colors, i, titles[i], trails=MOST_TRAILS, turn=turns[i]) for i in range(len(paths)))


@styled()
def _frame(paths: Array, colors: list[str], i: int, title: str, *, trails: int, turn: float | None = None) -> Figure:
    """Points where they are at one of the times of paths [times, points, 2 or 3], and the way some have come."""
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
    """At most so many of the numbers below count, at random but always the same, the fewer among the more."""
    return np.random.default_rng(0).permutation(count)[:most]


def _picture(frame: Figure | Picture) -> Picture:
    """A frame as an array [height, width, 3] of bytes."""
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
    """Colours that serve all frames, found on up to eight of them: one palette, so that nothing flickers.

    Ground, walls and classes are the most frequent colours and stay exact, as do the greys of lines. The rest are
    spread over the colours there are: by frequency the ground's neighbours would take all places.
    """
    some = [np.asarray(pictures[round(i)]) for i in np.linspace(0, len(pictures) - 1, min(8, len(pictures)))]
    together = Image.fromarray(np.concatenate(some))
    numbers = np.asarray(together).astype(np.int64) @ (65536, 256, 1)  # which sort much faster than rows
    distinct, counts = np.unique(numbers, return_counts=True)
    classes = np.isin([int(color[1:], 16) for color in CLASS_COLORS], distinct)
    two = classes[:2].any() and not classes[2:].any()
    size = COLORS if two else MANY_COLORS
    greys = [int(color[1:], 16) for color in (INK, MUTED, FAINT)]  # or thin lines become a tint of a class
    frequent = np.append(greys, distinct[np.argsort(-counts, kind="stable")[: size // 4]])
    exact = frequent[:, None] >> np.array([16, 8, 0]) & 255
    others = together.quantize(size - len(frequent), method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    chosen = [*exact, *np.reshape(others, (-1, 3))]
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.ravel(chosen if two else _apart(chosen)).tolist())
    return palette


def _apart(colors: Sequence[Array]) -> list[Array]:
    """Colours without those that are hard to tell from an earlier one: Pillow would take either for the other."""
    kept: list[Array] = []
    for color in colors:
        if all(np.abs(color - other).max() > 8 for other in kept):
            kept.append(color)
    return kept
