"""ATen's backward operations over a program's rows, for right-hand sides that differentiate inside."""

from __future__ import annotations

import math
from typing import Any

import torch

from anode.engine.trace.operations import AtenOp, Handler
from anode.engine.trace.quantity import Quantity


def _silu(op: AtenOp, g: Quantity, x: Quantity) -> Quantity:
    s = x.unary("sigmoid")
    return g * (s * (1.0 + x * (1.0 - s)))


def _gelu(op: AtenOp, g: Quantity, x: Quantity, approximate: str = "none") -> Quantity:
    if approximate == "none":
        density = (x.unary("square") * -0.5).unary("exp") * (1 / math.sqrt(2 * math.pi))
        below = ((x * math.sqrt(0.5)).unary("erf") + 1.0) * 0.5
        return g * (below + x * density)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = x.unary("square")
    s = (x * (square * cubic + 1.0) * scale).unary("tanh")
    inner = (square * (3 * cubic) + 1.0) * scale
    return g * ((s + 1.0) * 0.5 + x * (1.0 - s * s) * inner * 0.5)


def _softplus(op: AtenOp, g: Quantity, x: Quantity, beta: float, threshold: float) -> Quantity:
    scaled = x * beta
    return scaled.binary("greater", threshold).choose(g, g * scaled.unary("sigmoid"))


def _elu(
    op: AtenOp, g: Quantity, alpha: float, scale: float, input_scale: float, is_result: bool, x: Quantity
) -> Quantity:
    if is_result:
        below = g * input_scale * (x + alpha * scale)
    else:
        below = g * (input_scale * alpha * scale) * (x.binary("minimum", 0.0) * input_scale).unary("exp")
    return x.binary("less_equal", 0.0).choose(below, g * scale)


def _mish(op: AtenOp, g: Quantity, x: Quantity) -> Quantity:
    tanh = x.unary("softplus", 1.0, 20.0).unary("tanh")
    return g * (tanh + x * x.unary("sigmoid") * (1.0 - tanh * tanh))


def _hardtanh(op: AtenOp, g: Quantity, x: Quantity, low: float, high: float) -> Quantity:
    return (x.binary("greater", low) * x.binary("less", high)).choose(g, 0.0)


def _hardswish(op: AtenOp, g: Quantity, x: Quantity) -> Quantity:
    inside = x.binary("less", 3.0).choose(g * (x * (1 / 3) + 0.5), g)
    return x.binary("greater", -3.0).choose(inside, 0.0)


def _prelu(op: AtenOp, g: Quantity, x: Quantity, weight: Quantity) -> tuple[Quantity, Quantity]:
    above = x.binary("greater", 0.0)
    return above.choose(g, g * weight), above.choose(0.0, g * x)


def _softmax(op: AtenOp, g: Quantity, result: Quantity, dim: int, dtype: torch.dtype) -> Quantity:
    axes = op.axes(result, dim)
    return result * (g - (g * result).sum(axes, keepdim=True))


def _log_softmax(op: AtenOp, g: Quantity, result: Quantity, dim: int, dtype: torch.dtype) -> Quantity:
    return g - result.unary("exp") * g.sum(op.axes(result, dim), keepdim=True)


def _layer_norm(
    op: AtenOp, g: Quantity, x: Quantity, shape: Any, mean: Quantity, scale: Quantity, weight: Any, *rest: Any
) -> tuple[Quantity, None, None]:
    axes = op.axes(x, [i - len(shape) for i in range(len(shape))])
    normal = (x - mean) * scale
    g = g if weight is None else g * weight
    away = g - g.mean(axes, keepdim=True) - normal * (g * normal).mean(axes, keepdim=True)
    return away * scale, None, None


PULLBACKS: dict[str, Handler] = {
    "tanh_backward": lambda op, g, result: g.binary("tanh_pull", result),
    "sigmoid_backward": lambda op, g, result: g.binary("sigmoid_pull", result),
    "threshold_backward": lambda op, g, x, bound: x.binary("greater", bound).choose(g, 0.0),
    "leaky_relu_backward": lambda op, g, x, slope, is_result: x.binary("greater", 0.0).choose(g, g * slope),
    "log_sigmoid_backward": lambda op, g, x, buffer: g * (-x).unary("sigmoid"),
    "silu_backward": _silu,
    "gelu_backward": _gelu,
    "softplus_backward": _softplus,
    "elu_backward": _elu,
    "mish_backward": _mish,
    "hardtanh_backward": _hardtanh,
    "hardsigmoid_backward": lambda op, g, x: _hardtanh(op, g * (1 / 6), x, -3.0, 3.0),
    "hardswish_backward": _hardswish,
    "_prelu_kernel_backward": _prelu,
    "_softmax_backward_data": _softmax,
    "_log_softmax_backward_data": _log_softmax,
    "native_layer_norm_backward": _layer_norm,
}
