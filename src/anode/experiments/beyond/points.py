"""Training and test points for the models of the family."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anode.data import toy

Points = tuple[Tensor, Tensor]
"""Inputs [n, d] and targets [n, k]."""

APART = 100_000
"""Added to a seed to draw points that no repeat is trained on."""


def g(dim: int, seed: int) -> Points:
    """Return half as many points of the paper's data: a ball labelled -1 within a shell labelled +1."""
    data = toy.g(dim, inner=500, outer=1000, seed=seed)
    return data.x, data.y


def nested(dim: int, seed: int) -> Points:
    """Return nested spheres with alternating labels: radii up to 0.5, from 0.75 to 1, and from 1.25 to 1.5."""
    within = toy.g(dim, inner=500, outer=500, radii=(0.5, 0.75, 1.0), seed=seed)
    around = toy.g(dim, inner=1, outer=500, radii=(0.5, 1.25, 1.5), seed=seed + 1_000_000)
    return torch.cat([within.x, around.x[1:]]), torch.cat([within.y, -around.y[1:]])


def swap(dim: int, seed: int) -> Points:
    """Return the paper's g in one dimension: -1 maps to 1 and 1 to -1."""
    data = toy.g_1d()
    return data.x, data.y


def parity(dim: int, seed: int) -> Points:
    """Return the map from x to -x on 50 points of the cube [-1, 1]^d (Norcliffe et al., 2020)."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(50, dim, generator=generator) - 1
    return x, -x


POINTS: dict[str, Callable[[int, int], Points]] = {"g": g, "nested": nested, "swap": swap, "parity": parity}
"""All of them by name."""

MAPS = ("swap", "parity")
"""The datasets whose targets are points: a flow has to end there, without a linear layer."""
