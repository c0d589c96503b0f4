"""The paper's diagrams: the architecture, the function g, and the two steps of the proof that no flow represents it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from anode.plots.inputs import Array
from anode.plots.marks import arrowheads, dots, lines
from anode.plots.shapes import Point, arrow, blob, circle, line, region, sheet, write
from anode.plots.style import CLASS_COLORS, INK, LARGE, MUTED, NORMAL, styled

BLUE, RED = CLASS_COLORS[:2]
PANEL = "#f1f3f6"
RADII = (0.5, 1.0, 1.5)
"""r1, r2 and r3 in the paper's experiments."""


@styled()
def fig02() -> Figure:
    """A neural ODE as a classifier: the flow takes inputs to features, which a linear layer takes to outputs."""
    made, ax = sheet(7.0, 3.0)
    start, end, output, middle = 0.75, 3.75, 6.2, 1.6
    _panel(ax, start, end, "ODE layer", r"$\dfrac{\mathrm{d}\mathbf{h}}{\mathrm{d}t} = \mathbf{f}(\mathbf{h}(t), t)$")
    _panel(ax, 4.35, 5.65, "linear layer", r"$\mathbf{W}\,\phi(\mathbf{x}) + \mathbf{b}$")
    colors = [BLUE] * 4 + [RED] * 4
    s = np.linspace(0, 1, 61)[:, None]
    before = np.linspace(-0.42, 0.42, 8)
    after = np.concatenate([np.linspace(-0.72, -0.36, 4), np.linspace(0.36, 0.72, 4)])
    ease = s**2 * (3 - 2 * s)
    # A bend that all lines share does not make them cross.
    height = middle + before + (after - before) * ease + 0.2 * np.sin(2 * np.pi * s) * (1 - s)
    paths = np.stack([np.broadcast_to(start + (end - start) * s, height.shape), height], -1)
    lines(ax, paths, colors, width=1.5, alpha=0.8)
    arrowheads(ax, paths, colors, len(colors))
    dots(ax, paths[0], colors, size=30, hollow=True)
    dots(ax, paths[-1], colors, size=30)
    ends = np.array([[output, middle - 0.5]] * 4 + [[output, middle + 0.5]] * 4)
    lines(ax, np.stack([paths[-1], ends]), colors, width=1.2, alpha=0.6)
    dots(ax, ends[[0, -1]], [BLUE, RED], size=60)
    for y, text, color in ((middle - 0.5, "$-1$", BLUE), (middle + 0.5, "$+1$", RED)):
        write(ax, (output + 0.36, y), text, color=color, size=LARGE + 2)
    for x, name, symbol in (
        (start, "input", r"$\mathbf{x} = \mathbf{h}(0)$"),
        (end, "features", r"$\phi(\mathbf{x}) = \mathbf{h}(T)$"),
        (output, "output", r"$\hat{y}$"),
    ):
        write(ax, (x, 0.46), name, size=NORMAL)
        write(ax, (x, 0.18), symbol, size=LARGE + 1)
    return made


@styled()
def fig04() -> Figure:
    """The function g on the plane: -1 in a disc, +1 in an annulus around it."""
    made, ax = sheet(5.75, 3.7)
    center = (1.95, 1.85)
    r1, r2, r3 = 1.15 * np.array(RADII)
    _disc_and_annulus(ax, center, r1, r2, r3)
    for radius, angle, name, beside in (
        (r1, 60, "r_1", (0.33, 88)),
        (r2, 135, "r_2", (0.85, 147)),
        (r3, 205, "r_3", (1.42, 212)),
    ):
        arrow(ax, center, _at(center, radius, angle), color=INK)
        write(ax, _at(center, *beside), f"${name}$", size=LARGE + 1)
    ax.plot(*center, "o", color=INK, markersize=4, zorder=5)
    for radius, angle, color, value, where in (
        ((r2 + r3) / 2, 42, RED, "+1", r"$r_2 \leq \Vert\mathbf{x}\Vert \leq r_3$"),
        (r1 * 0.55, -35, BLUE, "-1", r"$\Vert\mathbf{x}\Vert \leq r_1$"),
    ):
        point = _at(center, radius, angle)
        line(ax, [point, (4.1, point[1])], color=color, linewidth=1.2)
        ax.plot(*point, "o", color=color, markersize=5, zorder=5)
        write(ax, (4.2, point[1]), rf"$g(\mathbf{{x}}) = {value}$", color=color, size=LARGE + 5, ha="left")
        write(ax, (4.2, point[1] - 0.4), f"if {where}", size=LARGE + 1, ha="left")
    return made


