"""Points in the plane to learn a density from, drawn from a seed.

Shapes and scales follow Grathwohl et al. (2019, "FFJORD"). Points are in random order, so any part is a sample too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anode.checks import as_seed, lookup, number
from anode.data import toy

DOUBLE = torch.float64


def eight_gaussians(points: int = 1000, seed: int = 0) -> Tensor:
    """Eight normal distributions of standard deviation 0.35, evenly spaced on a circle of radius 2.83.

    Args:
        points: Number of points.
        seed: Random seed.
    """
    points, generator = _checked(points, seed)
    angle = math.pi / 4 * torch.randint(8, (points,), generator=generator, device="cpu")
    x = 4 * _unit(angle) + 0.5 * torch.randn(points, 2, generator=generator, dtype=DOUBLE, device="cpu")
    return (x / math.sqrt(2)).float()


def rings(points: int = 1000, seed: int = 0) -> Tensor:
    """Four circles around the origin, of radii 0.75, 1.5, 2.25 and 3, with normal noise of standard deviation 0.08.

    Args:
        points: Number of points. On average, a quarter of them is on each circle.
        seed: Random seed.
    """
    points, generator = _checked(points, seed)
    radius = 0.75 * torch.randint(1, 5, (points, 1), generator=generator, device="cpu")
    x = radius * _unit(2 * math.pi * torch.rand(points, generator=generator, dtype=DOUBLE, device="cpu"))
    return (x + 0.08 * torch.randn(points, 2, generator=generator, dtype=DOUBLE, device="cpu")).float()


def pinwheel(points: int = 1000, seed: int = 0) -> Tensor:
    """Five bent arms: normal distributions that turn more the farther they are from the origin.

    Args:
        points: Number of points.
        seed: Random seed.
    """
    points, generator = _checked(points, seed)
    arm = 2 * math.pi / 5 * torch.randint(5, (points,), generator=generator, device="cpu")
    drawn = torch.randn(points, 2, generator=generator, dtype=DOUBLE, device="cpu")
    along, across = 1 + 0.3 * drawn[:, :1], 0.1 * drawn[:, 1:]
    bent = arm + 0.25 * along[:, 0].exp()
    return (2 * (along * _unit(bent) + across * _unit(bent + math.pi / 2))).float()


def checkerboard(points: int = 1000, seed: int = 0) -> Tensor:
    """Every other one of the sixteen cells of the square [-4, 4]², filled evenly.

    Args:
        points: Number of points.
        seed: Random seed.
    """
    points, generator = _checked(points, seed)
    one_colour = toy.checkerboard(points=2 * points, seed=seed).x[:points]  # those of one label come first
    return _shuffled(8 / 3 * one_colour, generator)


def moons(points: int = 1000, seed: int = 0) -> Tensor:
    """Two interleaved half circles of radius 2, with normal noise of standard deviation 0.2.

    Args:
        points: Number of points.
        seed: Random seed.
    """
    points, generator = _checked(points, seed)
    return _shuffled(2 * toy.moons(points=max(points, 2), seed=seed).x[:points], generator)


def two_spirals(points: int = 1000, seed: int = 0) -> Tensor:
    """Two arms that wind around the origin one and a half times, out to radius 3, with normal noise of deviation 0.1.

    Args:
        points: Number of points.
        seed: Random seed.
    """
    points, generator = _checked(points, seed)
    return _shuffled(2 * toy.spirals(points=max(points, 2), seed=seed).x[:points], generator)


DENSITIES: dict[str, Callable[..., Tensor]] = {
    "eight_gaussians": eight_gaussians,
    "rings": rings,
    "pinwheel": pinwheel,
    "checkerboard": checkerboard,
    "moons": moons,
    "two_spirals": two_spirals,
}
"""Functions that draw points, by name."""


def load(name: str, points: int = 1000, seed: int = 0) -> Tensor:
    """Draw points from a density by its name.

    Args:
        name: One of ``DENSITIES``.
        points: Number of points.
        seed: Random seed.

    Returns:
        [points, 2], in float32.

    Example:
        >>> import anode
        >>> anode.densities.load("pinwheel", points=500, seed=1).shape
        torch.Size([500, 2])
    """
    return lookup("name", name, DENSITIES)(points, seed)


def _checked(points: int, seed: int) -> tuple[int, torch.Generator]:
    """Return the number of points and the random generator of a seed."""
    return number("points", points, whole=True), torch.Generator("cpu").manual_seed(as_seed(seed))


def _unit(angle: Tensor) -> Tensor:
    """Points of the unit circle."""
    return torch.stack([torch.cos(angle.to(DOUBLE)), torch.sin(angle.to(DOUBLE))], 1)


def _shuffled(x: Tensor, generator: torch.Generator) -> Tensor:
    return x[torch.randperm(len(x), generator=generator, device="cpu")]
