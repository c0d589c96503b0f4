"""Every operation that the engine has, against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference_program import assert_agrees, points
from torch import nn

W = torch.linspace(-1.0, 1.3, 9, dtype=torch.float64).reshape(3, 3)
V = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)

UNARY = {
    name: getattr(torch, name)
    for name in [
        "neg",
        "abs",
        "sign",
        "sgn",
        "relu",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "exp",
        "expm1",
        "square",
        "erf",
        "erfc",
        "sinh",
        "cosh",
        "atan",
        "exp2",
        "selu",
        "celu",
        "logsumexp_all",
        "positive",
    ]
    if name != "logsumexp_all"
}
POSITIVE = {
    name: getattr(torch, name) for name in ["log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "tan"]
}
ACTIVATIONS = {
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 1.5, 2.0),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.6),
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "threshold": lambda x: F.threshold(x, 0.1, -2.0),
    "prelu": lambda x: F.prelu(x, V[:1]),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (3,), V, V - 1),
    "plain_layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,), V),
    "tanh_in_place": lambda x: x.clone().tanh_(),
    "relu_in_place": lambda x: F.relu(x * 1, inplace=True),
}
ELEMENTWISE = {
    "scalars": lambda y: 2 - 3 * y / 4 + 1,
    "rdiv": lambda y: 1.5 / (y.abs() + 1),
    "alpha": lambda y: torch.add(y, y.sin(), alpha=0.3) + torch.sub(y, V, alpha=2) + torch.rsub(y, V, alpha=2),
    "cube": lambda y: y**3 + y**2 + y**5 + y**0 + y**1,
    "negative powers": lambda y: (y.abs() + 1) ** -1 + (y.abs() + 1) ** -2 + (y.abs() + 1) ** -0.5,
    "roots": lambda y: y.abs() ** 0.5 + (y.abs() + 0.1) ** 1.7,
    "scalar power": lambda y: 2.0**y + torch.pow(1.5, y),
    "tensor power": lambda y: (y.abs() + 0.1) ** (y * 0.5) + (y.abs() + 0.1) ** V,
    "clamp": lambda y: y.clamp(-0.5, 0.5) + y.clamp(min=0.1) + y.clamp(max=0.2) + y.clamp_min(0) + y.clamp(V - 1, V),
    "extremes": lambda y: torch.maximum(y, V - 1) + torch.minimum(y, y.flip(1)) + torch.max(y, -y),
    "where": lambda y: torch.where(y > 0.1, y * 2, -y) + torch.where(y <= V, 1.0, y),
    "masked_fill": lambda y: y.masked_fill(y < 0, 0.5) + y.masked_fill(torch.tensor([True, False, True]), 0.0),
    "comparisons": lambda y: (y > 0).to(y.dtype) + (y >= 0.1).double() * 2 + (y != y).double() + (y == y).double() * y,
    "masks": lambda y: (((y > 0) & (y < 0.5)) | ~(y > -0.5)).double() + ((y > 0) ^ (y < 1)).double(),
    "mask sum": lambda y: y * (y > 0).sum(1, keepdim=True) + ((y > 0) + (y > 0.5)).double(),
    "mask times": lambda y: y * (y > 0) + (y > 0).int() * y,
    "lerp": lambda y: torch.lerp(y, V, 0.3) + torch.lerp(y, -y, V),
    "addcmul": lambda y: torch.addcmul(y, y, V, value=0.5) + torch.addcdiv(y, y, V, value=2),
    "hypot": lambda y: torch.hypot(y, V) + torch.logaddexp(y, V.expand_as(y)),
    "any": lambda y: y * (y > 0.3).any(1, keepdim=True) + y * (y > -1).all(1, keepdim=True),
}
REDUCTIONS = {
    "sum": lambda y: y.sum(1, keepdim=True) + y.sum(-1)[:, None],
    "mean": lambda y: y.mean(1, keepdim=True) * y,
    "norms": lambda y: (
        y.norm(dim=1, keepdim=True) + y.norm(1, dim=1, keepdim=True) + torch.linalg.norm(y, dim=1)[:, None]
    ),
    "largest norm": lambda y: torch.linalg.vector_norm(y, float("inf"), dim=1, keepdim=True),
    "var": lambda y: y.var(1, keepdim=True) + y.std(1, keepdim=True, correction=0) + y.var(1)[:, None],
    "var_mean": lambda y: sum(torch.var_mean(y, 1, keepdim=True)),
    "prod": lambda y: y.prod(1, keepdim=True) + y.prod(1)[:, None],
    "amax": lambda y: y.amax(1, keepdim=True) + y.amin(1, keepdim=True),
    "max": lambda y: y.max(1, keepdim=True).values + y.min(1).values[:, None],
    "cumsum": lambda y: y.cumsum(1) + y.cumprod(1),
    "logsumexp": lambda y: y.logsumexp(1, keepdim=True),
    "group_norm": lambda y: F.group_norm(y[:, :2], 2, V[:2], V[1:]).sum(1, keepdim=True) + F.group_norm(y, 1, V, V),
    "glu": lambda y: F.glu(torch.cat([y, y.sin()], 1)),
    "cross": lambda y: torch.linalg.cross(y, V.expand_as(y)) + torch.linalg.cross(y.cos(), y),
}
PRODUCTS = {
    "mm": lambda y: y @ W,
    "linear": lambda y: F.linear(y, W, V),
    "linear without bias": lambda y: F.linear(y, W),
    "left": lambda y: (W @ y.T).T,
    "vectors": lambda y: (W @ y[:, :, None])[:, :, 0],
    "rows": lambda y: (y[:, None, :] @ W)[:, 0],
    "sequence": lambda y: F.linear(torch.stack([y, y.sin()], 1), W, V).sum(1),
    "turned sequence": lambda y: F.linear(torch.stack([y, y.sin()], 0), W, V).sum(0),
    "outer": lambda y: (y[:, :, None] * y[:, None, :]).sum(2),
    "gram": lambda y: (torch.stack([y, y.cos()], 1).mT @ torch.stack([y, y.sin()], 1)).diagonal(dim1=1, dim2=2),
    "quadratic": lambda y: torch.einsum("bi,ij,bj->b", y, W, y)[:, None] * y,
    "einsum": lambda y: torch.einsum("bi,ji->bj", y, W) + torch.einsum("bi,bi->b", y, y)[:, None],
    "bmm": lambda y: torch.bmm(y[:, None], y[:, :, None])[:, 0] * y,
    "baddbmm": lambda y: torch.baddbmm(y[:, None], y[:, None], W.expand(len(y), 3, 3), beta=0.5, alpha=2)[:, 0],
    "addmm": lambda y: torch.addmm(y, y, W, beta=0.3, alpha=0.7) + torch.addmm(V, y, W),
    "per member": lambda y: torch.einsum("bi,kij->bkj", y, torch.stack([W, W.T])).sum(1),
    "members": lambda y: torch.bmm(torch.stack([y, y.sin()]), torch.stack([W, W.T])).sum(0),
}
SHAPES = {
    "cat": lambda y: torch.cat([y[:, 1:], y[:, :1]], 1),
    "stack": lambda y: torch.stack([y[:, 2], y[:, 0] * y[:, 1], y[:, 0]], 1),
    "unbind": lambda y: torch.stack([a * 2 for a in y.unbind(1)], -1),
    "split": lambda y: torch.cat(y.split([1, 2], 1)[::-1], 1) + torch.cat(y.chunk(2, -1), 1),
    "flip": lambda y: y.flip(1) + y.roll(1, 1) * 2 + y.roll(-1, -1),
    "indices": lambda y: y[:, [2, 0, 0]] + y.index_select(1, torch.tensor([1, 1, 2])) + y[..., torch.tensor([0, 2, 1])],
    "mask index": lambda y: torch.cat([y[:, torch.tensor([True, False, True])], y[:, :1]], 1),
    "repeat": lambda y: y.repeat(1, 2)[:, 1:4] + y.repeat_interleave(2, 1)[:, ::2],
    "expand": lambda y: y[:, :1].expand(-1, 3) + y[:, 1:2].expand_as(y),
    "views": lambda y: y.view(-1, 3, 1).transpose(1, 2).squeeze(1).reshape(len(y), 3) + y.t().contiguous().t(),
    "flattened": lambda y: y.reshape(-1).sin().reshape(y.shape) + y.t().reshape(-1).cos().reshape(3, -1).t(),
    "movedim": lambda y: y.movedim(0, 1).movedim(1, 0) + y.permute(1, 0).permute(1, 0).flatten(1),
    "diagonal": lambda y: torch.diag_embed(y).diagonal(dim1=1, dim2=2) + torch.diag_embed(y).sum(1),
    "triangle": lambda y: (y[:, :, None] * y[:, None, :]).tril().sum(2) + y @ W.triu(),
    "pad": lambda y: F.pad(y, (1, 0))[:, :3] + F.pad(y[:, 1:], (0, 1)),
    "gather": lambda y: y.gather(1, torch.tensor([[2, 1, 0]]).expand(len(y), 3)),
    "no copies": lambda y: y.clone().detach().contiguous().to(y.dtype).to("cpu") + torch.alias_copy(y),
    "constants": lambda y: y + torch.eye(3, dtype=y.dtype)[1] + torch.arange(3) + torch.full((3,), 2.0) + y.new_ones(1),
    "likes": lambda y: y * torch.ones_like(y) + torch.zeros_like(y) + torch.full_like(y, 0.5) + y.new_zeros(y.shape),
    "literals": lambda y: y * torch.tensor([1.0, 2.0, 3.0], dtype=y.dtype) + torch.tensor(0.1, dtype=y.dtype),
    "numpy": lambda y: y * torch.from_numpy(V.numpy() * 3).sin(),
}
EMPTY = {
    "linear from nothing": lambda y: y + F.linear(y[:, :0], W[:, :0], V) + F.linear(y[:, :0], W[:, :0]),
    "linear to nothing": lambda y: y + F.linear(y, W[:0], V[:0]).sum(1, keepdim=True),
    "bmm of nothing": lambda y: y + torch.bmm(y[:, :0, None].mT, y[:, :0, None])[:, 0],
    "einsum of nothing": lambda y: y + torch.einsum("bi,ji->bj", y[:, :0], W[:, :0]),
    "reductions of nothing": lambda y: y + y[:, :0].sum(1, keepdim=True) + y[:, :0].prod(1, keepdim=True),
    "no truths": lambda y: y * (y[:, :0] > 0).any(1, keepdim=True) + y.sin() * (y[:, :0] > 0).all(1, keepdim=True),
    "logsumexp of nothing": lambda y: y + y[:, :0].logsumexp(1, keepdim=True).exp(),
    "softmax of nothing": lambda y: torch.cat([y, y[:, :0].softmax(1), y[:, :0].cumsum(1), y[:, :0].tanh()], 1),
}
CLASSES = [UNARY, ACTIVATIONS, ELEMENTWISE, REDUCTIONS, PRODUCTS, SHAPES, EMPTY]
ALL = {name: g for kind in CLASSES for name, g in kind.items()}


@pytest.mark.parametrize("name", ALL)
def test_an_operation_means_what_it_means_in_torch(name):
    assert_agrees(lambda t, y: ALL[name](y).expand(y.shape), points(3))


@pytest.mark.parametrize("name", POSITIVE)
def test_an_operation_on_positive_numbers_means_what_it_means_in_torch(name):
    assert_agrees(lambda t, y: POSITIVE[name](y.abs() * 0.3 + 0.1), points(3))


@pytest.mark.parametrize("name", [*UNARY, *ACTIVATIONS, *PRODUCTS, "cat", "flip", "cumsum", "norms", "views", "where"])
def test_an_operation_differentiated_inside_f_means_what_it_means_in_torch(name):
    if name == "hardsigmoid":
        pytest.skip("torch computes it in single precision")

    def f(t, y):
        with torch.enable_grad():
            y = y.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad((ALL[name](y) * V).sum(), y, create_graph=True)
        return gradient

    assert_agrees(f, points(3))


@pytest.mark.parametrize("name", ALL)
def test_an_operation_without_a_batch_means_the_same(name):
    """One point of shape [7, 3]: all of it is features, and operations over the first dimension are allowed."""
    state = points(3)[:7] + 0.01
    assert_agrees(lambda t, y: ALL[name](y).expand(y.shape) + y.mean(0), state, batch_dims=0)


def test_states_with_several_feature_dimensions_keep_their_order():
    net = nn.Linear(4, 4).double()
    assert_agrees(lambda t, y: net(y.transpose(1, 2)).transpose(1, 2) * t, points(12).reshape(-1, 4, 3))


@pytest.mark.parametrize("x", [-30.0, -6.0, 0.0, 3.0, 9.0, 20.0])
def test_small_values_of_erfc_are_not_lost(x):
    """One minus erf would be 0 from 6 on."""
    assert_agrees(lambda t, y: torch.log(torch.erfc(y)), torch.full((7, 1), x, dtype=torch.float64))


def test_a_state_without_features_is_one_number_per_point():
    assert_agrees(lambda t, y: y.sin() * t, points(1)[:, 0])


STEPS = {
    "tanh": torch.tanh,
    "product": lambda y: y @ W,
    "turn": lambda y: y.flip(1),
    "cat": lambda y: torch.cat([y[:, 1:] * 2, y[:, :1]], 1),
    "scale": lambda y: y * V,
    "mean": lambda y: y - y.mean(1, keepdim=True),
    "write": lambda y: _written(y),
    "flat": lambda y: y.reshape(-1).cos().reshape(-1, 3),
    "softmax": lambda y: y.softmax(1),
    "choose": lambda y: torch.where(y > 0.1, y, y.sin()),
    "pairs": lambda y: (y[:, :, None] * y[:, None, :]).sum(1),
}


def _written(y):
    out = torch.zeros_like(y)
    out[:, 1:] = y[:, :2]
    out[:, 0] += y[:, 2] * 3
    out[:, 1].mul_(y[:, 0])
    return out


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
def test_operations_in_any_order_mean_what_they_mean_in_torch(names):
    def f(t, y):
        for name in names:
            y = STEPS[name](y) + t
        return y

    assert_agrees(f, points(3))


@pytest.mark.parametrize(
    "function", [torch.logaddexp, lambda a, b: torch.logcumsumexp(torch.stack([a, b], -1), -1)[..., 1]]
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
@pytest.mark.parametrize("limit", [-math.inf, math.inf])
def test_the_sum_of_equal_infinite_logarithms_is_infinite(function, limit):
    assert_agrees(lambda t, y: torch.atan(function(y + limit, y + limit)) * y, points(2))
