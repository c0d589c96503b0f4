"""Learned augmentations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import flag, number, require
from anode.models.augment import Augment, Zeros, laid_out
from anode.models.description import described
from anode.models.layers import features_at, members_in_bias


@described
class Learned(Augment):
    """Append the output of a network to the input: h(0) = [x, g(x)].

    Massaroli et al. (2020), "Dissecting Neural ODEs", call this input-layer augmentation. The network g is trained with
    the model. The paper on augmented neural ODEs appends zeros, and leaves this for future work. With ``keep=False``,
    the network computes the whole initial state, h(0) = g(x), the more general form of the same authors.

    Args:
        network: g, any module that maps inputs to the features to append, such as a linear map or convolutions.
        keep: Whether the state begins with the input itself.
        dim: The dimension to append to: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch, anode
        >>> from torch import nn
        >>> linear = anode.Learned(nn.Linear(2, 3))
        >>> hidden = anode.Learned(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3)))
        >>> anode.NeuralODE(2, 1, augment=hidden)(torch.rand(8, 2)).shape
        torch.Size([8, 1])
        >>> channels = anode.Learned(nn.Conv2d(1, 5, 3, padding=1), dim=-3)
        >>> anode.ImageNeuralODE((1, 8, 8), 10, filters=4, augment=channels)(torch.rand(8, 1, 8, 8)).shape
        torch.Size([8, 10])
    """

    def __init__(self, network: nn.Module, keep: bool = True, dim: int = -1) -> None:
        super().__init__()
        require(isinstance(network, nn.Module), "network", network, "a torch.nn.Module, such as torch.nn.Linear(2, 3)")
        flag("keep", keep)
        self.network, self.keep, self.dim = network, bool(keep), features_at(dim)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.network(x)
        return laid_out(torch.cat([x, made], self.dim) if self.keep else made, self.dim)

    def remove(self, h: Any) -> Tensor:
        """Raise ``NotImplementedError``: most states do not have the form [x, g(x)]."""
        raise NotImplementedError(
            "inverse: Learned appends the output of a network to the input, and few states have that form; use zeros "
            "or Constant, or solve back with flow.solve_from(features, (flow.t1, 0.0)) and read the input there"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an augmentation like this one."""
        return {"network": self.network, "keep": self.keep, "dim": self.dim}


@described
class Constant(Zeros):
    """Append learned constants: h(0) = [x, c], with the same c for every input.

    It has one parameter per added dimension, initialised to 0 as in the paper.

    Args:
        extra: Number of constants; for images, one per added channel.
        dim: The dimension to append to: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch, anode
        >>> augment = anode.Constant(2)
        >>> augment(torch.tensor([[3.0]])).tolist()
        [[3.0, 0.0, 0.0]]
        >>> anode.NeuralODE(1, 1, augment=augment)(torch.rand(8, 1)).shape
        torch.Size([8, 1])
    """

    def __init__(self, extra: int, dim: int = -1) -> None:
        super().__init__(number("extra", extra, whole=True), dim)
        self.value = nn.Parameter(torch.zeros(self.extra))

    @property
    def members(self) -> int | None:
        return members_in_bias(self.value)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*self.value.shape, *[1] * (-self.dim - 1))
        if self.members is not None:  # the same for every point of a member
            shape = (shape[0], *[1] * (x.ndim - len(shape)), *shape[1:])
        sizes = list(x.shape)
        sizes[self.dim] = self.extra
        return laid_out(torch.cat([x, self.value.reshape(shape).expand(sizes)], self.dim), self.dim)
