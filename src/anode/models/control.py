"""Data control: the field sees the input at all times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anode.checks import Words, require
from anode.models.augment import Augment, as_augment, laid_out
from anode.models.description import described
from anode.models.layers import features_at
from anode.models.motion import HeavyBall
from anode.models.randomness import evaluating
from anode.models.wrapped import Wrapped


@described
class WithInput(Augment):
    """Map an input to a state, and append the input itself: [h(0), x], for :class:`DataControl`.

    Args:
        augment: Maps an input x to the state h(0): the number of zeros to append, or an :class:`anode.Augment`.
        dim: The dimension that holds the features: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch, anode
        >>> anode.WithInput(1)(torch.tensor([[3.0, 4.0]]))
        tensor([[3., 4., 0., 3., 4.]])
    """

    holds_input = True

    def __init__(self, augment: int | Augment = 0, dim: int = -1) -> None:
        super().__init__()
        self.dim = features_at(dim)
        self.augment = as_augment(augment, self.dim)

    def forward(self, x: Tensor) -> Tensor:
        h: Any = self.augment(x)
        return laid_out(torch.cat([h, x], self.dim), self.dim)

    def remove(self, h: Any) -> Tensor:
        raise NotImplementedError(
            "inverse: the features of a flow with data control end with the input; read it from there"
        )

    def shown(self, features: int, inputs: int) -> int:
        """Return the size of h: a head that sees x could do without the flow."""
        return self.augment.shown(features - inputs, inputs)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an augmentation like this one."""
        return {"augment": self.augment, "dim": self.dim}


@described
class DataControl(Wrapped):
    """Pass the input x to f at all times: h' = f(t, [h, x]).

    Massaroli et al. (2020), "Dissecting Neural ODEs", call this data control. The state is [h, x], see
    :class:`WithInput`, with x' = 0. Trajectories of h may cross, because f also sees x.

    Args:
        field: f, which maps [h, x] to the slope of h. Its attribute ``features_dim`` names the dimension of the
            features; it defaults to the last.

    Example:
        >>> import torch, anode
        >>> field = anode.DataControl(anode.MLPField(2, inputs=4))
        >>> model = anode.NeuralODE(2, 1, field=field, augment=anode.WithInput())
        >>> model(torch.rand(8, 2)).shape
        torch.Size([8, 1])
        >>> images = anode.DataControl(anode.ConvField(1 + 5, filters=4, inputs=1 + 5 + 1))
        >>> anode.Flow(images, augment=anode.WithInput(5, dim=-3))(torch.rand(8, 1, 6, 6)).shape
        torch.Size([8, 7, 6, 6])
    """

    holds_input = True

    def __init__(self, field: nn.Module) -> None:
        super().__init__(field)
        takes = "a field that sees the whole state; use HeavyBall(DataControl(f)) and WithVelocity(WithInput())"
        require(not isinstance(field, HeavyBall), "field", Words("a HeavyBall, whose f sees only the position"), takes)

    def noisy(self, y: Tensor) -> Tensor:
        """Return where noise is added: to h, and not to the input, which is constant."""
        with evaluating(self):  # f says how large h is
            slope = self.inner(y.new_zeros(()), y)
        return self.combine(y, torch.ones_like(slope))

    def combine(self, h: Tensor, slope: Tensor) -> Tensor:
        dim = self.features_dim
        rest = h.shape[dim] - slope.shape[dim]
        takes = f"a module that returns the slope of a part of its state, less than {h.shape[dim]} features"
        require(rest > 0, "field", slope, takes)
        return F.pad(slope, (*(0, 0) * (-dim - 1), 0, rest))
