"""The elementwise kernels of the compiled engine, in units in the last place, for every instruction set."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anode
from anode.engine import native
from anode.engine.extension import extension
from helpers.programs import TORCH_BINARY

pytestmark = [
    pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine"),
    pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning"),
]

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["single", "double"])
each_set = pytest.mark.parametrize("instructions", native.instruction_sets())


def padded(x):
    """A copy of x with ones added up to a multiple of 64."""
    return np.concatenate([x, np.ones(-len(x) % 64, x.dtype)])


def apply(name, x, instructions="", p=1.0, q=20.0):
    """Values and derivatives of a function at all entries of x; values must not depend on whether both are wanted."""
    a = padded(x)
    out, alone, derivative = np.empty_like(a), np.empty_like(a), np.empty_like(a)
    f, is_double = extension.UNARY.index(name), x.dtype == np.float64
    for values, slopes in ((out, derivative.ctypes.data), (alone, 0)):
        extension.unary(f, is_double, a.ctypes.data, len(a), p, q, values.ctypes.data, slopes, instructions)
    np.testing.assert_array_equal(out, alone)
    return out[: len(x)], derivative[: len(x)]


def combine(name, a, b, instructions=""):
    """A binary operation on all entries of a and b."""
    a, b, count = padded(a), padded(b), len(a)
    out = np.empty_like(a)
    f, is_double = extension.BINARY.index(name), a.dtype == np.float64
    extension.binary(f, is_double, a.ctypes.data, b.ctypes.data, len(a), out.ctypes.data, instructions)
    return out[:count]


def wide(x):
    """Entries in a precision in which the reference is computed."""
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def ulps(result, expected):
    """The largest error, in units in the last place of the result's precision. NaN has to be NaN."""
    info = np.finfo(result.dtype)
    with np.errstate(all="ignore"):
        nearest = expected.astype(result.dtype)
        unit = np.spacing(np.minimum(np.abs(nearest), info.max)).astype(expected.dtype)
        beyond = np.ldexp(expected.dtype.type(1), info.maxexp)  # an infinite result counts as the next number
        got, wanted = (np.clip(x.astype(expected.dtype), -beyond, beyond) for x in (result, expected))
        error = np.where(got == wanted, 0, np.abs(got - wanted) / unit)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    return float(np.nanmax(error))


def arguments(dtype, count=200_000, seed=0):
    """Special values, numbers of all exponents, and many of the usual sizes."""
    generator = np.random.default_rng(seed)
    info = np.finfo(dtype)
    integer = np.uint32 if dtype == np.float32 else np.uint64
    patterns = generator.integers(0, np.iinfo(integer).max, count, integer, endpoint=True).view(dtype)
    special = [0.0, info.smallest_subnormal, info.tiny, info.eps, 0.5, 1.0, 2.0, math.pi / 2, 20.0, info.max, math.inf]
    special = np.array(special, dtype)
    with np.errstate(all="ignore"):
        near = np.concatenate([np.nextafter(special, dtype(0)), special, np.nextafter(special, dtype(np.inf))])
    usual = [generator.uniform(-size, size, count // 4).astype(dtype) for size in (0.3, 1, 3, 20, 110, 750)]
    small = (generator.uniform(-1, 1, count // 4) * 2.0 ** generator.uniform(-60, 0, count // 4)).astype(dtype)
    return np.concatenate([patterns, near, -near, [np.array(math.nan, dtype)], *usual, small])


def precisely(f):
    """A function of mpmath on all entries."""

    def apply(x):
        with mpmath.workprec(100):
            return np.array([np.longdouble(mpmath.nstr(f(mpmath.mpf(float(v))), 25)) for v in x])

    return apply


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x > 0, 1, e) / (e + 1)


FUNCTIONS = {
    "exp": (np.exp, 2),
    "expm1": (np.expm1, 2),
    "log": (np.log, 2),
    "log1p": (np.log1p, 2),
    "tanh": (np.tanh, 2),
    "sigmoid": (sigmoid, 2),
    "tan": (np.tan, 4),
    "sin": (np.sin, 2),
    "cos": (np.cos, 2),
    "sinh": (np.sinh, 4),
    "cosh": (np.cosh, 4),
    "atan": (np.arctan, 4),
    "erf": (precisely(mpmath.erf), 4),
    "erfc": (precisely(lambda x: mpmath.erfc(max(min(x, 40), -40))), 6),
    "sqrt": (np.sqrt, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2),
    "reciprocal": (lambda x: 1 / x, 0.5),
    "square": (np.square, 0.5),
    "copy": (lambda x: x, 0),
    "negate": (np.negative, 0),
    "absolute": (np.abs, 0),
    "silu": (lambda x: x * sigmoid(x), 3),
    "softplus": (lambda x: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))), 3),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 2),
}
"""Functions in a higher precision, and how many units in the last place the kernels may be off."""


