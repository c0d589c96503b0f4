"""The input of a page: the settings of both models, and its own points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from anode.checks import lookup, number, real_number, require
from anode.data import toy
from anode.data.toy import Dataset
from anode.models.fields import ACTIVATIONS

POINTS = 2_000
"""Maximum number of points that a page may send."""
OWN = "own"
"""The data that a page sends: painted, or read from a file by the browser."""
REACH = 10.0
"""Largest absolute coordinate of a page's points."""
DATA: dict[str, Callable[[int], Dataset]] = {
    "ring": lambda seed: toy.g(inner=480, outer=960, radii=(0.75, 1.0, 1.5), seed=seed),
    "moons": lambda seed: toy.moons(points=960, seed=seed),
    "spirals": lambda seed: toy.spirals(points=960, turns=1.0, seed=seed),
    "checkerboard": lambda seed: toy.checkerboard(points=960, cells=3, seed=seed),
}
"""The datasets that a page can choose by name. With about a thousand points, an epoch takes some milliseconds."""


@dataclass(frozen=True)
class Settings:
    """The settings that a page asks for. They are untrusted input, and checked here.

    Attributes:
        data: One of ``DATA``, or ``OWN``.
        p: Number of zeros that the ANODE appends to a point.
        width: Units in each of the two hidden layers of the field.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        lr: The learning rate of both models.
        tolerance: The relative and absolute tolerance of the solver, in training and in the pictures.
        seed: Random seed of the data, the models and the order of batches.
    """

    data: str = "ring"
    p: int = 1
    width: int = 32
    activation: str = "relu"
    lr: float = 3e-3
    tolerance: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        lookup("data", self.data, {**DATA, OWN: None})
        lookup("activation", self.activation, ACTIVATIONS)
        for name, least, most in (("p", 1, 5), ("width", 4, 64), ("seed", 0, 10**6)):
            value = number(name, getattr(self, name), whole=True, zero=True)
            require(least <= value <= most, name, value, f"a whole number from {least} to {most}")
        for name, low, high in (("lr", 1e-5, 1.0), ("tolerance", 1e-6, 1e-1)):
            found = number(name, getattr(self, name))
            require(low <= found <= high, name, found, f"a number from {low:g} to {high:g}")

    @classmethod
    def of(cls, given: Any) -> Settings:
        """Return settings from a page's message, with defaults for missing ones; raises ``ValueError`` if invalid."""
        require(isinstance(given, dict), "settings", given, "an object")
        known = {field.name: None for field in fields(cls)}
        for name in given:
            lookup("settings", name, known)
        return cls(**given)

    def trains_like(self, other: Settings) -> bool:
        """Return whether training can continue with other settings: only learning rate or tolerance may differ."""
        kept = [field.name for field in fields(self) if field.name not in ("lr", "tolerance")]
        return all(getattr(self, name) == getattr(other, name) for name in kept)


def dataset(settings: Settings, points: Any) -> Dataset:
    """Return the dataset that settings name, or one of the points ``[x, y, class]`` that a page sent."""
    if settings.data != OWN:
        return DATA[settings.data](settings.seed)
    require(isinstance(points, list), "points", points, "a list of [x, y, class]")
    require(2 <= len(points) <= POINTS, "points", f"{len(points)} points", f"2 to {POINTS:,}")
    for point in points:
        require(_is_point(point), "points", point, f"[x, y, class] within {REACH:g} of zero, classes 0 and 1")
    rows = torch.tensor(points, dtype=torch.float32, device="cpu")
    require(len(rows[:, 2].unique()) == 2, "points", "points of one class", "points of both classes")
    return Dataset(OWN, rows[:, :2].contiguous(), 2 * rows[:, 2:] - 1)


def _is_point(point: Any) -> bool:
    if not isinstance(point, list) or len(point) != 3 or point[2] not in (0, 1):
        return False
    found = [real_number(each) for each in point]
    return all(each is not None and math.isfinite(each) and abs(each) <= REACH for each in found)
