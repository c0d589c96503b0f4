"""Modules as users write them, one operation each: the engine computes what the Python core does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anode

DIM = 6


class Field(nn.Module):
    """A network around one operation, so that values and gradients pass through it both ways."""

    def __init__(self, operation, *parts):
        super().__init__()
        self.operation = operation
        self.parts = nn.ModuleList(parts)
        self.before, self.after = nn.Linear(DIM, DIM), nn.Parameter(torch.linspace(-0.5, 0.7, DIM))

    def forward(self, t, y):
        return self.operation(self.before(y) + t, *self.parts) * self.after - 0.3 * y


class Attention(nn.Module):
    """Attention among the tokens of a point."""

    def __init__(self, **settings):
        super().__init__()
        self.maps, self.settings = nn.Linear(3, 9), settings

    def forward(self, y):
        q, k, v = self.maps(y.view(-1, 2, 3)).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, **self.settings).reshape(-1, DIM)


def normalized(kind, *settings):
    """A normalization after some batches, in evaluation mode."""
    layer = kind(*settings)
    if isinstance(layer, nn.BatchNorm1d):
        layer(torch.linspace(-1, 2, 8 * layer.num_features).reshape(8, -1))
    return layer.eval()


def heads():
    layer = nn.MultiheadAttention(3, 3, batch_first=True)
    return lambda y, layer: layer(*[y.view(-1, 2, 3)] * 3, need_weights=False)[0].reshape(-1, DIM), layer


def matrices(y):
    return y.view(-1, 2, 3)


def spread(y):
    """One number per point, as wide as the state."""
    return y.reshape(len(y), -1)[:, :1].expand(-1, DIM)


FIXED = torch.linspace(-1, 1, DIM, dtype=torch.float64)
WORDS = torch.tensor([2, 0])

CASES = {
    "batch norm": (lambda y, layer: layer(y), lambda: [normalized(nn.BatchNorm1d, DIM)]),
    "batch norm, plain": (lambda y, layer: layer(y), lambda: [normalized(nn.BatchNorm1d, DIM, 1e-3, 0.1, False)]),
    "batch norm, channels": (
        lambda y, layer: layer(matrices(y)).reshape(-1, DIM),
        lambda: [nn.BatchNorm1d(2).eval()],
    ),
    "instance norm": (lambda y, layer: layer(matrices(y)).reshape(-1, DIM), lambda: [nn.InstanceNorm1d(2)]),
    "layer norm": (lambda y, layer: layer(y), lambda: [nn.LayerNorm(DIM)]),
    "group norm": (lambda y, layer: layer(y), lambda: [nn.GroupNorm(2, DIM)]),
    "rms norm": (lambda y, layer: layer(y), lambda: [nn.RMSNorm(DIM)]),
    "normalize": (lambda y: F.normalize(y, dim=-1), list),
    "pairwise distance": (lambda y: spread(F.pairwise_distance(y, y.flip(1))[:, None]), list),
    "bilinear": (lambda y, layer: layer(y[:, :2], y[:, 2:]), lambda: [nn.Bilinear(2, 4, DIM)]),
    "sign": (lambda y: y * torch.sign(y - 0.1), list),
    "signbit": (lambda y: y * torch.signbit(y), list),
    "copysign": (lambda y: torch.copysign(y, y.flip(1)), list),
    "atan2": (lambda y: torch.atan2(y, y.flip(1) + 0.1), list),
    "asin": (lambda y: torch.asin(y.tanh() * 0.9) + torch.acos(y.tanh() * 0.9), list),
    "asinh": (lambda y: torch.asinh(y) + torch.acosh(y**2 + 1.1) + torch.atanh(y.tanh() * 0.9), list),
    "logit": (lambda y: torch.logit(y.sigmoid() * 0.8 + 0.1), list),
    "sinc": (lambda y: torch.sinc(y + 3), list),
    "xlogy": (lambda y: torch.xlogy(y, y**2 + 0.1) + torch.special.xlog1py(y, y**2), list),
    "entr": (lambda y: torch.special.entr(y**2 + 0.1), list),
    "nan_to_num": (lambda y: torch.nan_to_num(y, 0.5), list),
    "deg2rad": (lambda y: torch.deg2rad(y) + torch.rad2deg(y) * 1e-2, list),
    "float_power": (lambda y: torch.float_power(y.abs() + 0.1, 1.5), list),
    "ldexp": (lambda y: torch.ldexp(y, torch.tensor(2)), list),
    "logsumexp": (lambda y: y * torch.logsumexp(y, -1, keepdim=True), list),
    "log_softmax": (lambda y: F.log_softmax(y, -1), list),
    "logcumsumexp": (lambda y: torch.logcumsumexp(y, -1), list),
    "softmin": (lambda y: F.softmin(y, -1), list),
    "prod": (lambda y: y * torch.prod(y, -1, keepdim=True), list),
    "cumsum": (lambda y: torch.cumsum(y, -1), list),
    "cumprod": (lambda y: torch.cumprod(y, -1), list),
    "max": (lambda y: y * y.max(-1, keepdim=True).values - y.min(-1, keepdim=True).values, list),
    "amax": (lambda y: y * y.amax(-1, keepdim=True) - y.amin(-1, keepdim=True), list),
    "aminmax": (lambda y: y * sum(torch.aminmax(y, dim=-1, keepdim=True)), list),
    "fmax": (lambda y: torch.fmax(y, FIXED) + torch.fmin(y, y.flip(1)), list),
    "diff": (lambda y: F.pad(torch.diff(y), (0, 1)), list),
    "trace": (lambda y: y * torch.einsum("bii->b", y.repeat(1, 6).view(-1, 6, 6))[:, None], list),
    "einsum, weight": (lambda y, layer: torch.einsum("bi,oi->bo", y, layer.weight), lambda: [nn.Linear(DIM, DIM)]),
    "einsum, outer": (lambda y: torch.einsum("bi,bj->bij", y, y).sum(1), list),
    "einsum, inner": (lambda y: y * torch.einsum("bi,bi->b", y, y.flip(1))[:, None], list),
    "einsum, three": (
        lambda y, layer: torch.einsum("bi,oij,bj->bo", y[:, :2], layer.weight, y[:, 2:]),
        lambda: [nn.Bilinear(2, 4, DIM)],
    ),
    "einsum, heads": (lambda y: torch.einsum("bhi,bhj->bij", matrices(y), matrices(y)).reshape(-1, 9)[:, :DIM], list),
    "tensordot": (lambda y: torch.tensordot(y, FIXED.outer(FIXED), dims=1), list),
    "outer products": (lambda y: (y[:, :, None] * y[:, None, :]).sum(1), list),
    "small matrices": (lambda y: (matrices(y) @ matrices(y).mT @ matrices(y)).reshape(-1, DIM), list),
    "matrix times vector": (lambda y: F.pad((matrices(y) @ y[:, :3, None])[..., 0], (0, 4)), list),
    "baddbmm": (
        lambda y: torch.baddbmm(matrices(y), matrices(y)[:, :, :2], matrices(y), alpha=0.5).reshape(-1, DIM),
        list,
    ),
    "vecdot": (lambda y: y * torch.linalg.vecdot(y, y)[:, None], list),
    "matrix norm": (lambda y: y * torch.linalg.matrix_norm(matrices(y))[:, None], list),
    "norm, three": (lambda y: y * torch.linalg.vector_norm(y, 3, dim=-1, keepdim=True), list),
    "cross": (lambda y: torch.cross(matrices(y), matrices(y).flip(-1), dim=-1).reshape(-1, DIM), list),
    "linalg.cross": (lambda y: torch.linalg.cross(matrices(y), FIXED[:3].expand(1, 2, 3)).reshape(-1, DIM), list),
    "kron": (lambda y: torch.kron(y, FIXED[None, :1]), list),
    "attention": (lambda y, layer: layer(y), lambda: [Attention()]),
    "attention, causal": (lambda y, layer: layer(y), lambda: [Attention(is_causal=True)]),
    "attention, scale": (lambda y, layer: layer(y), lambda: [Attention(scale=0.3)]),
    "attention, mask": (
        lambda y, layer: layer(y),
        lambda: [Attention(attn_mask=torch.tensor([[True, False], [True, True]]))],
    ),
    "multihead attention": (heads()[0], lambda: [heads()[1]]),
    "transformer layer": (
        lambda y, layer: layer(y.view(-1, 2, 3)).reshape(-1, DIM),
        lambda: [nn.TransformerEncoderLayer(3, 1, 4, 0.0, batch_first=True)],
    ),
    "prelu": (lambda y, layer: layer(y), lambda: [nn.PReLU()]),
    "prelu, channels": (lambda y, layer: layer(y), lambda: [nn.PReLU(DIM)]),
    "hardtanh": (F.hardtanh, list),
    "relu6": (F.relu6, list),
    "hardsigmoid": (F.hardsigmoid, list),
    "hardswish": (F.hardswish, list),
    "selu": (F.selu, list),
    "celu": (F.celu, list),
    "mish": (F.mish, list),
    "logsigmoid": (F.logsigmoid, list),
    "softsign": (F.softsign, list),
    "tanhshrink": (F.tanhshrink, list),
    "softshrink": (lambda y: F.softshrink(y, 0.2), list),
    "hardshrink": (lambda y: F.hardshrink(y, 0.2), list),
    "threshold": (lambda y: F.threshold(y, 0.1, -0.5), list),
    "glu": (lambda y: F.glu(torch.cat([y, y.flip(1)], -1)), list),
    "dropout, evaluated": (lambda y, layer: layer(y), lambda: [nn.Dropout(0.5).eval()]),
    "embedding": (lambda y, layer: y * layer(WORDS).reshape(DIM), lambda: [nn.Embedding(4, 3)]),
    "one-hot": (lambda y: y * F.one_hot(torch.tensor(2), DIM), list),
    "gru cell": (lambda y, layer: layer(y, y.flip(1)), lambda: [nn.GRUCell(DIM, DIM)]),
    "rnn cell": (lambda y, layer: layer(y, y.flip(1)), lambda: [nn.RNNCell(DIM, DIM)]),
    "lstm cell": (
        lambda y, layer: torch.cat(layer(y[:, :3], (y[:, 3:], y[:, :3])), 1),
        lambda: [nn.LSTMCell(3, 3)],
    ),
    "vander": (lambda y: torch.linalg.vander(y, N=3).sum(-1), list),
    "repeat_interleave": (lambda y: y[:, :3].repeat_interleave(2, 1), list),
    "meshgrid": (lambda y: y * torch.stack(torch.meshgrid(FIXED, FIXED, indexing="ij")).sum((0, 1)), list),
    "polar": (lambda y: F.pad(torch.stack([y[:, 0] * y[:, 1].cos(), y[:, 0] * y[:, 1].sin()], 1), (0, 4)), list),
    "take_along_dim": (lambda y: torch.take_along_dim(y, torch.arange(DIM).flip(0)[None].expand(len(y), -1), 1), list),
    "unfold": (lambda y: F.pad(y.unfold(1, 3, 1).sum(-1), (0, 2)), list),
    "circular pad": (lambda y: F.pad(y[:, None], (1, 1), mode="circular")[:, 0, :DIM], list),
    "movedim": (lambda y: matrices(y).movedim(1, 2).reshape(-1, DIM), list),
    "block_diag": (lambda y: y @ torch.block_diag(FIXED[:3].outer(FIXED[:3]), FIXED[3:].outer(FIXED[3:])), list),
    "polyval": (lambda y: ((0.1 * y + 0.2) * y - 0.3) * y + 1, list),
    "std": (lambda y: y * y.std(-1, keepdim=True) + y.var(-1, keepdim=True, unbiased=False), list),
}
MISSING = "is not among the operations that the engine has"
REFUSED = {
    "floor": (lambda y: y + torch.floor(3 * y), list, MISSING),
    "round": (lambda y: y + torch.round(3 * y), list, MISSING),
    "trunc": (lambda y: y + torch.trunc(3 * y), list, MISSING),
    "remainder": (lambda y: torch.remainder(y, 0.3), list, MISSING),
    "fmod": (lambda y: torch.fmod(y, 0.3), list, MISSING),
    "argmax": (lambda y: y * (torch.argmax(y, -1, keepdim=True) == torch.arange(DIM)), list, MISSING),
    "norm, half": (lambda y: y * torch.linalg.vector_norm(y, 0.5, dim=-1, keepdim=True), list, MISSING),
    "determinant": (lambda y: y * torch.linalg.det(y[:, :4].view(-1, 2, 2))[:, None], list, MISSING),
    "inverse": (lambda y: F.pad(torch.linalg.inv(y[:, :4].view(-1, 2, 2)).reshape(-1, 4), (0, 2)), list, MISSING),
    "sort": (lambda y: torch.sort(y, -1).values, list, MISSING),
    "fft": (lambda y: torch.fft.fft(y).real, list, "torch.complex128"),
    "distances": (lambda y: y * torch.cdist(matrices(y), matrices(y)).sum((1, 2))[:, None], list, MISSING),
    "convolution": (
        lambda y, layer: layer(y[:, None])[:, 0],
        lambda: [nn.Conv1d(1, 1, 3, padding=1)],
        "convolution",
    ),
    "cosine similarity": (  # torch itself computes a part of it without gradients
        lambda y: spread(F.cosine_similarity(y, FIXED + 2, dim=-1)[:, None]),
        list,
        "stops gradients",
    ),
}


def solved(case, engine):
    """The solution, and the gradients of its end for the state and the parameters."""
    operation, parts = {**CASES, **REFUSED}[case][:2]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        field = Field(operation, *parts()).double()
    y0 = torch.linspace(-0.9, 1.1, 5 * DIM, dtype=torch.float64).reshape(5, DIM).sin().requires_grad_()
    solution = anode.solve(field, y0, (0.0, 0.5), method="rk4", step_size=0.25, engine=engine)
    wanted = [y0, *field.parameters()]
    found = torch.autograd.grad((solution.y1 * FIXED).sum(), wanted, allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
    return solution, [solution.y1.detach(), *gradients]


def assert_same_by_both(case):
    (solution, ours), (_, expected) = solved(case, "auto"), solved(case, "torch")
    tolerance = 1e-7 if case == "hardsigmoid" else 1e-9  # torch's derivative has 1/6 in single precision
    for x, y in zip(ours, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
    return str(solution.engine)


@pytest.mark.parametrize("case", CASES)
def test_the_engine_solves_and_differentiates_modules_as_the_loop_in_python_does(case):
    assert assert_same_by_both(case) == "native"


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_engine_lacks_is_said_and_done_in_python(case):
    assert REFUSED[case][2] in assert_same_by_both(case)


@pytest.mark.parametrize(
    "f",
    [
        lambda y: y.max(-1, keepdim=True).values - y.min(-1, keepdim=True).values.square(),
        lambda y: y.norm(dim=-1, keepdim=True) + y[:, :2].norm(p=3, dim=-1, keepdim=True),
        lambda y: y.std(-1, keepdim=True),
        lambda y: torch.atan2(y, y.flip(1)),
        lambda y: torch.sinc(y) + torch.asinh(y) + torch.fmax(y, y.flip(1)) + torch.xlogy(y, y),
        lambda y: torch.copysign(y, -y) + torch.nan_to_num(y),
        lambda y: y.clamp(min=0.0) + 2 * y.clamp(-1.0, 0.5),
        lambda y: torch.clamp(y, y.flip(1), y.flip(1) + 1.0) + torch.clamp(y, 0.5, 0.0),
        lambda y: nn.functional.hardtanh(y) + 2 * nn.functional.relu6(6 * y) + 3 * nn.functional.relu6(y),
        lambda y: nn.functional.hardswish(3 * y) + 0.1 * nn.functional.hardsigmoid(3 * y),  # torch rounds 1/6 to float
        lambda y: nn.functional.celu(y, 0.5) + 2 * nn.functional.elu(y, 2.0) + 3 * nn.functional.selu(y),
        lambda y: torch.maximum(y, y.flip(1)) + 2 * torch.minimum(y, 0.5 * y),
    ],
)
def test_where_functions_have_a_kink_gradients_are_torch_s(f):
    """At zero and among equals, as in dimensions that augmentation adds."""
    found = []
    for engine in ("native", "torch"):
        y0 = torch.tensor(
            [[0.0, 0.0, 0.0], [1.0, 1.0, 0.5], [-0.0, -1.0, 0.0]], dtype=torch.float64, requires_grad=True
        )
        y1 = anode.solve(lambda t, y: f(y) + 0 * y, y0, (0.0, 0.1), method="euler", step_size=0.1, engine=engine).y1
        found.append((y1.detach(), *torch.autograd.grad((y1 * FIXED[3:]).sum(), y0)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_a_step_function_is_solved_without_gradients():
    half = torch.tensor(0.5, dtype=torch.float64)

    def f(t, y):
        return y * torch.heaviside(y, half)

    y0 = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    with torch.no_grad():
        ours, expected = (anode.solve(f, y0, (0.0, 1.0), engine=engine).y1 for engine in ("native", "torch"))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_statistics_that_f_updates_are_no_part_of_a_program():
    """`native_batch_norm` writes to them, though its signature does not say so."""
    mean, variance = torch.zeros(3), torch.ones(3)

    def f(t, y):
        return -torch.nn.functional.batch_norm(y, mean, variance, training=True)

    solution = anode.solve(f, torch.rand(4, 3), (0.0, 1.0), method="euler", step_size=0.5)
    assert "f writes into a tensor that it did not make (aten.native_batch_norm)" in str(solution.engine)
    first = mean.clone()
    anode.solve(f, torch.rand(4, 3), (0.0, 1.0), method="euler", step_size=0.5)
    assert not torch.equal(first, mean)


@pytest.mark.parametrize("rows", [7, 6])
def test_functions_and_layers_of_einops_are_compiled(rows):
    einops = pytest.importorskip("einops")
    layers = pytest.importorskip("einops.layers.torch")

    def f(t, y):
        q, k = einops.rearrange(mix(y), "b (two h d) -> two b h d", two=2, h=2)
        weights = einops.einsum(q, k, "b i d, b j d -> b i j").softmax(-1)
        mean = einops.reduce(y, "b d -> b 1", "mean") + einops.repeat(t, "-> b 1", b=len(y))
        return einops.rearrange(weights @ k, "b h d -> b (h d)") - split(y).flatten(1) * mean

    mix, split = nn.Linear(DIM, 2 * DIM).double(), layers.Rearrange("b (h d) -> b h d", h=2)
    y0 = torch.linspace(-1, 1, rows * DIM, dtype=torch.float64).reshape(rows, DIM)
    found = []
    for engine in ("native", "torch"):
        y1 = anode.solve(f, y0, (0.0, 1.0), rtol=1e-8, atol=1e-8, engine=engine).y1
        found.append([y1, *torch.autograd.grad(y1.sum(), tuple(mix.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
