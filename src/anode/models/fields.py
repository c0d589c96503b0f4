"""Networks that serve as the right-hand side of an ODE."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anode.models.backprop import PULLBACKS, MLPDerivative
from anode.models.layers import as_row, check_state, members_of
from anode.ode.field import Derivative, Field
from anode.ode.inputs import lookup, require

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
}
"""Activation functions by name."""


class MLPField(Field):
    """A multilayer perceptron f(t, h) on the last dimension of h.

    The paper's field for vectors: ``dim + 1 -> hidden -> hidden -> dim``, time appended once, at the input. Fields of
    one shape can be stacked (:func:`anode.stack`); a stacked field takes states ``[members, batch, dim]``.

    Args:
        dim: Size of the state.
        hidden: Width of the hidden layers.
        layers: Number of hidden layers.
        time: Whether f depends on t.
        activation: One of ``anode.models.fields.ACTIVATIONS``.

    Example:
        >>> import torch, anode
        >>> field = anode.MLPField(2, hidden=32)
        >>> field(torch.tensor(0.5), torch.zeros(64, 2)).shape
        torch.Size([64, 2])
    """

    def __init__(
        self, dim: int, hidden: int = 32, *, layers: int = 2, time: bool = True, activation: str = "relu"
    ) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("hidden", hidden), ("layers", layers)):
            require(isinstance(size, int) and size > 0, name, size, "a whole number above 0")
        self.dim, self.hidden, self.layers, self.time, self.activation = dim, hidden, layers, time, activation
        self._act = lookup("activation", activation, ACTIVATIONS)
        sizes = [dim, *[hidden] * layers, dim]
        self.weights = nn.ParameterList(torch.empty(n, m) for m, n in pairwise(sizes))
        self.biases = nn.ParameterList(torch.empty(n) for n in sizes[1:])
        # A column of ones times t, appended to the input, is a bias that moves with t.
        self.time_weight = nn.Parameter(torch.empty(hidden)) if time else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters, as ``nn.Linear`` does."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            bound = (weight.shape[1] + (i == 0 and self.time)) ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
            if i == 0 and self.time_weight is not None:
                nn.init.uniform_(self.time_weight, -bound, bound)

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, hidden={self.hidden}, layers={self.layers}, time={self.time}, activation={self.activation!r}"
        )

    @property
    def members(self) -> int | None:
        """How many fields are stacked in this one; ``None`` for a field by itself."""
        return members_of(self.biases[0])

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """The derivative of h at time t, which is a scalar or broadcasts against h."""
        self.check(h)
        *hidden, last = self.weights
        for i, weight in enumerate(hidden):
            bias = as_row(self.biases[i])
            if i == 0 and self.time_weight is not None:
                bias = bias + as_row(self.time_weight) * t
            h = self._act(h @ weight.mT + bias)
        return h @ last.mT + as_row(self.biases[-1])

    def check(self, h: Tensor) -> None:
        check_state(h, self.dim, self.members)

    def derivative(self) -> Derivative:
        """A derivative without autograd, where the activation allows it and nobody has changed what the field does."""
        if self.activation in PULLBACKS and self._is_plain():
            return MLPDerivative(self.weights, self.biases, self.time_weight, self._act, self.activation)
        return super().derivative()

    def _is_plain(self) -> bool:
        """Whether evaluating this field is no more than :meth:`forward` of this class on its own parameters."""
        lists = tuple(self._modules.values())  # a parametrization changes their type, or adds a module to this one
        unchanged = type(self).forward is MLPField.forward and "forward" not in self.__dict__
        unchanged = unchanged and len(lists) == 2 and len(self._parameters) == self.time
        unchanged = unchanged and all(type(parameters) is nn.ParameterList for parameters in lists)
        hooked = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        return unchanged and not hooked and not torch.is_autocast_enabled(self.biases[0].device.type)