@each_set
@each_dtype
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_right_to_the_last_places(name, dtype, instructions):
    reference, allowed = FUNCTIONS[name]
    x = arguments(dtype, count=2_000 if name in ("erf", "erfc") else 200_000)
    if name in ("sin", "cos", "tan"):
        x = x[(np.abs(x) <= (1e4 if dtype == np.float32 else 1e5)) | ~np.isfinite(x)]
    if name in ("sigmoid", "silu"):  # below, the sigmoid is subnormal, and may be 0
        x = x[~(x < (-87 if dtype == np.float32 else -708))]
    assert ulps(apply(name, x, instructions)[0], reference(wide(x))) <= allowed


@each_dtype
@pytest.mark.parametrize("rows", [1, 50, 1000])
def test_tanh_after_a_linear_map_is_as_exact(rows, dtype):
    x = arguments(dtype, 2000)
    x = np.random.default_rng(0).permutation(x[np.isfinite(x)])[:rows]
    first, last = nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0]] * 3))
        last.weight.copy_(torch.tensor([[0.0] * 3, [0.0, 0.0, 1.0]]))
    field = nn.Sequential(first, nn.Tanh(), last).to(torch.from_numpy(x).dtype)
    y0 = torch.from_numpy(np.stack([x, np.zeros_like(x)], 1))
    solution = anode.solve(lambda t, y: field(y), y0, (0.0, 1.0), method="euler", step_size=1.0)
    assert not solution.engine.obstacle
    assert ulps(solution.y1[:, 1].detach().numpy(), np.tanh(wide(x))) <= 2


@each_dtype
def test_zeros_keep_their_sign(dtype):
    zeros = np.array([0.0, -0.0], dtype)
    for name in ("tanh", "sin", "tan", "atan", "sinh", "erf", "expm1", "log1p", "copy", "relu", "elu", "leaky_relu"):
        np.testing.assert_array_equal(np.signbit(apply(name, zeros)[0]), [False, True], err_msg=name)


@each_set
@each_dtype
def test_sigmoid_of_very_negative_numbers_is_nearly_zero(dtype, instructions):
    x = np.linspace(-200 if dtype == np.float32 else -2000, -87, 1000).astype(dtype)
    values = apply("sigmoid", np.append(x, dtype(-np.inf)), instructions)[0]
    assert values[-1] == 0
    assert (np.diff(values[:-1]) >= 0).all()
    np.testing.assert_allclose(values[:-1], np.exp(wide(x)).astype(dtype), rtol=1e-5, atol=np.finfo(dtype).tiny)


@each_set
@each_dtype
def test_sine_and_cosine_of_huge_numbers_are_at_most_one(dtype, instructions):
    x = arguments(dtype)
    x = x[np.isfinite(x)]
    for name in ("sin", "cos"):
        assert np.abs(apply(name, x, instructions)[0]).max() <= 1
    large = x[(np.abs(x) > 1e4) & (np.abs(x) < (1e6 if dtype == np.float32 else 1e14))]
    error = np.abs(apply("sin", large, instructions)[0] - np.sin(wide(large)))
    assert (error <= 2 * np.spacing(np.abs(large))).all()  # as if the argument had been rounded


