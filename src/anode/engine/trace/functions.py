"""ATen's elementary functions as formulas over a program's rows."""

from __future__ import annotations

import math

import torch

from anode.engine.trace.operations import AtenOp, Handler, Number, clamp, unary
from anode.engine.trace.quantity import Quantity

_LN2, _LN10 = math.log(2.0), math.log(10.0)


def logaddexp(a: Quantity, b: Quantity) -> Quantity:
    """Return the logarithm of the sum of two exponentials."""
    apart = a.binary("equal", b).choose(0.0, a - b)  # which equal infinities are not
    return a.binary("maximum", b) + (-apart.unary("absolute")).unary("exp").unary("log1p")


def _arcsine(op: AtenOp, x: Quantity) -> Quantity:
    return (x / ((1.0 - x) * (1.0 + x)).unary("sqrt")).unary("atan")


def _arccosine(op: AtenOp, x: Quantity) -> Quantity:
    return ((1.0 - x) / (1.0 + x)).unary("sqrt").unary("atan") * 2.0


def _area_sine(op: AtenOp, x: Quantity) -> Quantity:
    below = x.binary("less", 0.0)
    size = below.choose(-x, x)
    square = size.unary("square")
    area = (size + square / ((square + 1.0).unary("sqrt") + 1.0)).unary("log1p")
    return below.choose(-area, area)


def _area_cosine(op: AtenOp, x: Quantity) -> Quantity:
    above = x - 1.0
    return (above + (above * (above + 2.0)).unary("sqrt")).unary("log1p")


def _area_tangent(op: AtenOp, x: Quantity) -> Quantity:
    return (x.unary("log1p") - (-x).unary("log1p")) * 0.5


def _is_negative(op: AtenOp, x: Quantity) -> Quantity:
    """Return 1 for negative numbers and -0.0, and 0 elsewhere."""
    return x.binary("less", 0.0).binary("maximum", x.unary("reciprocal").binary("less", 0.0))


def _copysign(op: AtenOp, x: Number, sign: Number) -> Quantity:
    size = op.lift(x).unary("absolute")
    return _is_negative(op, op.lift(sign)).choose(-size, size)


def _angle(op: AtenOp, y: Quantity, x: Quantity) -> Quantity:
    """Compute `torch.atan2`. The quotient divides the smaller value by the larger; at the origin it is 0 / 1."""
    steep = y.unary("absolute").binary("greater", x.unary("absolute"))
    origin = x.binary("equal", 0.0) * y.binary("equal", 0.0)
    above, below = steep.choose(-x, y), steep.choose(y, x)
    part = (origin.choose(0.0, above) / origin.choose(1.0, below)).unary("atan")
    turn = steep.choose(math.pi / 2, _is_negative(op, x).choose(math.pi, 0.0))
    return part + _is_negative(op, y).choose(-turn, turn)


def _logit(op: AtenOp, x: Quantity, eps: float | None = None) -> Quantity:
    x = x if eps is None else clamp(op, x, eps, 1.0 - eps)
    return (x / (1.0 - x)).unary("log")


def _sinc(op: AtenOp, x: Quantity) -> Quantity:
    zero = x.binary("equal", 0.0)
    angle = zero.choose(1.0, x * math.pi)
    return zero.choose(1.0, angle.unary("sin") / angle)


def _times_log(op: AtenOp, x: Number, y: Number) -> Quantity:
    """Compute `torch.xlogy`: 0 where x is 0, even if the logarithm is infinite."""
    x, y = op.lift(x), op.lift(y)
    return x * (x.binary("equal", 0.0) * y.binary("less_equal", 0.0)).choose(1.0, y).unary("log")


def _times_log1p(op: AtenOp, x: Number, y: Number) -> Quantity:
    x, y = op.lift(x), op.lift(y)
    return x * (x.binary("equal", 0.0) * y.binary("less_equal", -1.0)).choose(0.0, y).unary("log1p")


def _entropy(op: AtenOp, x: Quantity) -> Quantity:
    """`torch.special.entr`: -x log x, whose derivative at 0 is not finite."""
    return x.binary("less", 0.0).choose(-math.inf, x.binary("equal", 0.0).choose(0.0, -x * x.unary("log")))


def _finite(
    op: AtenOp, x: Quantity, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Quantity:
    limits = torch.finfo(x.dtype or torch.float64)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    bounded = x.binary("equal", math.inf).choose(high, x.binary("equal", -math.inf).choose(low, x))
    return x.binary("equal", x).choose(bounded, nan or 0.0)


FUNCTIONS: dict[str, Handler] = {
    **{name: unary(name) for name in ["exp", "expm1", "log", "log1p", "sin", "cos", "tan", "erf", "erfc"]},
    **{name: unary(name) for name in ["sinh", "cosh", "atan"]},
    "log2": lambda op, x: x.unary("log") * (1 / _LN2),
    "log10": lambda op, x: x.unary("log") * (1 / _LN10),
    "exp2": lambda op, x: (x * _LN2).unary("exp"),
    "hypot": lambda op, a, b: (a.unary("square") + b.unary("square")).unary("sqrt"),
    "logaddexp": lambda op, a, b: logaddexp(a, b),
    "asin": _arcsine,
    "acos": _arccosine,
    "asinh": _area_sine,
    "acosh": _area_cosine,
    "atanh": _area_tangent,
    "atan2": _angle,
    "deg2rad": lambda op, x: x * (math.pi / 180),
    "rad2deg": lambda op, x: x * (180 / math.pi),
    "signbit": _is_negative,
    "copysign": _copysign,
    "logit": _logit,
    "sinc": _sinc,
    "xlogy": _times_log,
    "special_xlog1py": _times_log1p,
    "special_entr": _entropy,
    "nan_to_num": _finite,
    "ldexp": lambda op, x, power: x * (power * _LN2).unary("exp"),
}
