"""ATen's operations over dimensions: sums, norms, softmax, normalisation.

None of them may go over the points of a batch, which `Operation.axes` checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anode.engine.trace.operations import Handler, Operation, truth
from anode.engine.trace.quantity import Quantity


def _sum(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Quantity:
    return x.sum(op.axes(x, dim), keepdim)


def _mean(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Quantity:
    return x.mean(op.axes(x, dim), keepdim)


def _largest(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return x.largest(op.axes(x, dim), keepdim)


def _smallest(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return -(-x).largest(op.axes(x, dim), keepdim)


def _extreme(pairwise: str, reduce: Handler) -> Handler:
    """`torch.max` and `torch.min`, which are three operations each."""

    def handler(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Quantity):
            return x.binary(pairwise, dim)
        return reduce(op, x) if dim is None else (reduce(op, x, dim, keepdim), None)

    return handler


def _any(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return truth(x, op).largest(op.axes(x, dim), keepdim)


def _all(op: Operation, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return 1.0 - (1.0 - truth(x, op)).largest(op.axes(x, dim), keepdim)


def _variance(op: Operation, x: Quantity, dim: Any = None, correction: float | None = 1, keepdim: bool = False) -> Any:
    axes = op.axes(x, dim)
    squares = (x - x.mean(axes, keepdim=True)).unary("square").sum(axes, keepdim)
    return squares / (x.count(axes) - (1.0 if correction is None else correction))


def _norm(
    op: Operation, x: Quantity, order: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    axes = op.axes(x, dim)
    if order == 2:
        return x.unary("square").sum(axes, keepdim).unary("sqrt")
    if order == 1:
        return x.unary("absolute").sum(axes, keepdim)
    if order == math.inf:
        return x.unary("absolute").largest(axes, keepdim)
    raise op.missing()


def _one_by_one(name: str, x: Quantity, axis: int) -> list[Quantity]:
    parts = [x.like(rows) for rows in np.moveaxis(x.rows, axis, 0)]
    for i in range(1, len(parts)):
        parts[i] = parts[i - 1].binary(name, parts[i])
    return parts


def _cumulative(name: str) -> Handler:
    def handler(op: Operation, x: Quantity, dim: int, dtype: Any = None) -> Quantity:
        axes = op.axes(x, dim)
        return x.like(np.stack([part.rows for part in _one_by_one(name, x, axes[0])], axes[0])) if axes else x

    return handler


def _product(op: Operation, x: Quantity, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Quantity:
    axes = op.axes(x, dim)
    if not axes:
        return x
    if dim is None:
        return _one_by_one("multiply", x.like(x.rows.reshape(-1)), 0)[-1]
    last = _one_by_one("multiply", x, axes[0])[-1].rows
    return x.like(np.expand_dims(last, axes[0]) if keepdim else last)


def _softmax(op: Operation, x: Quantity, dim: int, half: bool = False) -> Quantity:
    axes = op.axes(x, dim)
    e = (x - x.largest(axes, keepdim=True)).unary("exp")
    return e / e.sum(axes, keepdim=True)


def _log_softmax(op: Operation, x: Quantity, dim: int, half: bool = False) -> Quantity:
    return x - _logsumexp(op, x, dim, keepdim=True)


def _logsumexp(op: Operation, x: Quantity, dim: Any, keepdim: bool = False) -> Quantity:
    axes = op.axes(x, dim)
    total = (x - x.largest(axes, keepdim=True)).unary("exp").sum(axes, keepdim)
    return total.unary("log") + x.largest(axes, keepdim)


def _layer_norm(op: Operation, x: Quantity, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    axes = op.axes(x, [i - len(shape) for i in range(len(shape))])
    mean = x.mean(axes, keepdim=True)
    away = x - mean
    scale = (away.unary("square").mean(axes, keepdim=True) + eps).unary("rsqrt")
    result = away * scale
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, scale


def _group_norm(
    op: Operation, x: Quantity, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int, eps: float
) -> Any:
    if x.batch not in (None, 0):
        raise op.mixes()
    parts = x.like(x.rows.reshape(x.shape[0], groups, -1))
    normal, mean, scale = _layer_norm(op, parts, [parts.shape[2]], None, None, eps)
    result = x.like(normal.rows.reshape(x.shape))
    per_channel = (channels,) + (1,) * (len(x.shape) - 2)
    result = result if weight is None else result * x.like(weight.rows.reshape(per_channel))
    result = result if bias is None else result + x.like(bias.rows.reshape(per_channel))
    return result, x.like(mean.rows[..., 0]), x.like(scale.rows[..., 0])


def _cross(op: Operation, a: Quantity, b: Quantity, dim: int = -1) -> Quantity:
    (axis,) = op.axes(a, dim)
    op.axes(b, dim)

    def turned(x: Quantity, shift: int) -> Quantity:
        return x.like(np.roll(x.rows, shift, axis))

    return turned(a, -1) * turned(b, 1) - turned(a, 1) * turned(b, -1)


REDUCTIONS: dict[str, Handler] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _largest,
    "amin": _smallest,
    "max": _extreme("maximum", _largest),
    "min": _extreme("minimum", _smallest),
    "any": _any,
    "all": _all,
    "var": _variance,
    "std": lambda op, x, *args, **kwargs: _variance(op, x, *args, **kwargs).unary("sqrt"),
    "var_mean": lambda op, x, dim=None, correction=1, keepdim=False: (
        _variance(op, x, dim, correction, keepdim),
        _mean(op, x, dim, keepdim),
    ),
    "linalg_vector_norm": _norm,
    "prod": _product,
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("multiply"),
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "linalg_cross": _cross,
}