@styled()
def fig15() -> Figure:
    """Separating a disc from the annulus around it by a hyperplane requires a map that is not a flow."""
    made, ax = sheet(7.0, 3.1)
    whole, ring, torn = (1.4, 1.75), (4.9, 1.85), (6.28, 0.95)
    _disc_and_annulus(ax, whole, 0.42, 0.82, 1.22)
    write(ax, whole, "$A$", color=BLUE, size=LARGE + 4)
    write(ax, _at(whole, 1.02, 90), "$B$", color=RED, size=LARGE + 4)
    arrow(ax, (2.85, 1.75), (3.7, 1.75), color=INK, bend=-0.2)
    write(ax, (3.27, 2.07), r"$\phi$", size=LARGE + 5)
    hole = blob(ring, 0.4, {2: (0.12, 0.3), 3: (0.05, 2.0)})
    region(ax, blob(ring, 0.84, {2: (0.09, 1.1), 3: (0.06, 1.6)}), RED, hole=hole)
    region(ax, blob(torn, 0.4, {2: (0.13, 1.0), 3: (0.07, 0.2)}), BLUE)
    write(ax, _at(ring, 0.66, 100), r"$\phi(B)$", color=RED, size=LARGE + 2)
    write(ax, torn, r"$\phi(A)$", color=BLUE, size=LARGE + 2)
    line(ax, [(5.12, 0.42), (6.5, 2.5)], linestyle=(0, (5, 3)))
    write(ax, (6.2, 2.7), "hyperplane", size=NORMAL)
    _letters(ax, {"(a)": whole[0], "(b)": 5.5})
    return made


@styled()
def fig16() -> Figure:
    """Why no flow is that map: if the boundary of a disk is above a hyperplane, its interior is too."""
    made, ax = sheet(7.0, 2.9)
    left, middle, right, size = (1.12, 1.65), (3.5, 1.65), (5.8, 1.75), 0.66
    region(ax, circle(left, 1.02), RED, hole=circle(left, 0.7), strength=0.12, width=1.0)
    _disk(ax, circle(left, 0.7), circle(left, 0.32))
    for radius, angle, text, color in (
        (0.0, 0, "$A$", BLUE),
        (0.51, 55, "$D$", INK),
        (0.86, 140, "$B$", RED),
        (0.86, -50, r"$\partial D$", RED),
    ):
        write(ax, _at(left, radius, angle), text, color=color, size=LARGE + 1)
    arrow(ax, (2.2, 1.9), (2.75, 1.9), color=INK, bend=-0.2)
    write(ax, (2.47, 2.15), r"$\phi$", size=LARGE + 4)
    boundary, inner = _bend(circle((0, 0), 1)) * size, _bend(circle((0, 0), 0.46)) * size
    _disk(ax, boundary + middle, inner + middle)
    write(ax, (3.42, 1.45), r"$\phi(A)$", color=BLUE, size=LARGE + 1)
    write(ax, (3.6, 2.4), r"$D\prime = \phi(D)$", size=LARGE + 1)
    write(ax, (4.16, 1.2), r"$\partial D\prime$", color=RED, size=LARGE + 1)
    _disk(ax, boundary + right)
    first, second = boundary[[63, 108]] + right
    inside = 0.5 * first + 0.5 * second
    line(ax, [first, second], linewidth=1.2)
    dots(ax, np.stack([first, second, inside]), [RED, RED, INK], size=34)
    for point, (x, y), name in (
        (first, (-0.2, 0.0), "x}_1"),
        (second, (0.22, -0.08), "x}_2"),
        (inside, (0.0, 0.17), "x}"),
    ):
        write(ax, (point[0] + x, point[1] + y), rf"$\mathbf{{{name}$", size=LARGE + 1)
    line(ax, [(4.75, 0.62), (6.85, 0.86)], linestyle=(0, (5, 3)))
    write(ax, (6.3, 0.5), r"$L(\mathbf{x}) = C$", size=LARGE + 1)
    write(ax, (5.0, 0.98), r"$L(\mathbf{x}) > C$", size=LARGE + 1)
    _letters(ax, {"(a)": left[0], "(b)": middle[0], "(c)": right[0]})
    return made


def _disk(ax: Axes, boundary: Array, inner: Array | None = None) -> None:
    """Draw the disk D or its image. The boundary has the colour of B, to which it belongs; the inner part that of A."""
    region(ax, boundary, MUTED, strength=0.14, edge=RED, width=2.2)
    if inner is not None:
        region(ax, inner, BLUE, width=1.0)


def _panel(ax: Axes, left: float, right: float, name: str, rule: str) -> None:
    """Draw a layer: a box with its name above and its formula below."""
    ax.add_patch(
        FancyBboxPatch(
            (left, 0.75), right - left, 1.7, boxstyle="round,pad=0,rounding_size=0.12", facecolor=PANEL, linewidth=0
        )
    )
    write(ax, ((left + right) / 2, 2.72), name, size=LARGE, weight="bold")
    write(ax, ((left + right) / 2, 0.34), rule, size=LARGE + 1)


def _disc_and_annulus(ax: Axes, center: Point, r1: float, r2: float, r3: float) -> None:
    region(ax, circle(center, r3), RED, hole=circle(center, r2))
    region(ax, circle(center, r1), BLUE)


def _at(center: Point, radius: float, angle: float) -> Point:
    """Return the point at a distance and an angle, in degrees, from another."""
    radians = np.deg2rad(angle)
    return center[0] + radius * float(np.cos(radians)), center[1] + radius * float(np.sin(radians))


def _letters(ax: Axes, letters: dict[str, float]) -> None:
    """Write the names of the parts of a figure below them."""
    for letter, x in letters.items():
        write(ax, (x, 0.18), letter, size=NORMAL, color=MUTED)


def _bend(points: Array) -> Array:
    """Apply a homeomorphism of the plane: a shear along each axis, each of which can be inverted."""
    x, y = points.T
    y = 0.8 * y + 0.75 * x**2 - 0.3
    x = 1.25 * x + 0.25 * np.sin(2.5 * y)
    return np.stack([x, y], -1)
