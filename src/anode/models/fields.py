"""Networks that serve as the right-hand side of an ODE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    what it gains. States are matrices of rows, [rows, dim], or one matrix a member, [members, rows, dim].
    """

    def __init__(self, field: MLPField) -> None:
        self._weights = [weight.detach() for weight in field.weights]
        self._biases = [bias.detach() for bias in field.biases]
        self._time_weight = None if field.time_weight is None else as_row(field.time_weight.detach())
        self._ndim = self._weights[0].ndim
        stacked = self._ndim == 3
        self._product: Callable[..., Tensor] = torch.bmm if stacked else torch.mm
        self._affine: Callable[..., Tensor] = torch.baddbmm if stacked else torch.addmm
        transposed = [weight.mT for weight in self._weights]
        *self._hidden, self._last = zip([as_row(bias) for bias in self._biases], transposed, strict=True)
        self._width = sum(weight.shape[-1] for weight in self._weights)
        self._act = IN_PLACE.get(field.activation, ACTIVATIONS[field.activation])
        self._pull_act = PULLBACKS.get(field.activation)
        self._sums: tuple[list[Tensor], ...] = ()
        self._pulled: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []
        self._elements_pulled = 0
        # One product for many stages gains where the products are tiny; those of a stack are not, and lose by being put
        # together first (measured: 1.4 ms for 19 stages of 20 members one by one, 5.2 ms together).
        self._room = 0 if stacked else ELEMENTS_KEPT

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        return ELEMENTS_KEPT // (stages * self._width * (y.numel() // y.shape[-1]))

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self._last_layer(self._layer_inputs(self._times(t, y), y), y)

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        times = self._times(t, y)
        inputs = self._layer_inputs(times, y)
        slope = self._last_layer(inputs, y)
        slope.tape = (times, inputs)  # type: ignore[attr-defined]
        return slope

    def _layer_inputs(self, times: Tensor, y: Tensor) -> list[Tensor]:
        x = self._rows(y)
        inputs = [x]
        for bias, weight in self._hidden:
            if len(inputs) == 1 and self._time_weight is not None:
                bias = torch.addcmul(bias, self._time_weight, times)
            x = self._act(self._affine(bias, x, weight))
            inputs.append(x)
        return inputs

    def _last_layer(self, inputs: list[Tensor], y: Tensor) -> Tensor:
        bias, weight = self._last
        return self._shaped(self._affine(bias, inputs[-1], weight), y)

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        times, inputs = slope.tape  # type: ignore[attr-defined]
        assert self._pull_act is not None
        g = self._rows(cotangent)
        cotangents = [g]
        for i in range(len(inputs) - 1, 0, -1):
            g = self._pull_act(self._product(g, self._weights[i]), inputs[i])
            cotangents.append(g)
        self._pulled.append((times, inputs, cotangents[::-1]))
        self._elements_pulled += g.numel() // g.shape[-1] * self._width
        if self._elements_pulled > self._room:
            self._add_up()
        return self._shaped(self._product(g, self._weights[0]), cotangent), None

    def _add_up(self) -> None:
        """Turn what has been pulled into gradients of the parameters."""
        if not self._sums:
            of_time = [] if self._time_weight is None else [self._biases[0]]  # of one shape
            self._sums = tuple([torch.zeros_like(p) for p in ps] for ps in (of_time, self._weights, self._biases))
        if not self._pulled:
            return
        times, inputs, cotangents = zip(*self._pulled, strict=True)
        self._pulled.clear()
        self._elements_pulled = 0
        of_time, of_weights, of_biases = self._sums
        for i, (weight, bias) in enumerate(zip(of_weights, of_biases, strict=True)):
            g = _together([stage[i] for stage in cotangents])
            weight.add_(self._product(g.mT, _together([stage[i] for stage in inputs])))
            bias.add_(g.sum(-2))
            if i == 0 and of_time:
                of_time[0].add_(self._product(g.mT, _column(times, cotangents)).squeeze(-1))

    def take_gradients(self) -> Sequence[Tensor]:
        self._add_up()
        sums, self._sums = self._sums, ()
        return [total for totals in sums for total in totals]

    def _rows(self, y: Tensor) -> Tensor:
        """All of y's vectors, one below the other, apart only by member."""
        return y if y.ndim == self._ndim else y.reshape(-1, y.shape[-1])  # asked because an idle reshape takes time

    def _shaped(self, rows: Tensor, y: Tensor) -> Tensor:
        """Rows, laid out like y."""
        return rows if y.ndim == self._ndim else rows.view(y.shape)

    def _times(self, t: Tensor, y: Tensor) -> Tensor:
        """The time, or the times of y's rows, in a shape that broadcasts against them."""
        return t if t.ndim in (0, self._ndim) else t.expand(*y.shape[:-1], 1).reshape(-1, 1)


def _together(stages: Sequence[Tensor]) -> Tensor:
    """The rows of some stages, one below the other."""
    return stages[0] if len(stages) == 1 else torch.cat(list(stages), -2)


def _column(times: Sequence[Tensor], cotangents: Sequence[list[Tensor]]) -> Tensor:
    """The time of each row of all stages."""
    rows = cotangents[0][0].shape[:-1]
    if times[0].ndim == 0:
        each = torch.stack(list(times)).repeat_interleave(rows[-1]).unsqueeze(-1)
        return each.expand(*rows[:-1], *each.shape)
    return _together([t.expand(*rows, 1) for t in times])
