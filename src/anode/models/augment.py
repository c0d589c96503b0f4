"""Augmentation: how an input enters the larger space in which the ODE is solved."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from anode.ode.inputs import number, require


class Augment(nn.Module, ABC):
    """Maps an input to the initial state of an ODE, and back."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The initial state h(0) that an input starts from."""

    @abstractmethod
    def remove(self, h: Tensor) -> Tensor:
        """The input that belongs to an initial state."""


class Zeros(Augment):
    """Append ``extra`` zeros to every input, as the paper does.

    Args:
        extra: How many zeros; none leaves a plain neural ODE.
        dim: The dimension they are appended to: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch
        >>> Zeros(2)(torch.tensor([[3.0]]))
        tensor([[3., 0., 0.]])
    """

    def __init__(self, extra: int, dim: int = -1) -> None:
        super().__init__()
        number("augment", extra, whole=True, zero=True)
        require(isinstance(dim, int) and dim < 0, "dim", dim, "a dimension counted from the last, which is -1")
        self.extra, self.dim = extra, dim

    def forward(self, x: Tensor) -> Tensor:
        if self.extra:
            before_last = (0, 0) * (-self.dim - 1)
            x = nn.functional.pad(x, (*before_last, 0, self.extra))
        if x.ndim == 4 and self.dim == -3:
            return x.contiguous(memory_format=torch.channels_last)  # in which convolutions are fastest
        return x

    def remove(self, h: Tensor) -> Tensor:
        return h.narrow(self.dim, 0, h.shape[self.dim] - self.extra)

    def extra_repr(self) -> str:
        return f"{self.extra}, dim={self.dim}"
