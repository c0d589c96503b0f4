"""Small datasets of points, drawn from a seed: those of the augmented neural ODEs paper, and common ones in the plane.

Each function has its own random generator, in float64, and leaves torch's global generator alone. Points labelled -1
come first, then those labelled +1. Shuffle them before you take minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anode.checks import as_seed, describe, finite_rows, lookup, nearest, number, require, whole_number

FULL_TURN = 2 * math.pi


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Points and their targets.

    Attributes:
        name: Name of the dataset.
        x: The points, of shape [n, d].
        y: Their targets, of shape [n, 1]: -1 or +1 for two classes, the value itself for the maps in one dimension.
    """

    name: str
    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        for name, value in (("x", self.x), ("y", self.y)):
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                raise TypeError(f"{name}: takes a tensor of floating point values, got {describe(value)}")
        require(self.x.ndim == 2 and self.x.numel() > 0, "x", self.x, "at least one point, of shape [n, d]")
        require(self.y.shape == (len(self.x), 1), "y", self.y, f"a target for each point, of shape [{len(self.x)}, 1]")
        finite_rows("x", self.x)
        finite_rows("y", self.y)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} points, dim={self.dim})"

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dim(self) -> int:
        """Number of coordinates of a point."""
        return self.x.shape[1]

    @property
    def labels(self) -> Tensor:
        """The classes as int64 of shape [n]: 0 where y < 0 and 1 where y > 0."""
        zeros = int((self.y == 0).sum())
        if zeros:
            raise ValueError(f"labels: takes targets below or above 0, got 0 in {zeros} of {len(self)} rows")
        return (self.y[:, 0] > 0).long()

    def numpy(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Points as float32 of shape [n, d], in the memory of ``x`` where possible, and :attr:`labels`, not targets."""
        return self.x.float().numpy(force=True), self.labels.numpy(force=True)

    def holdout(self, slices: Sequence[tuple[float, float]]) -> tuple[Dataset, Dataset]:
        """Hold out slices of the plane, as in the paper's test of generalization.

        Args:
            slices: Angles ``(start, end)`` with 0 <= start < end <= 2π, see :func:`slices`. A slice contains its start
                but not its end. The angle of a point is that of its first two coordinates.

        Returns:
            The points outside of all slices, and those inside of any.
        """
        require(self.dim >= 2, "holdout", self.x, "points of at least 2 dimensions")
        require(isinstance(slices, Sequence), "slices", slices, "a sequence of (start, end)")
        for pair in slices:
            valid = _are_numbers(pair, 2) and 0 <= pair[0] < pair[1] <= FULL_TURN
            require(valid, "slices", pair, "pairs of angles with 0 <= start < end <= 2π")
        angle = _angles(self.x)
        inside = torch.zeros_like(angle, dtype=torch.bool)
        for start, end in slices:
            inside |= (start <= angle) & (angle < end)
        some = 0 < int(inside.sum()) < len(self)
        require(some, "slices", slices, "slices that contain some of the points but not all")
        return self._rows(~inside), self._rows(inside)

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split at random into a fraction of the points and the rest, both in random order."""
        size = round(fraction * len(self)) if isinstance(fraction, float) and 0 < fraction < 1 else 0
        takes = f"a number between 0 and 1 that leaves some of the {len(self)} points on either side"
        require(0 < size < len(self), "fraction", fraction, takes)
        generator = _generator(seed)
        order = torch.randperm(len(self), generator=generator, device=generator.device).to(self.x.device)
        return self._rows(order[:size]), self._rows(order[size:])

    def _rows(self, index: Tensor) -> Dataset:
        """Return the points that a mask or indices select."""
        return Dataset(self.name, self.x[index], self.y[index])


def g_1d() -> Dataset:
    """The map of -1 to 1 and 1 to -1, which no flow on a line has: trajectories would have to cross."""
    x = _signs(1, 1)
    return _dataset("g_1d", x, -x)


def identity_1d() -> Dataset:
    """The map of -1 and 1 to themselves, which is easy for a flow."""
    x = _signs(1, 1)
    return _dataset("identity_1d", x, x)


def g(
    dim: int = 2,
    *,
    inner: int = 1000,
    outer: int = 2000,
    radii: tuple[float, float, float] = (0.5, 1.0, 1.5),
    seed: int = 0,
) -> Dataset:
    """A ball labelled -1 within a shell labelled +1, whose points no flow on the same space makes linearly separable.

    Args:
        dim: Number of dimensions.
        inner: Number of points in the ball.
        outer: Number of points in the shell.
        radii: Radius of the ball, and inner and outer radius of the shell. Both are filled uniformly by volume.
        seed: Random seed.

    Example:
        >>> from anode.data import toy
        >>> data = toy.g(3, inner=100, outer=200)
        >>> data
        Dataset('g', 300 points, dim=3)
        >>> bool((data.x[data.labels == 0].norm(dim=1) < 0.51).all())
        True
    """
    given = {"dim": dim, "inner": inner, "outer": outer}
    dim, inner, outer = (number(name, count, whole=True) for name, count in given.items())
    ordered = _are_numbers(radii, 3) and 0 < radii[0] <= radii[1] < radii[2] < math.inf
    require(ordered, "radii", radii, "three finite radii in order, 0 < r1 <= r2 < r3")
    generator = _generator(seed)
    ball = _shell(inner, dim, 0.0, radii[0], generator)
    shell = _shell(outer, dim, radii[1], radii[2], generator)
    return _dataset("g", torch.cat([ball, shell]), _signs(inner, outer))


def separable(dim: int = 2, *, points: int = 3000, shift: float = 1.4, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Two parallel sine curves (surfaces in more dimensions), which a flow can separate.

    All coordinates but the last are uniform in [-1, 1]. The last is the mean of sin(πx) over them, 0 if there are none,
    half the shift above it for the points labelled +1 or below it for those labelled -1, and noise.

    Args:
        dim: Number of dimensions.
        points: Number of points on both curves together.
        shift: Distance of the curves.
        noise: Standard deviation of the noise in the last coordinate.
        seed: Random seed.
    """
    dim = number("dim", dim, whole=True)
    _check_points(points, noise)
    number("shift", shift, zero=True, finite=True)
    generator = _generator(seed)
    y = _halves(points)
    free = 2 * _uniform(generator, points, dim - 1) - 1
    height = torch.sin(math.pi * free).sum(1, keepdim=True) / max(dim - 1, 1)
    last = height + shift / 2 * y + noise * _normal(generator, points, 1)
    return _dataset("separable", torch.cat([free, last], 1), y)


def moons(*, points: int = 1000, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Two interleaved half circles: the upper labelled -1, the lower +1.

    Args:
        points: Number of points.
        noise: Standard deviation of the noise that is added to every coordinate.
        seed: Random seed.
    """
    _check_points(points, noise)
    generator = _generator(seed)
    y = _halves(points)
    upper = _polar(1.0, math.pi * _uniform(generator, points, 1))
    upper -= torch.tensor([0.5, 0.25], dtype=torch.float64, device="cpu")
    # The lower one is the upper turned around the origin by half a turn.
    return _dataset("moons", -y * upper + noise * _normal(generator, points, 2), y)


def circles(*, points: int = 1000, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Two concentric circles, of radius 0.75 labelled -1 and of radius 1.5 labelled +1.

    Args:
        points: Number of points.
        noise: Standard deviation of the noise that is added to every coordinate.
        seed: Random seed.
    """
    _check_points(points, noise)
    generator = _generator(seed)
    y = _halves(points)
    radius = torch.where(y < 0, 0.75, 1.5)
    circle = _polar(radius, FULL_TURN * _uniform(generator, points, 1))
    return _dataset("circles", circle + noise * _normal(generator, points, 2), y)


def spirals(*, points: int = 1000, noise: float = 0.05, turns: float = 1.5, seed: int = 0) -> Dataset:
    """Two spiral arms that leave the origin in opposite directions and wind around it, out to radius 1.5.

    Args:
        points: Number of points.
        noise: Standard deviation of the noise that is added to every coordinate.
        turns: Number of turns of each arm around the origin.
        seed: Random seed.
    """
    _check_points(points, noise)
    number("turns", turns, zero=True, finite=True)
    generator = _generator(seed)
    y = _halves(points)
    # The root makes the points about as dense outside as they are inside, since an arm's length grows like radius^2.
    along = _uniform(generator, points, 1).sqrt()
    arm = y * _polar(1.5 * along, FULL_TURN * turns * along)
    return _dataset("spirals", arm + noise * _normal(generator, points, 2), y)


def checkerboard(*, points: int = 1000, noise: float = 0.0, cells: int = 4, seed: int = 0) -> Dataset:
    """The square [-1.5, 1.5]², divided into cells that alternate between the labels, with -1 at the lower left.

    Args:
        points: Number of points.
        noise: Standard deviation of the noise that is added to every coordinate.
        cells: Number of cells along a side.
        seed: Random seed.
    """
    _check_points(points, noise)
    require(_is_whole(cells, 2), "cells", cells, "a whole number from 2")
    generator = _generator(seed)
    y = _halves(points)
    side = torch.arange(cells, device="cpu")
    corners = torch.cartesian_prod(side, side)
    colours = [corners[corners.sum(1) % 2 == colour] for colour in (0, 1)]
    picked = [_choose(colour, int((y == sign).sum()), generator) for colour, sign in zip(colours, (-1, 1), strict=True)]
    place = (torch.cat(picked) + _uniform(generator, points, 2)) / cells
    return _dataset("checkerboard", 3 * place - 1.5 + noise * _normal(generator, points, 2), y)


def slices(count: int, width: float = math.pi / 5, seed: int = 0) -> list[tuple[float, float]]:
    """Random slices of the plane for :meth:`Dataset.holdout`.

    Args:
        count: Number of slices.
        width: Angle of each slice.
        seed: Random seed.

    Returns:
        Angles ``(start, end)`` within [0, 2π], sorted. No two slices overlap and none contains the angle 0 inside.
    """
    count, width = number("count", count, whole=True), number("width", width)
    room = FULL_TURN - count * width
    fits = room > -1e-9  # rounding alone must not keep 10 slices of π/5 from filling the plane
    require(fits, "width", width, f"at most 2π / count, {FULL_TURN / count:.6g} for {count} slices")
    # Places in what the slices leave free, each then moved up by the widths of the slices below it.
    places = (max(room, 0.0) * _uniform(_generator(seed), count)).sort().values.tolist()
    starts = [place + i * width for i, place in enumerate(places)]
    limits = [*starts[1:], FULL_TURN]
    return [(start, min(start + width, limit)) for start, limit in zip(starts, limits, strict=True)]


DATASETS: dict[str, Callable[..., Dataset]] = {
    "g_1d": g_1d,
    "identity_1d": identity_1d,
    "g": g,
    "separable": separable,
    "moons": moons,
    "circles": circles,
    "spirals": spirals,
    "checkerboard": checkerboard,
}
"""Functions that make datasets, by name."""


def load(name: str, **options: Any) -> Dataset:
    """Make a dataset by its name.

    Args:
        name: One of ``DATASETS``.
        options: Arguments of the function of that name. Every dataset accepts ``seed``, also those that draw nothing.

    Example:
        >>> from anode.data import toy
        >>> toy.load("spirals", points=100, seed=1)
        Dataset('spirals', 100 points, dim=2)
        >>> toy.load("spirals", point=100)
        Traceback (most recent call last):
        ValueError: point: is not an option of spirals, which takes points, noise, turns, seed; did you mean 'points'?
    """
    make = lookup("name", name, DATASETS)
    own = dict(signature(make).parameters)
    known = list(dict.fromkeys([*own, "seed"]))
    for option in options:
        if option not in known:
            takes = f"{name}, which takes {', '.join(known)}{nearest(option, known)}"
            raise ValueError(f"{option}: is not an option of {takes}")
    return make(**{option: value for option, value in options.items() if option in own})


def _dataset(name: str, x: Tensor, y: Tensor) -> Dataset:
    """A dataset in float32, whatever it was computed in."""
    return Dataset(name, x.float(), y.float())


def _generator(seed: int) -> torch.Generator:
    """Return a generator on the CPU, so that a seed gives the same points on every device."""
    return torch.Generator("cpu").manual_seed(as_seed(seed))


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniform draws in [0, 1)."""
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal draws."""
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)


def _signs(negative: int, positive: int) -> Tensor:
    """Return targets: first those of -1, then those of +1."""
    return torch.tensor([[-1.0]] * negative + [[1.0]] * positive, dtype=torch.float64, device="cpu")


def _halves(points: int) -> Tensor:
    """Return targets, half -1 and half +1; of an odd number, one more is -1."""
    return _signs(points - points // 2, points // 2)


def _choose(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return random rows, drawn with replacement."""
    return rows[(len(rows) * _uniform(generator, count)).long()]


def _polar(radius: float | Tensor, angle: Tensor) -> Tensor:
    """Points in the plane from columns of radii and angles."""
    return radius * torch.cat([torch.cos(angle), torch.sin(angle)], 1)


def _shell(points: int, dim: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Points uniform by volume between two radii."""
    direction = torch.nn.functional.normalize(_normal(generator, points, dim), dim=1)
    # The volume below a radius is its share of the outer one to the power of dim: a share, so that it cannot overflow.
    below = (low / high) ** dim
    volume = below + (1 - below) * _uniform(generator, points, 1)
    return high * volume ** (1 / dim) * direction


def _angles(x: Tensor) -> Tensor:
    """Angles of the first two coordinates in [0, 2π)."""
    angle = torch.atan2(x[:, 1].double(), x[:, 0].double())
    angle = torch.where(angle < 0, angle + FULL_TURN, angle)
    return angle.clamp(max=math.nextafter(FULL_TURN, 0))  # a point just below the axis would be rounded up to 2π


def _is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number from ``least``."""
    found = whole_number(value)
    return found is not None and found >= least


def _are_numbers(values: Any, count: int) -> bool:
    """Whether a value is a tuple or list of ``count`` numbers."""
    right_type = isinstance(values, tuple | list) and len(values) == count
    return right_type and all(isinstance(value, int | float) for value in values)


def _check_points(points: Any, noise: Any) -> None:
    """Check what all datasets of two equal halves take."""
    require(_is_whole(points, 2), "points", points, "a whole number from 2")
    number("noise", noise, zero=True, finite=True)