TORCH = {
    "copy": lambda x: x * 1,
    "negate": torch.neg,
    "absolute": torch.abs,
    "sign": torch.sign,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: F.softplus(x, 1.5, 7),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 1.5),
    "leaky_relu": lambda x: F.leaky_relu(x, 1.5),
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "square": torch.square,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "atan": torch.atan,
}


def test_every_function_is_compared_with_torch():
    assert list(TORCH) == list(extension.UNARY)


@each_set
@each_dtype
@pytest.mark.parametrize("name", TORCH)
def test_values_and_derivatives_are_those_of_torch(name, dtype, instructions):
    generator = np.random.default_rng(0)
    kinks = [0.0, -0.0, 1.0, -1.0, 7 / 1.5, 4.7, 20.0, math.nan]
    x = np.concatenate([generator.uniform(-9, 9, 5000), generator.uniform(-1, 1, 5000), kinks]).astype(dtype)
    if name in ("sqrt", "rsqrt", "log"):
        x = np.abs(x)
    at = torch.from_numpy(x).requires_grad_()
    expected = TORCH[name](at)
    (slope,) = torch.autograd.grad(expected.sum(), at)
    values, derivatives = apply(name, x, instructions, p=1.5, q=7.0)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(values, expected.detach().numpy(), rtol=16 * eps, atol=8 * eps)
    if name == "sign":
        assert (derivatives == 0).all()
        return
    known = ~np.isnan(x)
    np.testing.assert_allclose(derivatives[known], slope.numpy()[known], rtol=64 * eps, atol=64 * eps)


def powers(dtype):
    """Bases and exponents: usual ones, those at the edges of the range, and special ones in all pairs."""
    generator = np.random.default_rng(1)
    count = 100_000
    a = 2.0 ** generator.uniform(-30, 30, count)
    limit = np.log(float(np.finfo(dtype).max)) * 1.08
    b = generator.uniform(-limit, limit, count) / np.log(a)
    whole = generator.integers(-12, 13, count).astype(float)
    near_one = 1 + generator.uniform(-0.3, 0.4, count)
    pairs = [
        (a, b),
        (generator.uniform(-8, 8, count), whole),
        (near_one, generator.uniform(-limit, limit, count) / np.log(near_one)),
        (np.abs(arguments(dtype, 30_000)[:count]), generator.uniform(-3, 3, count)),
    ]
    one = np.finfo(dtype)
    special = [0.0, 1.0, 0.5, 2.0, 3.0, 2.5, 1e30, one.max, one.tiny, one.smallest_subnormal, 2**24 - 1, np.inf]
    special = np.array([*special, *(-x for x in special), np.nan])
    pairs.append(tuple(x.ravel() for x in np.meshgrid(special, special)))
    shortest = [min(len(x), len(y)) for x, y in pairs]
    return tuple(
        np.concatenate([pair[i][:n] for pair, n in zip(pairs, shortest, strict=True)]).astype(dtype) for i in (0, 1)
    )


@each_set
@each_dtype
def test_powers_are_right_to_the_last_places(dtype, instructions):
    a, b = powers(dtype)
    result, expected = combine("power", a, b, instructions), np.power(wide(a), wide(b))
    assert ulps(result, expected) <= 2
    zero = expected.astype(dtype) == 0
    np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]))


@each_set
@each_dtype
def test_binary_operations_are_those_of_torch(dtype, instructions):
    assert list(TORCH_BINARY) == list(extension.BINARY)
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, 5000) * 0.7 for _ in range(2))
    a, b = np.append(a, [np.nan, 1, np.nan]).astype(dtype), np.append(b, [1, np.nan, np.nan]).astype(dtype)
    for name, operation in TORCH_BINARY.items():
        expected = operation(torch.from_numpy(a), torch.from_numpy(b)).to(torch.from_numpy(a).dtype).numpy()
        tolerance = 8 * np.finfo(dtype).eps
        result = combine(name, a, b, instructions)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance, err_msg=name)
