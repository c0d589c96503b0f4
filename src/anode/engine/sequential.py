"""``nn.Sequential`` as a right-hand side that does not depend on time."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anode.engine.perceptron import Perceptron, Transparent
from anode.ode.field import is_hooked

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Softplus: "softplus",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
}
"""Activations of the compiled engine that are modules of torch."""


class SequentialField(Transparent):
    """The field f(t, y) = net(y).

    Args:
        net: Some layers.
    """

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """The layers, applied to y."""
        return self.net(y)

    def perceptron(self) -> Perceptron | None:
        """The same for the compiled engine, if the layers are linear ones, each with an activation or without."""
        layers = list(self.net)
        if type(self.net) is not nn.Sequential or not all(map(_is_plain, (self.net, *layers))):
            return None
        linears: list[nn.Linear] = []
        activations: list[str] = []
        for layer in layers:
            if type(layer) is nn.Linear:
                linears.append(layer)
                activations.append("none")
            elif type(layer) in ACTIVATIONS and activations and activations[-1] == "none":
                activations[-1] = ACTIVATIONS[type(layer)]
            else:
                return None
        if not linears:
            return None
        sizes = [linears[0].in_features, *(layer.out_features for layer in linears)]
        fitting = all(layer.in_features == size for layer, size in zip(linears, sizes, strict=False))
        if not fitting or sizes[0] != sizes[-1]:
            return None
        weights = [layer.weight for layer in linears]
        biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in linears]
        if any(weight.shape != (n, m) for weight, n, m in zip(weights, sizes[1:], sizes, strict=False)):
            return None
        return Perceptron(sizes, activations, (*weights, *biases), time=False, members=None)


def as_function(f: Any) -> Any:
    """A right-hand side as f(t, y): an ``nn.Sequential``, which knows of no time, in a field."""
    is_one = isinstance(f, nn.Sequential) and type(f).forward is nn.Sequential.forward
    return SequentialField(f) if is_one else f


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer does what its class does with its usual settings, and nothing else."""
    if is_hooked(layer):
        return False
    if isinstance(layer, nn.Softplus):
        return layer.beta == 1 and layer.threshold == 20
    return not isinstance(layer, nn.GELU) or layer.approximate == "none"
