"""Networks that serve as the right-hand side of an ODE."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anode.checks import describe, flag, lookup, number, require
from anode.engine.compiled import Compiled
from anode.engine.program.program import Program
from anode.engine.transparent import Transparent, perceptron_program
from anode.models.backprop import PULLBACKS, MLPDerivative
from anode.models.conv import ConvDerivative, time_map
from anode.models.description import described
from anode.models.layers import Stackable, as_row, check_state, members_in_bias
from anode.ode.field import Derivative, Field, is_hooked

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
}
"""Activation functions by name."""


class Network(Field):
    """Base class of the fields below, with an activation that can be changed at any time."""

    _described: ClassVar[tuple[str, ...]]
    """The arguments that describe the field, the size of the state first; ``inputs`` only if it differs from that."""
    inputs: int

    def joined(self, h: Tensor, context: Tensor | None) -> Tensor:
        """Return what the layers are given: the state, followed by the context if there is one."""
        if context is None:
            return h
        dim = self.features_dim
        sizes = [x.shape[dim] if x.ndim >= -dim else 0 for x in (h, context)]
        takes = f"{self.inputs - sizes[0]} features in dimension {dim}, for a field with inputs={self.inputs}"
        require(sum(sizes) == self.inputs, "context", describe(context), takes)
        return torch.cat([h, context], dim)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a field with the same architecture."""
        usual = {name: getattr(self, name) for name in self._described}
        return usual if self.inputs == usual[self._described[0]] else {**usual, "inputs": self.inputs}

    def extra_repr(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return shown.removeprefix(f"{self._described[0]}=")

    @property
    def activation(self) -> str:
        """The name of the activation function."""
        return self._activation

    @activation.setter
    def activation(self, name: str) -> None:
        lookup("activation", name, ACTIVATIONS)
        self._activation = name


@described
class MLPField(Network, Transparent, Stackable):
    """A multilayer perceptron f(t, h) on the last dimension of h.

    By default this is the paper's field for vectors, ``dim + 1 -> hidden -> hidden -> dim``, with time appended to the
    input. Fields with the same architecture can be stacked with :func:`anode.stack`. A stacked field takes states
    ``[members, batch, dim]``.

    Args:
        dim: Size of the state, including augmented dimensions.
        hidden: Width of the hidden layers.
        layers: Number of hidden layers.
        time: Whether f depends on t.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        inputs: Size of what f is given, for a field with a context, or inside another field, such as
            :class:`anode.SecondOrder`: f then returns the slopes of the first ``dim`` of its ``inputs``. Defaults to
            ``dim``.

    Example:
        >>> import torch, anode
        >>> field = anode.MLPField(2, hidden=32)
        >>> field(torch.tensor(0.5), torch.zeros(64, 2)).shape
        torch.Size([64, 2])
    """

    _described = ("dim", "hidden", "layers", "time", "activation")

    def __init__(
        self,
        dim: int,
        hidden: int = 32,
        *,
        layers: int = 2,
        time: bool = True,
        activation: str = "relu",
        inputs: int | None = None,
    ) -> None:
        super().__init__()
        flag("time", time)
        given = {"dim": dim, "hidden": hidden, "layers": layers, "inputs": dim if inputs is None else inputs}
        dim, hidden, layers, inputs = (number(name, size, whole=True) for name, size in given.items())
        self.dim, self.hidden, self.layers, self.inputs, self.activation = dim, hidden, layers, inputs, activation
        self.weights = nn.ParameterList(torch.empty(n, m) for m, n in pairwise(self._sizes))
        self.biases = nn.ParameterList(torch.empty(n) for n in self._sizes[1:])
        # Appending t to the input is the same as adding t times a weight to the bias.
        self.time_weight = nn.Parameter(torch.empty(hidden)) if time else None
        self.reset_parameters()

    @property
    def time(self) -> bool:
        """Whether f depends on t."""
        return self.time_weight is not None

    def reset_parameters(self) -> None:
        """Initialize the parameters as ``nn.Linear`` does."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            bound = (weight.shape[1] + (i == 0 and self.time)) ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
            if i == 0 and self.time_weight is not None:
                nn.init.uniform_(self.time_weight, -bound, bound)

    @property
    def _sizes(self) -> list[int]:
        """The sizes of the input, the hidden layers and the output."""
        return [self.inputs, *[self.hidden] * self.layers, self.dim]

    @property
    def members(self) -> int | None:
        """The number of fields that are stacked in this one; ``None`` for a single field."""
        bias = self.biases._parameters.get("0")  # indexing takes 3 us, too long for something that every solve does
        return members_in_bias(self.biases[0] if bias is None else bias)

    def forward(self, t: Tensor, h: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the derivative of h at time t, which is a scalar or broadcasts against h."""
        h = self.joined(h, context)
        self.check(h)
        *hidden, last = self.weights
        for i, weight in enumerate(hidden):
            bias = as_row(self.biases[i])
            if i == 0 and self.time_weight is not None:
                bias = bias + as_row(self.time_weight) * t
            h = ACTIVATIONS[self.activation](h @ weight.mT + bias)
        return h @ last.mT + as_row(self.biases[-1])

    def check(self, h: Tensor) -> None:
        check_state(h, self.inputs, self.members)

    def compiled(self) -> Compiled | None:
        """Return the field for the compiled engine; ``None`` if the field was modified or has additional inputs."""
        own = self._plain_parameters() if self.inputs == self.dim else None
        if own is None:
            return None
        program = _program(self.dim, self.hidden, self.layers, self.time, self.activation)
        return Compiled(program, own, (False,) * len(own), members_in_bias(own[-1]))

    def _plain_parameters(self) -> tuple[Tensor, ...] | None:
        """Return the parameters in the order of :func:`perceptron_program`; ``None`` if the field was modified."""
        time = self.time_weight
        if not is_plain(self, MLPField, 2 * (self.layers + 1) + (time is not None)):
            return None
        own = (*(() if time is None else (time,)), *_listed(self.weights), *_listed(self.biases))
        sizes = (self.inputs, self.hidden, self.layers, self.dim)
        return own if [p.shape for p in own] == _shapes(*sizes, time is not None, members_in_bias(own[-1])) else None

    def derivative(self) -> Derivative | None:
        """Return a derivative without autograd if the activation has one and the field was not modified."""
        if self.activation in PULLBACKS and self._plain_parameters() is not None:
            act = ACTIVATIONS[self.activation]
            return MLPDerivative(self.weights, self.biases, self.time_weight, act, self.activation)
        return None


@described
class ConvField(Network):
    """The paper's field for images: 1x1, 3x3 and 1x1 convolutions with activations in between.

    Time is an additional input channel of each convolution. Since this channel is constant, its contribution is
    computed separately and added to the output, which is faster and gives the same function.

    Args:
        channels: Number of channels of the state, including augmented channels.
        filters: Number of channels of the two hidden layers.
        time: Whether f depends on t.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        inputs: Channels of what f is given, see :class:`anode.MLPField`. Defaults to ``channels``.

    Example:
        >>> import torch, anode
        >>> field = anode.ConvField(1 + 5, filters=64)
        >>> field(torch.tensor(0.5), torch.zeros(8, 6, 28, 28)).shape
        torch.Size([8, 6, 28, 28])
    """

    features_dim = -3
    _described = ("channels", "filters", "time", "activation")

    def __init__(
        self,
        channels: int,
        filters: int = 64,
        *,
        time: bool = True,
        activation: str = "relu",
        inputs: int | None = None,
    ) -> None:
        super().__init__()
        flag("time", time)
        given = {"channels": channels, "filters": filters, "inputs": channels if inputs is None else inputs}
        channels, filters, inputs = (number(name, size, whole=True) for name, size in given.items())
        self.channels, self.filters, self.inputs, self.activation = channels, filters, inputs, activation
        sizes = [(inputs, filters, 1), (filters, filters, 3), (filters, channels, 1)]
        self.weights = nn.ParameterList(torch.empty(out, into, k, k) for into, out, k in sizes)
        self.biases = nn.ParameterList(torch.empty(out) for _, out, _ in sizes)
        self.time_weights = nn.ParameterList(torch.empty(out, k, k) for _, out, k in sizes if time)
        self._shapes = [p.shape for p in (*self.weights, *self.biases, *self.time_weights)]
        self.reset_parameters()

    @property
    def time(self) -> bool:
        """Whether f depends on t."""
        return len(self.time_weights) > 0

    def reset_parameters(self) -> None:
        """Initialize the parameters as ``nn.Conv2d`` does."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            bound = ((weight.shape[1] + self.time) * weight[0, 0].numel()) ** -0.5
            for parameter in (weight, bias, *self.time_weights[i : i + 1]):
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, t: Tensor, h: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the derivative of h at time t, which is a scalar or broadcasts against h."""
        h = self.joined(h, context)
        self.check(h)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = nn.functional.conv2d(h, weight, bias, padding=weight.shape[-1] // 2)
            if self.time:
                h = h + time_map(self.time_weights[i], *h.shape[-2:]) * t
            h = ACTIVATIONS[self.activation](h) if i < 2 else h
        return h

    def check(self, h: Tensor) -> None:
        if h.ndim != 4 or h.shape[1] != self.inputs:
            takes = f"images of shape [batch, {self.inputs}, height, width]"
            raise ValueError(f"h: takes {takes}, got {tuple(h.shape)}")

    def derivative(self) -> Derivative | None:
        return self.part() if self.inputs == self.channels else None

    def part(self) -> Derivative | None:
        """Return a derivative without autograd if the activation has one and the field was not modified."""
        fits = [p.shape for p in (*self.weights, *self.biases, *self.time_weights)] == self._shapes
        if self.activation not in PULLBACKS or not fits or not is_plain(self, ConvField, 6 + 3 * self.time):
            return None
        act = ACTIVATIONS[self.activation]
        return ConvDerivative(self.weights, self.biases, self.time_weights, act, self.activation)


def field_or_perceptron(
    field: nn.Module | None, size: int | None, network: dict[str, Any], usual: dict[str, Any] | None = None
) -> nn.Module:
    """Return the field that the user passed to a model or, if there is none, an :class:`MLPField`.

    Args:
        field: The argument ``field`` of the model.
        size: Size of the state; may be ``None`` only with a field.
        network: Settings of the perceptron, ``None`` for those that were not given. A field excludes all of them.
        usual: The model's own defaults for these settings.
    """
    given = {name: value for name, value in network.items() if value is not None}
    if field is None:
        assert size is not None
        return MLPField(size, **{**(usual or {}), **given})
    takes = "None with field=, which replaces the MLPField that it configures"
    require(not given, next(iter(given), ""), next(iter(given.values()), None), takes)
    return field


@cache
def _program(dim: int, hidden: int, layers: int, time: bool, activation: str) -> Program:
    """Return the program of an :class:`MLPField`."""
    return perceptron_program((dim, *[hidden] * layers, dim), (*[activation] * layers, "none"), time)


@cache
def _shapes(inputs: int, hidden: int, layers: int, dim: int, time: bool, members: int | None) -> list[torch.Size]:
    """Return the shapes of the time weights, if any, the weight matrices and the biases of an :class:`MLPField`."""
    sizes = [inputs, *[hidden] * layers, dim]
    single = [(hidden,)] * time + [(n, m) for m, n in pairwise(sizes)] + [(n,) for n in sizes[1:]]
    return [torch.Size(shape if members is None else (members, *shape)) for shape in single]


def is_plain(field: Field, kind: type[Field], parameters: int) -> bool:
    """Whether calling a field only runs ``kind.forward``, with the original number of parameters and no hooks."""
    unchanged = type(field).forward is kind.forward and not is_hooked(field)
    lists = list(field._modules.values())  # a parametrization changes their type, or adds a module
    if not unchanged or any(type(each) is not nn.ParameterList for each in lists):
        return False
    own = sum(parameter is not None for parameter in field._parameters.values())
    if own + sum(map(len, lists)) != parameters:  # type: ignore[arg-type]
        return False
    return not torch.is_autocast_enabled(lists[0][0].device.type)  # type: ignore[index]


def _listed(parameters: nn.ParameterList) -> list[Any]:
    """Return ``list(parameters)``. Iterating takes 3 us per parameter, too long for something that every solve does."""
    found = parameters._parameters
    plain = tuple(found) == _names(len(parameters))  # pruned ones are not parameters
    return list(found.values() if plain else parameters)


@cache
def _names(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
