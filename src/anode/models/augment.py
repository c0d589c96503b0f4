"""Augmentation: map an input to the larger space in which the ODE is solved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anode.checks import number, require, whole_number
from anode.models.description import described
from anode.models.layers import Stackable, features_at
from anode.models.misfit import tried
from anode.models.randomness import evaluating
from anode.ode.solution import State


class Augment(nn.Module, ABC):
    """Maps an input to the initial state of an ODE and, if :meth:`remove` is defined, back.

    Example:
        >>> import torch, anode
        >>> class Lift(anode.Augment):
        ...     def __init__(self, features, extra):
        ...         super().__init__()
        ...         self.lift = torch.nn.Linear(features, extra)
        ...     def forward(self, x):
        ...         return torch.cat([x, self.lift(x)], dim=-1)
        >>> anode.NeuralODE(2, 1, augment=Lift(2, 3))(torch.rand(8, 2)).shape
        torch.Size([8, 1])
    """

    holds_input: ClassVar[bool] = False
    """Whether states end with the input itself, which a field with data control keeps as it is."""

    @abstractmethod
    def forward(self, x: Tensor) -> State:
        """Return the initial state h(0) of an input: a tensor, or a tuple of tensors."""

    def remove(self, h: Any) -> Tensor:
        """Return the input of an initial state. Only ``Flow.inverse`` needs it."""
        raise NotImplementedError(
            f"inverse: {type(self).__name__} defines no remove(h), so inputs cannot be told from states; define it"
        )

    def shown(self, features: int, inputs: int) -> int:
        """Return how many of the first features of a state the default head of a model sees; by default, all.

        Args:
            features: Number of features of a state, or of channels for images.
            inputs: Number of features or channels of an input.
        """
        return features


@described
class Zeros(Augment, Stackable):
    """Append ``extra`` zeros to every input, as the paper does.

    Args:
        extra: Number of zeros; 0 for a plain neural ODE.
        dim: The dimension to append to: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch
        >>> Zeros(2)(torch.tensor([[3.0]]))
        tensor([[3., 0., 0.]])
    """

    def __init__(self, extra: int, dim: int = -1) -> None:
        super().__init__()
        self.extra, self.dim = number("extra", extra, whole=True, zero=True), features_at(dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.extra:
            before_last = (0, 0) * (-self.dim - 1)
            x = torch.constant_pad_nd(x, (*before_last, 0, self.extra))
        return laid_out(x, self.dim)

    def remove(self, h: Any) -> Tensor:
        found: Tensor = h.narrow(self.dim, 0, h.shape[self.dim] - self.extra)
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an augmentation like this one."""
        return {"extra": self.extra, "dim": self.dim}

    def extra_repr(self) -> str:
        return f"{self.extra}, dim={self.dim}"


def laid_out(h: Tensor, dim: int) -> Tensor:
    """Return a state in the fastest memory layout for fields: channels last for images."""
    if h.ndim != 4 or dim != -3:
        return h
    return h.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # as channels_last, which vmap cannot map over


def as_augment(value: Any, dim: int = -1) -> Augment:
    """Return the augmentation for the argument ``augment`` of a model.

    Args:
        value: The number of zeros to append, or an :class:`Augment`.
        dim: The dimension to append zeros to, see :class:`Zeros`.
    """
    if isinstance(value, Augment):
        return value
    if whole_number(value) is None:
        hint = "; derive the module from anode.Augment" if isinstance(value, nn.Module) else ""
        raise ValueError(f"augment: takes a whole number from 0, or an anode.Augment, got {value!r}{hint}")
    return Zeros(number("augment", value, whole=True, zero=True), dim)


def augmented_size(augment: Augment, shape: Sequence[int], dim: int = -1) -> int:
    """Return the size of a dimension of the augmented state. The other dimensions must not change.

    Args:
        augment: The augmentation. A user's augmentation is called on an input of zeros, in evaluation mode.
        shape: Shape of an input, without the batch.
        dim: The dimension, counted from the last.
    """
    if type(augment) is Zeros:
        return shape[dim] + augment.extra
    like = next(augment.parameters(), torch.empty(()))
    x = like.new_zeros(1, *shape)
    with evaluating(augment):
        state = tried("augment", augment, x, x)
    found = tuple(state.shape) if isinstance(state, Tensor) else ()
    expected = [1, *shape]
    if len(found) == len(expected):
        expected[dim] = found[dim]
    takes = f"an Augment that changes only the size of dimension {dim} of an input of shape {(1, *shape)}"
    require(found == tuple(expected), "augment", f"a state of shape {found}" if found else state, takes)
    return found[dim]
