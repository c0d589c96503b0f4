"""Layers that can be stacked: the weights of many members in one tensor, one matrix product for all of them.

A stacked parameter has one dimension more than a plain one, in front. Everything here tells the two apart by that
alone, so a stacked model is a model of the same classes with larger tensors in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import number, require
from anode.models.description import described


class Stackable(nn.Module):
    """A module that works with parameters of many members, which have a dimension of members in front."""

    @property
    def members(self) -> int | None:
        """How many members are stacked in it; ``None`` for one by itself, or if it has no parameters to tell from."""
        return None


def members_of(bias: Tensor) -> int | None:
    """How many members a bias is stacked of; ``None`` for one that is not stacked."""
    return None if bias.ndim == 1 else bias.shape[0]


def as_row(bias: Tensor) -> Tensor:
    """A bias, shaped to be added to the rows of its member."""
    return bias if bias.ndim == 1 else bias.unsqueeze(-2)


def check_state(x: Tensor, features: int, members: int | None, name: str = "h") -> None:
    """Raise ``ValueError`` unless x has so many features in its last dimension and so many members in its first."""
    if x.ndim == 0 or x.shape[-1] != features:
        raise ValueError(f"{name}: takes {features} features in the last dimension, got shape {tuple(x.shape)}")
    if members is not None and (x.ndim != 3 or x.shape[0] != members):
        raise ValueError(
            f"{name}: takes shape [members, batch, features] = [{members}, any, {features}] for a stack of {members}, "
            f"got {tuple(x.shape)}"
        )


@described
class LinearHead(nn.Linear, Stackable):
    """A linear map from features to predictions. Stacked, it takes ``[members, batch, features]``.

    Args:
        in_features: How many features it sees, from the first.
        out_features: Size of a prediction.
        features: How many there are. Defaults to ``in_features``.
    """

    def __init__(self, in_features: int, out_features: int, features: int | None = None) -> None:
        super().__init__(in_features, out_features)
        self.features = in_features if features is None else features

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that it is made with."""
        own = {"in_features": self.in_features, "out_features": self.out_features}
        return own if self.features == self.in_features else {**own, "features": self.features}

    @property
    def members(self) -> int | None:
        return members_of(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The linear map and the bias."""
        if self.features != self.in_features:
            check_state(x, self.features, self.members, "features")
            x = x[..., : self.in_features]
        if self.bias.ndim == 1:
            return super().forward(x)
        return torch.baddbmm(as_row(self.bias), x, self.weight.mT)


@described
class First(Stackable):
    """The first features of a state, as a head without parameters: the position of a second-order flow.

    Args:
        size: How many features.
        dim: The dimension that holds them: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch, anode
        >>> field = anode.SecondOrder(anode.MLPField(2, inputs=4))
        >>> model = anode.NeuralODE(field=field, augment=anode.WithVelocity(), head=anode.First(2))
        >>> model(torch.rand(8, 2)).shape
        torch.Size([8, 2])
    """

    def __init__(self, size: int, dim: int = -1) -> None:
        super().__init__()
        require(isinstance(dim, int) and dim < 0, "dim", dim, "a dimension counted from the last, which is -1")
        self.size, self.dim = number("size", size, whole=True), dim

    def forward(self, features: Tensor) -> Tensor:
        """So many features, from the first."""
        takes = f"at least {self.size} features in dimension {self.dim}"
        require(features.shape[self.dim] >= self.size, "features", features, takes)
        return features.narrow(self.dim, 0, self.size)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that it is made with."""
        return {"size": self.size, "dim": self.dim}

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}"


@described
class ImageHead(nn.Linear):
    """A linear map from the first channels of images to predictions.

    Args:
        image: How many channels it sees, and height and width of the images.
        classes: Size of a prediction.
    """

    def __init__(self, image: Sequence[int], classes: int) -> None:
        super().__init__(math.prod(image), classes)
        self.image = tuple(image)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that it is made with."""
        return {"image": list(self.image), "classes": self.out_features}

    def forward(self, features: Tensor) -> Tensor:
        """The linear map and the bias."""
        return super().forward(features[:, : self.image[0]].flatten(1))
