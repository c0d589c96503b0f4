"""Programs as torch operations, which autograd can differentiate any number of times.

The compiled engine differentiates a program once. To differentiate a gradient, a solve is repeated with these
operations instead of f: what f reads may have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anode.engine.compiled import Compiled
from anode.engine.program.operation import SCALAR, Operation
from anode.ode.packing import Packing

Unary = Callable[[Tensor, float, float], Tensor]

_PLAIN = ["exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "square", "erf", "erfc"]
_PLAIN += ["atan", "sinh", "cosh", "relu", "tanh", "sigmoid", "sign"]


def _plain(name: str) -> Unary:
    function = getattr(torch, name)
    return lambda x, p, q: function(x)


UNARY: dict[str, Unary] = {
    **{name: _plain(name) for name in _PLAIN},
    "none": lambda x, p, q: x,
    "copy": lambda x, p, q: x,
    "negate": lambda x, p, q: -x,
    "absolute": lambda x, p, q: x.abs(),
    "softplus": F.softplus,
    "silu": lambda x, p, q: F.silu(x),
    "gelu": lambda x, p, q: F.gelu(x),
    "gelu_tanh": lambda x, p, q: F.gelu(x, approximate="tanh"),
    "elu": lambda x, p, q: F.elu(x, p),
    "leaky_relu": lambda x, p, q: F.leaky_relu(x, p),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "power": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    **{
        name: (lambda compare: lambda a, b: compare(a, b).to(a.dtype))(getattr(torch, name))
        for name in ("less", "less_equal", "greater", "greater_equal", "not_equal")
    },
    "equal": lambda a, b: torch.eq(a, b).to(a.dtype),
    "relu_pull": lambda g, value: torch.where(value > 0, g, 0.0),
    "tanh_pull": lambda g, value: g * (1 - value * value),
    "sigmoid_pull": lambda g, value: g * value * (1 - value),
}


class Replayed:
    """Evaluates a compiled field by torch operations, as a function of time and a packed state.

    Values are kept as [rows, members, points], where 1 stands for what all members or points share.

    Args:
        field: The field.
        tensors: Its tensors.
        packing: The packing of the state.
        context: The rows of the field's context, as one tensor; defaults to the tensors of the field.
    """

    def __init__(
        self, field: Compiled, tensors: Sequence[Tensor], packing: Packing, context: Tensor | None = None
    ) -> None:
        self._field, self._packing, self._members = field, packing, field.members or 1
        self._context = None if context is None else [context]
        parts = [
            x.reshape(1 if shared else self._members, -1).expand(self._members, -1).t().unsqueeze(-1)
            for x, shared in zip(tensors, field.shared, strict=True)
        ]
        self._parts, self._weights = parts, dict[int, tuple[Tensor, Tensor]]()
        self._flat: Tensor | None = None

    def __call__(self, t: Tensor, packed: Tensor) -> Tensor:
        """Return the packed slope."""
        field, program = self._field, self._field.program
        own = field.joined(self._packing.unpack(packed)) if field.components else packed  # type: ignore[arg-type]
        y = field.rows(own, self._context)
        if self._flat is None:
            literals = y.new_tensor(program.literals).reshape(-1, 1, 1).expand(-1, self._members, 1)
            self._flat = torch.cat([*self._parts, literals])
        state = y.reshape(self._members, -1, program.dim).permute(2, 0, 1)
        points = state.shape[2]
        time = t.to(y.dtype).reshape(-1, 1)
        if len(time) > 1:
            time = time.expand(-1, self._members * points // len(time)).reshape(self._members, points)
        rows: list[Tensor | None] = [None] * len(program.owner)
        rows[: program.dim + 1] = [time.expand(self._members, -1), *state.unbind()]
        for operation in program.operations:
            made = self._computed(operation, rows)
            rows[operation.out : operation.out + operation.rows] = made.unbind()
        slope = self._read(program.slope.reshape(-1).tolist(), rows).expand(-1, self._members, points)
        slope = field.features(slope.permute(1, 2, 0).reshape(y.shape), own.shape)
        if not field.components:
            return slope
        return self._packing.pack(field.parted(slope, self._packing.whole_shapes))

    def _read(self, names: Sequence[int], rows: list[Tensor | None]) -> Tensor:
        """Return these rows and scalars, stacked."""
        assert self._flat is not None
        if names[0] >= SCALAR and all(name >= SCALAR for name in names):
            return self._flat[[name - SCALAR for name in names]]
        found = [self._flat[name - SCALAR] if name >= SCALAR else rows[name] for name in names]
        return torch.stack(torch.broadcast_tensors(*found))

    def _computed(self, operation: Operation, rows: list[Tensor | None]) -> Tensor:
        if operation.kind in ("sum", "largest"):
            x = self._read(list(operation.reads()), rows)
            x = x.reshape(operation.rows, -1, *x.shape[1:])
            return x.sum(1) if operation.kind == "sum" else x.amax(1)
        inputs = [self._read(run.names(operation.width), rows) for run in operation.inputs]
        if operation.kind == "affine":
            return self._affine(operation, *inputs)
        if operation.kind == "unary":
            return UNARY[operation.name](inputs[0], *operation.numbers)
        if operation.kind == "binary":
            return BINARY[operation.name](*inputs)
        condition, a, b = inputs
        return torch.where(condition != 0, a, b)

    def _affine(self, operation: Operation, x: Tensor) -> Tensor:
        assert self._flat is not None
        if id(operation) not in self._weights:
            weight, bias = (torch.from_numpy(names - SCALAR) for names in (operation.weight, operation.bias))
            self._weights[id(operation)] = self._flat[weight].squeeze(-1), self._flat[bias]
        weight, bias = self._weights[id(operation)]
        result = torch.einsum("oim,imn->omn", weight, x) + bias
        return UNARY[operation.activation](result, 1.0, 20.0)
