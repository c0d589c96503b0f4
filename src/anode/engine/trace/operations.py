"""ATen's elementwise operations as formulas over a program's rows.

Every entry of `OPERATIONS` takes an `Operation` and the arguments of the ATen operation, with a `Quantity` for each
tensor. It returns a `Quantity`, or a tuple of them with ``None`` for outputs that the engine does not compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anode.engine.program.program import Builder
from anode.engine.trace.quantity import Quantity
from anode.engine.trace.record import Untraceable

Number = float | Quantity
Handler = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """The operation that is being translated.

    Attributes:
        builder: Where its formula goes.
        label: Its name, for messages.
    """

    builder: Builder
    label: str

    def mixes(self) -> Untraceable:
        """The error if an operation computes across points."""
        return Untraceable(f"f mixes the points of a batch ({self.label})")

    def missing(self) -> Untraceable:
        """The error if an operation cannot be translated."""
        return Untraceable(f"{self.label} is not among the operations that the engine has")

    def lift(self, x: Number) -> Quantity:
        """A number as a quantity."""
        return x if isinstance(x, Quantity) else Quantity(self.builder, self.builder.numbers(float(x)), fixed=True)

    def axes(self, x: Quantity, dim: int | Sequence[int] | None) -> tuple[int, ...]:
        """Dimensions to compute over, counted from 0; all if there are none. The batch must not be among them."""
        dims = (dim,) if isinstance(dim, int) else tuple(dim or ()) or tuple(range(len(x.shape)))
        axes = tuple(d % max(1, len(x.shape)) for d in dims) if x.shape else ()
        if x.batch is not None and x.batch in axes:
            raise self.mixes()
        return axes


def _unary(name: str) -> Handler:
    return lambda op, x: x.unary(name)


def _compared(name: str) -> Handler:
    return lambda op, a, b: op.lift(a).binary(name, b)


def _add(op: Operation, a: Number, b: Number, alpha: float = 1) -> Quantity:
    return op.lift(a) + op.lift(b) * alpha


def _subtract(op: Operation, a: Number, b: Number, alpha: float = 1) -> Quantity:
    return op.lift(a) - op.lift(b) * alpha


def _divide(op: Operation, a: Number, b: Number, rounding_mode: str | None = None) -> Quantity:
    if rounding_mode is not None:
        raise op.missing()
    return op.lift(a) / b


def _power(op: Operation, x: Number, exponent: Number) -> Quantity:
    if isinstance(exponent, Quantity):
        values = op.builder.value(exponent.rows)
        if values is None or values.size == 0 or not (values == values.flat[0]).all():
            return op.lift(x).binary("power", exponent)
        base, spread = op.lift(x), exponent.shape
        return base.like(np.broadcast_to(*_both(_fixed_power(base, float(values.flat[0])), spread)))
    if not isinstance(x, Quantity):
        return op.lift(x).binary("power", exponent)
    return _fixed_power(x, float(exponent))


def _both(x: Quantity, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    return x.rows, np.broadcast_shapes(x.shape, shape)


def _scalar_power(op: Operation, base: Number, exponent: Quantity) -> Quantity:
    if not isinstance(base, Quantity) and base > 0:
        return (exponent * math.log(base)).unary("exp")
    return op.lift(base).binary("power", exponent)


def _pow(op: Operation, x: Number, exponent: Number) -> Quantity:
    if isinstance(exponent, Quantity) and not isinstance(x, Quantity):
        return _scalar_power(op, x, exponent)
    return _power(op, x, exponent)


def _fixed_power(x: Quantity, exponent: float) -> Quantity:
    """Small powers by multiplication, the others by the general function."""
    if exponent in (0.5, -0.5):
        return x.unary("sqrt" if exponent > 0 else "rsqrt")
    if exponent != int(exponent) or abs(exponent) > 16:
        return x.binary("power", exponent)
    if exponent < 0:
        return _fixed_power(x, -exponent).unary("reciprocal")
    if exponent == 0:
        return x.like(np.broadcast_to(x.lift(1.0).rows, x.shape))
    half = x if exponent < 2 else _fixed_power(x, exponent // 2).unary("square")
    return half if exponent % 2 == 0 or exponent == 1 else half * x


def _clamp(op: Operation, x: Quantity, low: Number | None = None, high: Number | None = None, **names: Any) -> Quantity:
    low, high = names.get("min", low), names.get("max", high)
    x = x if low is None else x.binary("maximum", low)
    return x if high is None else x.binary("minimum", high)


def truth(x: Number, op: Operation) -> Quantity:
    """What counts as true, as 1 and 0."""
    x = op.lift(x)
    return x if x.dtype == torch.bool else x.binary("not_equal", 0.0)


def _elu(op: Operation, x: Quantity, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Quantity:
    if input_scale == 1:
        return x.unary("elu", alpha) * scale
    below = (x.binary("minimum", 0.0) * input_scale).unary("expm1") * alpha
    return x.binary("greater", 0.0).choose(x, below) * scale


def _softplus(op: Operation, x: Quantity, beta: float = 1, threshold: float = 20) -> Quantity:
    return x.unary("softplus", beta, threshold)


def _log_sigmoid(op: Operation, x: Quantity) -> tuple[Quantity, Quantity]:
    decay = (-x.unary("absolute")).unary("exp")  # torch keeps it for the backward pass
    return x.binary("minimum", 0.0) - decay.unary("log1p"), decay


def _gelu(op: Operation, x: Quantity, approximate: str = "none") -> Quantity:
    return x.unary("gelu" if approximate == "none" else "gelu_tanh")


def _logaddexp(op: Operation, a: Quantity, b: Quantity) -> Quantity:
    return a.binary("maximum", b) + (-(a - b).unary("absolute")).unary("exp").unary("log1p")


def _glu(op: Operation, x: Quantity, dim: int = -1) -> Quantity:
    (axis,) = op.axes(x, dim)
    first, second = np.split(x.rows, 2, axis)
    return x.like(first) * x.like(second).unary("sigmoid")


def _where(op: Operation, condition: Quantity, yes: Number, no: Number) -> Quantity:
    return condition.choose(yes, no)


_LN2, _LN10 = math.log(2.0), math.log(10.0)

OPERATIONS: dict[str, Handler] = {
    **{
        name: _unary(name)
        for name in [
            "relu",
            "tanh",
            "sigmoid",
            "silu",
            "exp",
            "expm1",
            "log",
            "log1p",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "sin",
            "cos",
            "tan",
            "square",
            "erf",
            "sinh",
            "cosh",
            "atan",
            "sign",
        ]
    },
    "neg": _unary("negate"),
    "abs": _unary("absolute"),
    "sgn": _unary("sign"),
    "positive": lambda op, x: x,
    "log2": lambda op, x: x.unary("log") * (1 / _LN2),
    "log10": lambda op, x: x.unary("log") * (1 / _LN10),
    "exp2": lambda op, x: (x * _LN2).unary("exp"),
    "erfc": lambda op, x: 1.0 - x.unary("erf"),
    "softplus": _softplus,
    "log_sigmoid_forward": _log_sigmoid,
    "gelu": _gelu,
    "elu": _elu,
    "celu": lambda op, x, alpha=1.0: _elu(op, x, alpha, 1.0, 1.0 / alpha),
    "selu": lambda op, x: _elu(op, x, 1.6732632423543772, 1.0507009873554805),
    "leaky_relu": lambda op, x, slope=0.01: x.unary("leaky_relu", slope),
    "_prelu_kernel": lambda op, x, weight: x.binary("greater", 0.0).choose(x, x * weight),
    "mish": lambda op, x: x * x.unary("softplus", 1.0, 20.0).unary("tanh"),
    "hardtanh": lambda op, x, low=-1.0, high=1.0: _clamp(op, x, low, high),
    "hardsigmoid": lambda op, x: _clamp(op, x + 3.0, 0.0, 6.0) * (1 / 6),
    "hardswish": lambda op, x: x * _clamp(op, x + 3.0, 0.0, 6.0) * (1 / 6),
    "threshold": lambda op, x, bound, value: x.binary("greater", bound).choose(x, value),
    "glu": _glu,
    "add": _add,
    "sub": _subtract,
    "rsub": lambda op, a, b, alpha=1: _subtract(op, b, a, alpha),
    "mul": lambda op, a, b: op.lift(a) * b,
    "div": _divide,
    "pow": _pow,
    "maximum": _compared("maximum"),
    "minimum": _compared("minimum"),
    "clamp": _clamp,
    "clamp_min": lambda op, x, low: _clamp(op, x, low),
    "clamp_max": lambda op, x, high: _clamp(op, x, None, high),
    "hypot": lambda op, a, b: (a.unary("square") + b.unary("square")).unary("sqrt"),
    "logaddexp": _logaddexp,
    "lerp": lambda op, a, b, weight: a + (b - a) * weight,
    "addcmul": lambda op, x, a, b, value=1: x + a * b * value,
    "addcdiv": lambda op, x, a, b, value=1: x + a / b * value,
    "lt": _compared("less"),
    "le": _compared("less_equal"),
    "gt": _compared("greater"),
    "ge": _compared("greater_equal"),
    "eq": _compared("equal"),
    "ne": _compared("not_equal"),
    "isnan": lambda op, x: x.binary("not_equal", x),
    "logical_not": lambda op, x: 1.0 - truth(x, op),
    "logical_and": lambda op, a, b: truth(a, op) * truth(b, op),
    "logical_or": lambda op, a, b: truth(a, op).binary("maximum", truth(b, op)),
    "logical_xor": lambda op, a, b: truth(a, op).binary("not_equal", truth(b, op)),
    "where": _where,
    "masked_fill": lambda op, x, mask, value: mask.choose(value, x),
    "fill": lambda op, x, value: op.lift(value),
}
