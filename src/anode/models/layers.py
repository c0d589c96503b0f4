"""Layers that can be stacked: one tensor holds the weights of all members, and one matrix product computes all.

A stacked parameter has an additional leading dimension. The code here recognizes stacks by that alone, so a stacked
model has the same classes as its members, with larger tensors.
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
    """A module that also works if its parameters have a leading dimension of members."""

    @property
    def members(self) -> int | None:
        """The number of stacked members; ``None`` for a single module, or if there are no parameters to tell."""
        return None


def members_in_bias(bias: Tensor) -> int | None:
    """Return the number of members in a bias; ``None`` if it is not stacked."""
    return None if bias.ndim == 1 else bias.shape[0]


def as_row(bias: Tensor) -> Tensor:
    """Return a bias, reshaped to broadcast against the rows of each member."""
    return bias if bias.ndim == 1 else bias.unsqueeze(-2)


def features_at(dim: Any) -> int:
    """Check and return the dimension of the features: the last for vectors, -3 (the channels) for images."""
    require(isinstance(dim, int) and dim < 0, "dim", dim, "a dimension counted from the last, which is -1")
    return int(dim)


def check_state(x: Tensor, features: int, members: int | None, name: str = "h") -> None:
    """Raise ``ValueError`` unless x has ``features`` features in its last dimension and ``members`` in its first."""
    if x.ndim == 0 or x.shape[-1] != features:
        raise ValueError(f"{name}: takes {features} features in the last dimension, got shape {tuple(x.shape)}")
    if members is not None and (x.ndim != 3 or x.shape[0] != members):
        raise ValueError(
            f"{name}: takes shape [members, batch, features] = [{members}, any, {features}] for a stack of {members}, "
            f"got {tuple(x.shape)}"
        )


@described
class LinearHead(nn.Linear, Stackable):
    """A linear layer from features to predictions. A stack takes ``[members, batch, features]``.

    Args:
        in_features: Number of features to use. The layer ignores the features after these.
        out_features: Size of each prediction.
        features: Number of features of each input. Defaults to ``in_features``.
    """

    def __init__(self, in_features: int, out_features: int, features: int | None = None) -> None:
        super().__init__(in_features, out_features)
        self.features = in_features if features is None else features

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a layer with the same architecture."""
        own = {"in_features": self.in_features, "out_features": self.out_features}
        return own if self.features == self.in_features else {**own, "features": self.features}

    @property
    def members(self) -> int | None:
        return members_in_bias(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer."""
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
        size: Number of features.
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
        self.size, self.dim = number("size", size, whole=True), features_at(dim)

    def forward(self, features: Tensor) -> Tensor:
        """Return the first ``size`` features."""
        takes = f"at least {self.size} features in dimension {self.dim}"
        require(features.shape[self.dim] >= self.size, "features", features, takes)
        return features.narrow(self.dim, 0, self.size)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a head like this one."""
        return {"size": self.size, "dim": self.dim}

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}"


@described
class ImageHead(nn.Linear):
    """A linear layer from the first channels of images to predictions.

    Args:
        image: Number of channels to use, and height and width of the images.
        classes: Size of each prediction.
    """

    def __init__(self, image: Sequence[int], classes: int) -> None:
        super().__init__(math.prod(image), classes)
        self.image = tuple(image)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a layer with the same architecture."""
        return {"image": list(self.image), "classes": self.out_features}

    def forward(self, features: Tensor) -> Tensor:
        """Apply the linear layer."""
        return super().forward(features[:, : self.image[0]].flatten(1))
