"""ATen's operations over dimensions: sums, norms, softmax, normalisation.

None of them may reduce over the points of a batch. `AtenOp.axes` checks this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anode.engine.trace.functions import logaddexp
from anode.engine.trace.operations import AtenOp, Handler, truth
from anode.engine.trace.quantity import Quantity

Combine = Callable[[Quantity, Quantity], Quantity]


def _sum(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Quantity:
    return x.sum(op.axes(x, dim), keepdim)


def _mean(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Quantity:
    return x.mean(op.axes(x, dim), keepdim)


def _largest(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return x.largest(op.axes(x, dim), keepdim)


def _smallest(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return -(-x).largest(op.axes(x, dim), keepdim)


def _extreme(pairwise: str, reduce: Handler, order: str) -> Handler:
    """Translate `torch.max` and `torch.min`, which are three operations each."""

    def first(best: Quantity, x: Quantity) -> Quantity:
        """Return the better value, or the first of equals, which alone receives gradients. NaN beats everything."""
        keep = best.binary("not_equal", best).binary("maximum", x.binary(order, best))
        return keep.choose(best, x)

    def handler(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Quantity):
            return x.binary(pairwise, dim)
        return reduce(op, x) if dim is None else (_reduced(op, first, x, dim, keepdim), None)

    return handler


def _reduced(op: AtenOp, combine: Combine, x: Quantity, dim: int, keepdim: bool) -> Quantity:
    """Combine the elements along a dimension, one after the other."""
    axes = op.axes(x, dim)
    if not axes:
        return x
    last = _one_by_one(combine, x, axes[0])[-1].rows
    return x.like(np.expand_dims(last, axes[0]) if keepdim else last)


def _any(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return truth(x, op).largest(op.axes(x, dim), keepdim)


def _all(op: AtenOp, x: Quantity, dim: Any = None, keepdim: bool = False) -> Quantity:
    return 1.0 - (1.0 - truth(x, op)).largest(op.axes(x, dim), keepdim)


def _variance(op: AtenOp, x: Quantity, dim: Any = None, correction: float | None = 1, keepdim: bool = False) -> Any:
    axes = op.axes(x, dim)
    squares = (x - x.mean(axes, keepdim=True)).unary("square").sum(axes, keepdim)
    return squares / (x.count(axes) - (1.0 if correction is None else correction))


def _root(x: Quantity) -> Quantity:
    """Return the square root with derivative 0 at 0, as in torch's norms and standard deviations."""
    zero = x.binary("equal", 0.0)
    return zero.choose(0.0, zero.choose(1.0, x).unary("sqrt"))


