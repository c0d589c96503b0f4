"""Networks that serve as the right-hand side of an ODE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_}
"""Those that have a form that overwrites its input."""

PULLBACKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda cotangent, output: torch.ops.aten.threshold_backward.default(cotangent, output, 0),
    "softplus": lambda cotangent, output: cotangent * -torch.expm1(-output),
    "tanh": lambda cotangent, output: torch.ops.aten.tanh_backward.default(cotangent, output),
}
"""cotangent times derivative, for those activations whose derivative is a function of their own value."""


ELEMENTS_KEPT = 2**20
"""How many activations a backward pass may hold: few enough that memory is no concern."""


class MLPField(Field):
    """A multilayer perceptron f(t, h) on the last dimension of h.

    The paper's field for vectors: ``dim + 1 -> hidden -> hidden -> dim``, time appended once, at the input.

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

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """The derivative of h at time t, which is a scalar or broadcasts against h."""
        self.check(h)
        *hidden, last = self.weights
        for i, weight in enumerate(hidden):
            bias = self.biases[i]
            if i == 0 and self.time_weight is not None:
                bias = bias + self.time_weight * t
            h = self._act(h @ weight.t() + bias)
        return h @ last.t() + self.biases[-1]

    def check(self, h: Tensor) -> None:
        if h.ndim == 0 or h.shape[-1] != self.dim:
            raise ValueError(
                f"h: this field takes {self.dim} features in the last dimension, got shape {tuple(h.shape)}"
            )

    def derivative(self) -> Derivative:
        """A derivative without autograd, where the activation allows it and nobody has changed what the field does."""
        if self.activation in PULLBACKS and self._is_plain():
            return MLPDerivative(self)
        return super().derivative()

    def _is_plain(self) -> bool:
        """Whether evaluating this field is no more than :meth:`forward` of this class on its own parameters."""
        lists = tuple(self._modules.values())  # a parametrization changes their type, or adds a module to this one
        unchanged = type(self).forward is MLPField.forward and "forward" not in self.__dict__
        unchanged = unchanged and len(lists) == 2 and len(self._parameters) == self.time
        unchanged = unchanged and all(type(parameters) is nn.ParameterList for parameters in lists)
        hooked = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        return unchanged and not hooked and not torch.is_autocast_enabled(self.biases[0].device.type)


class MLPDerivative(Derivative):
    """An :class:`MLPField` and its backpropagation by hand.

    Autograd and ``nn.Module`` would spend most of their time on bookkeeping here. The gradients of the weights do not
    feed back into the solve, so they are computed for many stages in one matrix product. ``benchmarks/core.py`` shows
    what it gains.
    """

    def __init__(self, field: MLPField) -> None:
        self._weights = [weight.detach() for weight in field.weights]
        self._biases = [bias.detach() for bias in field.biases]
        self._time_weight = None if field.time_weight is None else field.time_weight.detach()
        *self._hidden, self._last = zip(self._biases, [weight.t() for weight in self._weights], strict=True)
        self._width = sum(weight.shape[1] for weight in self._weights)
        self._act = IN_PLACE.get(field.activation, ACTIVATIONS[field.activation])
        self._pull_act = PULLBACKS.get(field.activation)
        self._sums: tuple[list[Tensor], ...] = ()
        self._pulled: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []
        self._rows_pulled = 0

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        return ELEMENTS_KEPT // (stages * self._width * (y.numel() // y.shape[-1]))

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self._last_layer(self._layer_inputs(t, y), y)

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        inputs = self._layer_inputs(t, y)
        slope = self._last_layer(inputs, y)
        slope.tape = (t if t.ndim == 0 else _time_rows(t, y), inputs)  # type: ignore[attr-defined]
        return slope

    def _layer_inputs(self, t: Tensor, y: Tensor) -> list[Tensor]:
        x = _rows(y)
        inputs = [x]
        for bias, weight in self._hidden:
            if len(inputs) == 1 and self._time_weight is not None:
                bias = torch.addcmul(bias, self._time_weight, t if t.ndim == 0 else _time_rows(t, y))
            x = self._act(torch.addmm(bias, x, weight))
            inputs.append(x)
        return inputs

    def _last_layer(self, inputs: list[Tensor], y: Tensor) -> Tensor:
        bias, weight = self._last
        return _shaped(torch.addmm(bias, inputs[-1], weight), y)

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        time, inputs = slope.tape  # type: ignore[attr-defined]
        assert self._pull_act is not None
        g = _rows(cotangent)
        cotangents = [g]
        for i in range(len(inputs) - 1, 0, -1):
            g = self._pull_act(torch.mm(g, self._weights[i]), inputs[i])
            cotangents.append(g)
        self._pulled.append((time, inputs, cotangents[::-1]))
        self._rows_pulled += g.shape[0]
        if self._rows_pulled * self._width > ELEMENTS_KEPT:
            self._add_up()
        return _shaped(torch.mm(g, self._weights[0]), cotangent), None

    def _add_up(self) -> None:
        """Turn what has been pulled into gradients of the parameters."""
        if not self._sums:
            of_time = [] if self._time_weight is None else [self._time_weight]
            self._sums = tuple([torch.zeros_like(p) for p in ps] for ps in (of_time, self._weights, self._biases))
        if not self._pulled:
            return
        times, inputs, cotangents = zip(*self._pulled, strict=True)
        self._pulled.clear()
        self._rows_pulled = 0
        of_time, of_weights, of_biases = self._sums
        for i, (weight, bias) in enumerate(zip(of_weights, of_biases, strict=True)):
            g = torch.cat([stage[i] for stage in cotangents])
            weight.addmm_(g.t(), torch.cat([stage[i] for stage in inputs]))
            bias.add_(g.sum(0))
            if i == 0 and of_time:
                rows = len(g) // len(times)
                each = torch.stack(times).repeat_interleave(rows) if times[0].ndim == 0 else torch.cat(times)[:, 0]
                of_time[0].addmv_(g.t(), each)

    def take_gradients(self) -> Sequence[Tensor]:
        self._add_up()
        sums, self._sums = self._sums, ()
        return [total for totals in sums for total in totals]


def _rows(y: Tensor) -> Tensor:
    """All of y's vectors, one below the other."""
    return y if y.ndim == 2 else y.reshape(-1, y.shape[-1])  # asked first because even an idle reshape takes time


def _shaped(rows: Tensor, y: Tensor) -> Tensor:
    """Rows, laid out like y."""
    return rows if y.ndim == 2 else rows.view(y.shape)


def _time_rows(t: Tensor, y: Tensor) -> Tensor:
    """The time of each of y's vectors."""
    return t.expand(*y.shape[:-1], 1).reshape(-1, 1)
