"""Right-hand sides as users write them in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anode.bench.tasks import RATES, SPIRAL, Array, Task

LAYERS = {"relu": nn.ReLU, "softplus": nn.Softplus, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def linear(matrix: Array, bias: Array) -> nn.Linear:
    """Return a linear layer with given weights."""
    layer = nn.Linear(*reversed(matrix.shape))
    layer.weight, layer.bias = (nn.Parameter(torch.tensor(values)) for values in (matrix, bias))
    return layer


class Network(nn.Module):
    """A perceptron."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for (matrix, bias), activation in zip(task.weights(), task.activations, strict=True):
            layers.append(linear(matrix, bias))
            if activation != "none":
                layers.append(LAYERS[activation]())
        self.net, self.time = nn.Sequential(*layers), task.time

    def forward(self, t: Tensor, y: Tensor, args: object = None) -> Tensor:
        """Return the slope. Time is appended to the state as a column; torchdyn passes ``args``, which are ignored."""
        return self.net(torch.cat([y, t.expand(len(y)).unsqueeze(1)], dim=1) if self.time else y)


class Opaque(Network):
    """A perceptron that also appends to a list, so that every evaluation has to call it."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.times: list[Tensor] = []

    def forward(self, t: Tensor, y: Tensor, args: object = None) -> Tensor:
        self.times.append(t)
        return super().forward(t, y)


class SquashLayer(nn.Module):
    """A linear map whose outputs are scaled and shifted by functions of time."""

    def __init__(self, matrix: Array, bias: Array, gates: Array) -> None:
        super().__init__()
        self.linear = linear(matrix, bias)
        self.gate = linear(gates[0][:, None], gates[1])
        self.shift = nn.Linear(1, len(bias), bias=False)
        self.shift.weight = nn.Parameter(torch.tensor(gates[2][:, None]))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the output of the layer at time t, a tensor with one number."""
        t = t.reshape(1, 1)
        return self.linear(y) * torch.sigmoid(self.gate(t)) + self.shift(t)


class Squash(nn.Module):
    """A chain of such layers."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        weights = zip(task.weights(), task.gates(), strict=True)
        self.layers = nn.ModuleList([SquashLayer(*layer, gates) for layer, gates in weights])
        self.activations = nn.ModuleList(
            [nn.Identity() if name == "none" else LAYERS[name]() for name in task.activations]
        )

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the slope. Every layer takes the time."""
        for layer, activation in zip(self.layers, self.activations, strict=True):
            y = activation(layer(t, y))
        return y


class Cubic(nn.Module):
    """``y**3 @ A`` with a learned matrix A: a spiral."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor(SPIRAL, dtype=getattr(torch, task.dtype)))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the slope, which does not depend on time."""
        return y**3 @ self.matrix


class CubicNetwork(Network):
    """A perceptron of the cubes of the state."""

    def forward(self, t: Tensor, y: Tensor, args: object = None) -> Tensor:
        return super().forward(t, y**3)


class LotkaVolterra(nn.Module):
    """The Lotka-Volterra equations of predators and prey, with learned rates."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.tensor(RATES, dtype=getattr(torch, task.dtype)))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the slope of a state with one column of prey and one of predators."""
        prey, predators = y.unbind(-1)
        births, eaten, deaths, fed = self.rates
        return torch.stack([births * prey - eaten * prey * predators, fed * prey * predators - deaths * predators], -1)


class SecondOrder(Network):
    """A second-order ODE, whose acceleration is a perceptron."""

    def forward(self, t: Tensor, y: Tensor, args: object = None) -> Tensor:
        _, velocity = y.chunk(2, dim=1)
        return torch.cat([velocity, super().forward(t, y)], dim=1)


class Density(Network):
    """A perceptron that moves points, with minus its divergence for the log-density."""

    def forward(self, t: Tensor, y: Any, args: object = None) -> Any:
        """Return the slope of a tuple of points and one number per point."""
        with torch.enable_grad():
            points = y[0].requires_grad_(True)
            slopes = super().forward(t, points)
            divergence = torch.zeros(len(points), dtype=points.dtype)
            for i in range(points.shape[1]):
                (row,) = torch.autograd.grad(slopes[:, i].sum(), points, create_graph=True)
                divergence = divergence + row[:, i]
        return slopes, -divergence.unsqueeze(1)


MODULES: dict[str, type[nn.Module]] = {
    "network": Network,
    "opaque": Opaque,
    "squash": Squash,
    "cubic": Cubic,
    "cubic network": CubicNetwork,
    "lotka-volterra": LotkaVolterra,
    "second order": SecondOrder,
    "density": Density,
}


def module(task: Task) -> nn.Module:
    """Return the right-hand side of a task."""
    return MODULES[task.field](task)


def start(task: Task) -> Any:
    """Return the initial state: a tensor or, for ``density``, a tuple."""
    y0 = torch.tensor(task.state())
    return (y0, torch.zeros(len(y0), 1, dtype=y0.dtype)) if task.field == "density" else y0


def flat(state: Any) -> Tensor:
    """Return a state as one tensor, with one row per point."""
    return torch.cat(state, 1) if isinstance(state, tuple) else state
