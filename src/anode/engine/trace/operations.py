"""ATen's elementwise operations as formulas over a program's rows.

Every entry of `OPERATIONS` takes an `AtenOp` and the arguments of the ATen operation, with a `Quantity` for each
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
from anode.engine.trace.events import Untraceable
from anode.engine.trace.quantity import Quantity

Number = float | Quantity
Handler = Callable[..., Any]


@dataclass(frozen=True)
class AtenOp:
    """The ATen operation that is being translated.

    Attributes:
        builder: The builder that receives its formula.
        label: Its name, for messages.
    """

    builder: Builder
    label: str

    def mixes(self) -> Untraceable:
        """Return the error for an operation that computes across points."""
        return Untraceable(f"f mixes the points of a batch ({self.label})")

    def missing(self) -> Untraceable:
        """Return the error for an operation that cannot be translated."""
        return Untraceable(f"{self.label} is not among the operations that the engine has")

    def lift(self, x: Number) -> Quantity:
        """Return a number as a quantity."""
        return x if isinstance(x, Quantity) else Quantity(self.builder, self.builder.numbers(float(x)))

    def axes(self, x: Quantity, dim: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the dimensions to reduce over, counted from 0; all if none are given. Refuse the batch dimension."""
        dims = (dim,) if isinstance(dim, int) else tuple(dim or ()) or tuple(range(len(x.shape)))
        axes = tuple(d % max(1, len(x.shape)) for d in dims) if x.shape else ()
        if x.batch is not None and x.batch in axes:
            raise self.mixes()
        return axes


def unary(name: str) -> Handler:
    """Return the formula of a function that the engine has."""
    return lambda op, x: x.unary(name)


def _compared(name: str) -> Handler:
    return lambda op, a, b: op.lift(a).binary(name, b)


def _add(op: AtenOp, a: Number, b: Number, alpha: float = 1) -> Quantity:
    return op.lift(a) + op.lift(b) * alpha


def _subtract(op: AtenOp, a: Number, b: Number, alpha: float = 1) -> Quantity:
    return op.lift(a) - op.lift(b) * alpha


def _divide(op: AtenOp, a: Number, b: Number, rounding_mode: str | None = None) -> Quantity:
    if rounding_mode is not None:
        raise op.missing()
    return op.lift(a) / b


def _power(op: AtenOp, x: Number, exponent: Number) -> Quantity:
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


def _scalar_power(op: AtenOp, base: Number, exponent: Quantity) -> Quantity:
    if not isinstance(base, Quantity) and base > 0:
        return (exponent * math.log(base)).unary("exp")
    return op.lift(base).binary("power", exponent)


def _pow(op: AtenOp, x: Number, exponent: Number) -> Quantity:
    if isinstance(exponent, Quantity) and not isinstance(x, Quantity):
        return _scalar_power(op, x, exponent)
    return _power(op, x, exponent)


def _fixed_power(x: Quantity, exponent: float) -> Quantity:
    """Compute small powers by multiplication, and others by the general function."""
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


def clamp(op: AtenOp, x: Quantity, low: Number | None = None, high: Number | None = None, **names: Any) -> Quantity:
    """Clamp numbers to bounds, either of which may be missing. Gradients pass at the bounds, as in torch."""
    low, high = names.get("min", low), names.get("max", high)
    x = x if low is None else x.binary("less", low).choose(low, x)
    return x if high is None else x.binary("greater", high).choose(high, x)


def hardtanh(op: AtenOp, x: Quantity, low: float = -1.0, high: float = 1.0) -> Quantity:
    """The same with gradients that end at the bounds, as in torch."""
    return x.binary("greater_equal", high).choose(high, x.binary("less_equal", low).choose(low, x))


def _chosen(a: Quantity, b: Quantity, order: str) -> Quantity:
    """Return the value that comes first, or the other one where one is NaN. Gradients reach only the chosen value."""
    return a.binary(order, b).binary("maximum", b.binary("not_equal", b)).choose(a, b)


def truth(x: Number, op: AtenOp) -> Quantity:
    """Return 1 for what counts as true, and 0 elsewhere."""
    x = op.lift(x)
    return x if x.dtype == torch.bool else x.binary("not_equal", 0.0)


def _where(op: AtenOp, condition: Quantity, yes: Number, no: Number) -> Quantity:
    return condition.choose(yes, no)


OPERATIONS: dict[str, Handler] = {
    **{name: unary(name) for name in ["sqrt", "rsqrt", "reciprocal", "square", "sign"]},
    "neg": unary("negate"),
    "abs": unary("absolute"),
    "sgn": unary("sign"),
    "positive": lambda op, x: x,
    "add": _add,
    "sub": _subtract,
    "rsub": lambda op, a, b, alpha=1: _subtract(op, b, a, alpha),
    "mul": lambda op, a, b: op.lift(a) * b,
    "div": _divide,
    "pow": _pow,
    "maximum": _compared("maximum"),
    "minimum": _compared("minimum"),
    "fmax": lambda op, a, b: _chosen(a, b, "greater_equal"),
    "fmin": lambda op, a, b: _chosen(a, b, "less_equal"),
    "clamp": clamp,
    "clamp_min": lambda op, x, low: clamp(op, x, low),
    "clamp_max": lambda op, x, high: clamp(op, x, None, high),
    "lerp": lambda op, a, b, weight: a + (b - a) * weight,
    "addcmul": lambda op, x, a, b, value=1: x + a * b * value,
    "addcdiv": lambda op, x, a, b, value=1: x + a / b * value,
    "lt": _compared("less"),
    "le": _compared("less_equal"),
    "gt": _compared("greater"),
    "ge": _compared("greater_equal"),
    "eq": _compared("equal"),
    "ne": _compared("not_equal"),
    "heaviside": lambda op, x, at_zero: x.binary("equal", 0.0).choose(at_zero, x.binary("greater", 0.0)),
    "isnan": lambda op, x: x.binary("not_equal", x),
    "logical_not": lambda op, x: 1.0 - truth(x, op),
    "logical_and": lambda op, a, b: truth(a, op) * truth(b, op),
    "logical_or": lambda op, a, b: truth(a, op).binary("maximum", truth(b, op)),
    "logical_xor": lambda op, a, b: truth(a, op).binary("not_equal", truth(b, op)),
    "where": _where,
    "masked_fill": lambda op, x, mask, value: mask.choose(value, x),
    "fill": lambda op, x, value: op.lift(value),
}
