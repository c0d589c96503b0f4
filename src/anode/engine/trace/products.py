"""ATen's matrix products over a program's rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from anode.engine.trace.operations import AtenOp, Handler
from anode.engine.trace.quantity import Quantity
from anode.engine.trace.record import EXACT_ATTENTION
from anode.engine.trace.reductions import safe_softmax


def _turned(x: Quantity) -> Quantity:
    """Return the transposed matrices."""
    batch = x.batch
    if batch is not None and batch >= len(x.shape) - 2:
        batch = 2 * len(x.shape) - 3 - batch
    return Quantity(x.builder, np.swapaxes(x.rows, -1, -2), batch, x.dtype)


def _multiplied(op: AtenOp, a: Quantity, b: Quantity, bias: Quantity | None = None) -> Quantity:
    """Multiply matrices ``[..., i, k]`` and ``[..., k, j]`` with the same leading dimensions."""
    if a.batch == len(a.shape) - 1 or b.batch == len(b.shape) - 2:
        raise op.mixes()
    if b.fixed:
        return _by_fixed(a, b, bias)
    if a.fixed:
        product = _turned(_by_fixed(_turned(b), _turned(a), None))
    else:
        product = (a.like(a.rows[..., None]) * b.like(b.rows[..., None, :, :])).sum((len(a.shape) - 1,))
    return product if bias is None else product + bias


def _by_fixed(a: Quantity, b: Quantity, bias: Quantity | None) -> Quantity:
    """Multiply by matrices of constants and elements of captured tensors."""
    extra = None if bias is None else bias.rows
    if b.rows.ndim == 2:
        return a.like(a.builder.linear(a.rows, b.rows.T, extra))
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(lead)
    left = np.broadcast_to(a.rows, lead + a.shape[-2:]).reshape(count, *a.shape[-2:])
    right = np.broadcast_to(b.rows, lead + b.shape[-2:]).reshape(count, *b.shape[-2:])
    parts = [a.builder.linear(x, w.T, extra) for x, w in zip(left, right, strict=True)]
    return a.like(np.stack(parts).reshape(*lead, a.shape[-2], b.shape[-1]))


def _matmul(op: AtenOp, a: Quantity, b: Quantity) -> Quantity:
    return _multiplied(op, a, b)


def _add_product(op: AtenOp, x: Quantity, a: Quantity, b: Quantity, beta: float = 1, alpha: float = 1) -> Quantity:
    plain = beta == 1 and alpha == 1
    if plain and b.fixed and x.fixed and x.shape == (b.shape[-1],):
        return _multiplied(op, a, b, x)
    product = _multiplied(op, a, b) * alpha
    return product if beta == 0 else product + x * beta


def _vector(x: Quantity) -> Quantity:
    """Return a vector as a matrix with one column."""
    return Quantity(x.builder, x.rows[:, None], x.batch, x.dtype)


def _matrix_vector(op: AtenOp, a: Quantity, b: Quantity) -> Quantity:
    return a.like(_multiplied(op, a, _vector(b)).rows[:, 0])


def _dot(op: AtenOp, a: Quantity, b: Quantity) -> Quantity:
    op.axes(b, 0)
    return (a * b).sum(op.axes(a, 0))


def _linear(op: AtenOp, x: Quantity, weight: Quantity, bias: Quantity | None = None) -> Quantity:
    return _multiplied(op, x, _turned(weight), bias)


def _add_matrix_vector(op: AtenOp, x: Quantity, a: Quantity, b: Quantity, **scales: Any) -> Quantity:
    return _matrix_vector(op, a, b) * scales.get("alpha", 1) + x * scales.get("beta", 1)


def _add_outer(op: AtenOp, x: Quantity, a: Quantity, b: Quantity, **scales: Any) -> Quantity:
    return _vector(a) * b * scales.get("alpha", 1) + x * scales.get("beta", 1)


def _bilinear(
    op: AtenOp, a: Quantity, weight: Quantity, b: Quantity, one: Any, two: Any, three: Any, over: Any, *rest: Any
) -> Quantity:
    """Compute `nn.Bilinear`: a [n, i], weight [o, i, j] and b [n, j] give [n, o]."""
    if (list(one), list(two), list(three), list(over)) != ([1, 3], [0], [1, 2], [2, 3]) or not weight.fixed:
        raise op.missing()
    outputs, width, _ = weight.shape
    op.axes(a, 1)
    op.axes(b, 1)
    products = b.builder.linear(b.rows, weight.rows.reshape(outputs * width, -1))
    return (a.like(a.rows[:, None, :]) * a.like(products.reshape(-1, outputs, width))).sum((2,))


def _attention(
    op: AtenOp,
    query: Quantity,
    key: Quantity,
    value: Quantity,
    dropout: float = 0.0,
    is_causal: bool = False,
    attn_mask: Quantity | None = None,
    scale: float | None = None,
) -> tuple[Quantity, None]:
    """Compute the attention between the tokens [..., tokens, features] of each point."""
    op.axes(query, (-2, -1))
    op.axes(key, (-2, -1))
    scores = _multiplied(op, query, _turned(key)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = np.tri(query.shape[-2], key.shape[-2])
        scores = scores.like(op.builder.numbers(seen)).choose(scores, -math.inf)
    if attn_mask is not None:
        masks = attn_mask.dtype == torch.bool
        scores = attn_mask.choose(scores, -math.inf) if masks else scores + attn_mask
    return _multiplied(op, safe_softmax(op, scores, -1), value), None


PRODUCTS: dict[str, Handler] = {
    "mm": _matmul,
    "bmm": _matmul,
    "matmul": _matmul,
    "addmm": _add_product,
    "baddbmm": _add_product,
    "mv": _matrix_vector,
    "addmv": _add_matrix_vector,
    "addr": _add_outer,
    "dot": _dot,
    "vdot": _dot,
    "linear": _linear,
    "_trilinear": _bilinear,
    EXACT_ATTENTION: _attention,
}