def _norm(
    op: AtenOp, x: Quantity, order: float | None = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Quantity:
    axes, size = op.axes(x, dim), x.unary("absolute")
    if order in (None, 2):
        return _root(x.unary("square").sum(axes, keepdim))
    if order == 1:
        return size.sum(axes, keepdim)
    if order == math.inf:
        return size.largest(axes, keepdim)
    if order < 1:  # the derivative is infinite wherever an element is 0
        raise op.missing()
    total = size.binary("power", float(order)).sum(axes, keepdim)
    zero = total.binary("equal", 0.0)
    return zero.choose(0.0, zero.choose(1.0, total).binary("power", 1.0 / order))


def _one_by_one(combine: Combine, x: Quantity, axis: int) -> list[Quantity]:
    parts = [x.like(rows) for rows in np.moveaxis(x.rows, axis, 0)]
    for i in range(1, len(parts)):
        parts[i] = combine(parts[i - 1], parts[i])
    return parts


def _cumulative(combine: Combine) -> Handler:
    def handler(op: AtenOp, x: Quantity, dim: int, dtype: Any = None) -> Quantity:
        axes = op.axes(x, dim)
        return x.like(np.stack([part.rows for part in _one_by_one(combine, x, axes[0])], axes[0])) if axes else x

    return handler


def _product(op: AtenOp, x: Quantity, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Quantity:
    if dim is None:
        op.axes(x, None)
        x, dim = x.like(x.rows.reshape(-1)), 0
    return _reduced(op, Quantity.__mul__, x, dim, keepdim)


def _softmax(op: AtenOp, x: Quantity, dim: int, half: bool = False) -> Quantity:
    axes = op.axes(x, dim)
    e = (x - x.largest(axes, keepdim=True)).unary("exp")
    return e / e.sum(axes, keepdim=True)


def safe_softmax(op: AtenOp, x: Quantity, dim: int, dtype: Any = None) -> Quantity:
    """Return the softmax, or 0 where -inf masks everything."""
    axes = op.axes(x, dim)
    largest = x.largest(axes, keepdim=True)
    e = (x - largest.binary("equal", -math.inf).choose(0.0, largest)).unary("exp")
    total = e.sum(axes, keepdim=True)
    return e / total.binary("equal", 0.0).choose(1.0, total)


def _log_softmax(op: AtenOp, x: Quantity, dim: int, half: bool = False) -> Quantity:
    return x - _logsumexp(op, x, dim, keepdim=True)


def _logsumexp(op: AtenOp, x: Quantity, dim: Any, keepdim: bool = False) -> Quantity:
    axes = op.axes(x, dim)
    total = (x - x.largest(axes, keepdim=True)).unary("exp").sum(axes, keepdim)
    return total.unary("log") + x.largest(axes, keepdim)


def _layer_norm(op: AtenOp, x: Quantity, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    axes = op.axes(x, [i - len(shape) for i in range(len(shape))])
    mean = x.mean(axes, keepdim=True)
    away = x - mean
    scale = (away.unary("square").mean(axes, keepdim=True) + eps).unary("rsqrt")
    result = away * scale
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, scale


def _group_norm(
    op: AtenOp, x: Quantity, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int, eps: float
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


def _batch_norm(
    op: AtenOp,
    x: Quantity,
    weight: Quantity | None,
    bias: Quantity | None,
    mean: Quantity | None,
    variance: Quantity | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalise with given statistics, or per channel. Instance norm has one channel per point."""

    def spread(y: Quantity) -> Quantity:
        return x.like(y.rows.reshape(-1, *[1] * (len(x.shape) - 2)))

    if training or mean is None or variance is None:
        axes = op.axes(x, [axis for axis in range(len(x.shape)) if axis != 1])
        center = x.mean(axes, keepdim=True)
        away = x - center
        scale = (away.unary("square").mean(axes, keepdim=True) + eps).unary("rsqrt")
    else:
        away, scale = x - spread(mean), (spread(variance) + eps).unary("rsqrt")
    result = away * (scale if weight is None else scale * spread(weight))
    return result if bias is None else result + spread(bias), None, None


def _cross(op: AtenOp, a: Quantity, b: Quantity, dim: int = -1) -> Quantity:
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
    "max": _extreme("maximum", _largest, "less_equal"),
    "min": _extreme("minimum", _smallest, "greater_equal"),
    "aminmax": lambda op, x, dim=None, keepdim=False: (_smallest(op, x, dim, keepdim), _largest(op, x, dim, keepdim)),
    "any": _any,
    "all": _all,
    "var": _variance,
    "std": lambda op, x, *args, **kwargs: _root(_variance(op, x, *args, **kwargs)),
    "var_mean": lambda op, x, dim=None, correction=1, keepdim=False: (
        _variance(op, x, dim, correction, keepdim),
        _mean(op, x, dim, keepdim),
    ),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "prod": _product,
    "cumsum": _cumulative(Quantity.__add__),
    "logcumsumexp": _cumulative(logaddexp),
    "cumprod": _cumulative(Quantity.__mul__),
    "_softmax": _softmax,
    "_safe_softmax": safe_softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "native_layer_norm": _layer_norm,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "linalg_cross": _cross,
}
