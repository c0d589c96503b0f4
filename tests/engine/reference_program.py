"""A builder that computes at once, with NumPy in float64: what every compiled program has to agree with."""

import math

import numpy as np
import torch

from anode.engine.trace.tracing import trace

_ERF = np.vectorize(math.erf, otypes=[float])
_ERFC = np.vectorize(math.erfc, otypes=[float])


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x, beta, threshold):
    return np.where(beta * x > threshold, x, np.logaddexp(0, beta * x) / beta)


UNARY = {
    "copy": lambda x, p, q: x,
    "negate": lambda x, p, q: -x,
    "absolute": lambda x, p, q: np.abs(x),
    "sign": lambda x, p, q: np.sign(x),
    "relu": lambda x, p, q: np.maximum(x, 0),
    "tanh": lambda x, p, q: np.tanh(x),
    "sigmoid": lambda x, p, q: sigmoid(x),
    "softplus": softplus,
    "silu": lambda x, p, q: x * sigmoid(x),
    "gelu": lambda x, p, q: 0.5 * x * (1 + _ERF(x / np.sqrt(2))),
    "gelu_tanh": lambda x, p, q: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "elu": lambda x, p, q: np.where(x > 0, x, p * np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x, p, q: np.where(x > 0, x, p * x),
    "rsqrt": lambda x, p, q: 1 / np.sqrt(x),
    "reciprocal": lambda x, p, q: 1 / x,
    "square": lambda x, p, q: x * x,
    "erf": lambda x, p, q: _ERF(x),
    "erfc": lambda x, p, q: _ERFC(x),
    "atan": lambda x, p, q: np.arctan(x),
    **{
        name: (lambda g: lambda x, p, q: g(x))(getattr(np, name))
        for name in ["exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh"]
    },
}
BINARY = {
    **{name: getattr(np, name) for name in ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum"]},
    **{name: getattr(np, name) for name in ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]},
    "tanh_pull": lambda g, value: g * (1 - value**2),
    "sigmoid_pull": lambda g, value: g * value * (1 - value),
}


class Reference:
    """Evaluates while it is built.

    Args:
        points: The states' features, ``[points, features]``.
        t: The time.
        tensors: Values of the captured tensors, in the order in which they are asked for; existing ones are found later
            if this is left out (`Reference` then cannot compute, but shows which tensors are needed).
    """

    def __init__(self, points, t, tensors=()):
        self.points, self.t, self.tensors = points, t, list(tensors)
        self.columns, self.kinds = [], []
        self.asked = []

    def _new(self, columns, kind):
        columns = np.broadcast_to(columns, (*np.shape(columns)[:-1], len(self.points)))
        shape = columns.shape[:-1]
        first = len(self.columns)
        flat = columns.reshape(-1, len(self.points))
        self.columns.extend(flat)
        self.kinds.extend([kind] * len(flat))
        return np.arange(first, first + len(flat)).reshape(shape)

    def _get(self, rows):
        assert rows.size == 0 or (rows.min() >= 0 and rows.max() < len(self.columns))
        return np.array([self.columns[i] for i in rows.reshape(-1)]).reshape(*rows.shape, len(self.points))

    def _kind(self, *rows):
        return max((self.kinds[i] for r in rows for i in np.asarray(r).reshape(-1)), default=0)

    def _made(self, columns, *rows):
        return self._new(np.asarray(columns, dtype=float), max(2, self._kind(*rows)))

    @property
    def rows(self):
        return self.kinds.count(2)

    def state(self, count):
        assert self.points.shape[1] == count
        return self._new(self.points.T, 2)

    def time(self):
        return self._new(np.full(len(self.points), self.t), 2)

    def tensor(self, shape):
        values = self.tensors[len(self.asked)] if self.tensors else np.ones(shape)
        assert tuple(np.shape(values)) == tuple(shape)
        self.asked.append(tuple(shape))
        return self._new(np.asarray(values, dtype=float)[..., None], 1)

    def numbers(self, values):
        return self._new(np.asarray(values, dtype=float)[..., None], 0)

    def moves(self, rows):
        return self._kind(rows) >= 2

    def value(self, rows):
        return self._get(rows)[..., 0] if self._kind(rows) == 0 else None

    def unary(self, name, x, p=0.0, q=0.0):
        return self._made(UNARY[name](self._get(x), p, q), x)

    def binary(self, name, a, b):
        a, b = np.broadcast_arrays(a, b)
        return self._made(BINARY[name](self._get(a), self._get(b)), a, b)

    def where(self, c, a, b):
        c, a, b = np.broadcast_arrays(c, a, b)
        return self._made(np.where(self._get(c) != 0, self._get(a), self._get(b)), c, a, b)

    def linear(self, x, weight, bias=None):
        assert self._kind(weight) <= 1
        assert bias is None or (self._kind(bias) <= 1 and bias.shape == weight.shape[:1])
        result = np.einsum("...mp,nmp->...np", self._get(x), self._get(weight))
        return self._made(result if bias is None else result + self._get(bias), x, weight)

    def sum(self, x, axes):
        assert all(axis >= 0 for axis in axes)
        return self._made(self._get(x).sum(tuple(axes)), x)

    def largest(self, x, axes):
        return self._made(self._get(x).max(tuple(axes)), x)

    def evaluate(self, rows):
        return torch.from_numpy(self._get(rows).T.copy())


def points(features, count=9):
    """Points that are the same on each call, none of them special."""
    return torch.from_numpy(np.random.default_rng(3).normal(0.1, 0.8, (count, features)))


def traced(f, states, batch_dims=1, t=0.83, is_tuple=False):
    """Trace f, and return what was traced with its values at the states."""
    n = len(states[0]) if batch_dims else 1
    sizes = [math.prod(x.shape[batch_dims:]) for x in states]
    flat = np.concatenate([x.detach().double().reshape(n, k).numpy() for x, k in zip(states, sizes, strict=True)], 1)
    start = torch.tensor(0.2, dtype=states[0].dtype)
    shapes = trace(f, states, is_tuple, batch_dims, start, Reference(flat, t))
    tensors = [x.detach().double().numpy() for x in shapes.inputs({})]
    builder = Reference(flat, t, tensors)
    again = trace(f, states, is_tuple, batch_dims, start, builder)
    assert [tuple(x.shape) for x in again.inputs({})] == builder.asked
    parts = builder.evaluate(again.slope).split(sizes, 1)
    return again, tuple(part.reshape(x.shape) for part, x in zip(parts, states, strict=True))


def assert_agrees(f, *states, batch_dims=1, t=0.83):
    """Check that a traced f has the values that torch computes."""
    is_tuple = len(states) > 1
    result, values = traced(f, states, batch_dims, t, is_tuple)
    states = tuple(x.clone().requires_grad_() for x in states)
    with torch.enable_grad():
        expected = f(torch.tensor(t, dtype=states[0].dtype), states if is_tuple else states[0])
    for ours, theirs in zip(values, expected if is_tuple else [expected], strict=True):
        theirs = theirs.detach().double().expand(ours.shape)
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    return result
