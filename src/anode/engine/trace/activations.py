"""ATen's activations as formulas over a program's rows."""

from __future__ import annotations

import numpy as np

from anode.engine.trace.operations import AtenOp, Handler, hardtanh, unary
from anode.engine.trace.quantity import Quantity


def _elu(op: AtenOp, x: Quantity, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Quantity:
    if input_scale == 1:
        return x.unary("elu", alpha) * scale
    above = x.binary("greater", 0.0)
    return above.choose(x, (above.choose(0.0, x) * input_scale).unary("expm1") * alpha) * scale


def _softplus(op: AtenOp, x: Quantity, beta: float = 1, threshold: float = 20) -> Quantity:
    return x.unary("softplus", beta, threshold)


def _log_sigmoid(op: AtenOp, x: Quantity) -> tuple[Quantity, Quantity]:
    decay = (-x.unary("absolute")).unary("exp")  # torch keeps it for the backward pass
    return x.binary("minimum", 0.0) - decay.unary("log1p"), decay


def _gelu(op: AtenOp, x: Quantity, approximate: str = "none") -> Quantity:
    return x.unary("gelu" if approximate == "none" else "gelu_tanh")


def _glu(op: AtenOp, x: Quantity, dim: int = -1) -> Quantity:
    (axis,) = op.axes(x, dim)
    first, second = np.split(x.rows, 2, axis)
    return x.like(first) * x.like(second).unary("sigmoid")


def _hard_swish(op: AtenOp, x: Quantity) -> Quantity:
    inside = x.binary("less_equal", -3.0).choose(0.0, x * (x + 3.0) * (1 / 6))
    return x.binary("greater_equal", 3.0).choose(x, inside)


def _soft_shrink(op: AtenOp, x: Quantity, bound: float = 0.5) -> Quantity:
    return x.binary("greater", bound).choose(x - bound, x.binary("less", -bound).choose(x + bound, 0.0))


ACTIVATIONS: dict[str, Handler] = {
    **{name: unary(name) for name in ["relu", "tanh", "sigmoid", "silu"]},
    "softplus": _softplus,
    "log_sigmoid_forward": _log_sigmoid,
    "gelu": _gelu,
    "elu": _elu,
    "celu": lambda op, x, alpha=1.0: _elu(op, x, alpha, 1.0, 1.0 / alpha),
    "selu": lambda op, x: _elu(op, x, 1.6732632423543772, 1.0507009873554805),
    "leaky_relu": lambda op, x, slope=0.01: x.unary("leaky_relu", slope),
    "_prelu_kernel": lambda op, x, weight: x.binary("greater", 0.0).choose(x, x * weight),
    "mish": lambda op, x: x * x.unary("softplus", 1.0, 20.0).unary("tanh"),
    "hardtanh": hardtanh,
    "hardsigmoid": lambda op, x: hardtanh(op, x + 3.0, 0.0, 6.0) * (1 / 6),
    "hardswish": _hard_swish,
    "threshold": lambda op, x, bound, value: x.binary("greater", bound).choose(x, value),
    "glu": _glu,
    "softshrink": _soft_shrink,
    "hardshrink": lambda op, x, bound=0.5: x.unary("absolute").binary("less_equal", bound).choose(0.0, x),
}
