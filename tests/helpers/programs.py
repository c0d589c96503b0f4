"""Programs beside the same computations by torch."""

import numpy as np
import torch

import anode
from anode.engine import native
from anode.engine.compiled import Compiled
from anode.engine.program.program import Builder
from anode.ode.packing import Packing

UNARY = {
    "copy": lambda x: x,
    "negate": torch.neg,
    "absolute": torch.abs,
    "sign": torch.sign,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "exp": torch.exp,
    "sin": torch.sin,
    "cos": torch.cos,
    "square": torch.square,
    "atan": torch.atan,
}


def pull(slope):
    return lambda g, v: g * slope(v)


TORCH_BINARY = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "power": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "relu_pull": lambda g, v: torch.where(v > 0, g, 0.0),
    "tanh_pull": pull(lambda v: 1 - v * v),
    "sigmoid_pull": pull(lambda v: v * (1 - v)),
    "tanh_bend": pull(lambda v: -2 * v),
    "sigmoid_bend": pull(lambda v: 1 - 2 * v),
}
"""Every binary operation of the engine, by torch."""

LEFT_OUT = {"less_equal", "greater", "equal", "not_equal", "relu_pull", "tanh_bend", "sigmoid_bend"}
BINARY = {name: operation for name, operation in TORCH_BINARY.items() if name not in LEFT_OUT}
"""The operations of random programs."""


class TorchBuilder:
    """A :class:`Builder` that computes at once, with torch: a name is the place of a tensor [points] in a list.

    Args:
        t: The time.
        y: The state, [points, dim].
        tensors: What :meth:`tensor` hands out, in order.
    """

    def __init__(self, t, y, tensors):
        self.values = [torch.as_tensor(t, dtype=y.dtype).expand(len(y)), *y.T]
        self.dim, self.like, self.tensors = y.shape[1], y, iter(tensors)

    def put(self, values):
        self.values.extend(values)
        return np.arange(len(self.values) - len(values), len(self.values))

    def get(self, names):
        return torch.stack([self.values[i] for i in np.asarray(names).reshape(-1).tolist()])

    def state(self, count):
        return np.arange(1, count + 1)

    def time(self):
        return np.array(0)

    def tensor(self, shape):
        elements = next(self.tensors).reshape(-1)
        return self.put([x.expand(len(self.like)) for x in elements]).reshape(shape)

    def numbers(self, values):
        array = np.asarray(values, dtype=np.float64)
        return self.put([self.like.new_full((len(self.like),), x) for x in array.reshape(-1)]).reshape(array.shape)

    def unary(self, name, x, p=0.0, q=0.0):
        return self.put(list(UNARY[name](self.get(x)))).reshape(x.shape)

    def binary(self, name, a, b):
        a, b = np.broadcast_arrays(a, b)
        return self.put(list(BINARY[name](self.get(a), self.get(b)).to(self.like))).reshape(a.shape)

    def where(self, c, a, b):
        c, a, b = np.broadcast_arrays(c, a, b)
        return self.put(list(torch.where(self.get(c) != 0, self.get(a), self.get(b)))).reshape(a.shape)

    def linear(self, x, weight, bias=None):
        flat = x.reshape(-1, x.shape[-1])
        made = []
        for row in flat:
            w = self.get(weight).reshape(*weight.shape, -1)
            out = (w * self.get(row)).sum(1)
            made.append(self.put(list(out if bias is None else out + self.get(bias))))
        return np.stack(made).reshape(*x.shape[:-1], len(weight))

    def sum(self, x, axes):
        return self._reduced(x, axes, lambda values: values.sum(0))

    def largest(self, x, axes):
        return self._reduced(x, axes, lambda values: values.amax(0))

    def _reduced(self, x, axes, how):
        kept = [axis for axis in range(x.ndim) if axis not in {a % x.ndim for a in axes}]
        shape = [x.shape[axis] for axis in kept]
        groups = x.transpose([*kept, *(a for a in range(x.ndim) if a not in kept)]).reshape(int(np.prod(shape)), -1)
        return self.put([how(self.get(group)) for group in groups]).reshape(shape)


def by_torch(build, t, y, tensors):
    """The slope of a field that ``build(builder)`` puts together."""
    builder = TorchBuilder(t, y, tensors)
    return builder.get(build(builder)).T


def plan_of(y, span, **settings):
    """What a solve from y over a span has to do, in one step if its method needs to be told."""
    knots = [(t, i) for i, t in enumerate(span)] if "step_size" in settings else None
    return anode.Solver(**settings).plan(y, Packing(y, 0), list(span), [1], knots=knots)


def by_engine(build, y, tensors, span, **settings):
    """The state at the end of a solve by the engine, as a function that autograd knows."""
    builder = Builder(y.shape[1])
    program = builder.finish(build(builder))
    field = Compiled(program, tuple(tensors), (False,) * len(tensors))
    return Solved.apply(plan_of(y, span, **settings), field, y, *tensors)


class Solved(torch.autograd.Function):
    """A solve by the engine and its gradient, without all checks."""

    @staticmethod
    def forward(ctx, plan, field, y, *tensors):
        y1, _, ctx.solve = native.run(plan, field, y, tensors, keep=True)
        ctx.save_for_backward(y, *tensors)
        return y1

    @staticmethod
    def backward(ctx, cotangent):
        y, *tensors = ctx.saved_tensors
        gradients = [torch.zeros_like(x) for x in (y, *tensors)]
        cotangent = cotangent.contiguous()
        ctx.solve.backward([cotangent.data_ptr()], 0, gradients[0].data_ptr(), [g.data_ptr() for g in gradients[1:]])
        return (None, None, *gradients)


def compare(build, dim, shapes, points=5, seed=0):
    """An Euler step of size 1 and all its gradients, by both."""
    torch.manual_seed(seed)
    y = torch.randn(points, dim, dtype=torch.float64, requires_grad=True)
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    weights = torch.randn(points, dim, dtype=torch.float64)
    ours = by_engine(build, y, tensors, (0.3, 1.3), method="euler", step_size=1.0)
    theirs = y + by_torch(build, 0.3, y, tensors)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    inputs = [y, *tensors]
    ours, theirs = (torch.autograd.grad((x * weights).sum(), inputs, allow_unused=True) for x in (ours, theirs))
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if its is None else its, rtol=1e-9, atol=1e-9)
