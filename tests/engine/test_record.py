"""What f may do while it is traced, and what it may not."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from reference_program import Reference, assert_agrees, points, traced
from torch import nn

from anode.engine.trace.events import Untraceable
from anode.engine.trace.tracing import trace

V = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
MADE_OF = nn.Parameter(V.clone())


def mlp(*sizes):
    torch.manual_seed(0)
    layers = [part for m, n in pairwise(sizes) for part in (nn.Linear(m, n), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


def refusal(f, state=None, batch_dims=1):
    state = points(3) if state is None else state
    with pytest.raises(Untraceable) as caught:
        traced(f, (state,), batch_dims)
    return str(caught.value)


TIMES = {
    "times": lambda t, y: y * t,
    "ones": lambda t, y: t * torch.ones(y.shape[0], 3, dtype=y.dtype) + y,
    "ones_like": lambda t, y: torch.ones_like(y[:, :1]) * t + y,
    "expand": lambda t, y: torch.cat([y, t.expand(y.shape[0], 1)], 1)[:, 1:],
    "view": lambda t, y: y + t.view(1, 1) + t.reshape(1) + t[None],
    "alone": lambda t, y: (t.sin() * V).expand_as(y),
    "missing batch": lambda t, y: t.cos() * V,
    "constant": lambda t, y: torch.zeros_like(y),
    "repeat": lambda t, y: y * t.repeat(y.shape[0], 1),
    "full": lambda t, y: y + torch.zeros(y.shape[0], 1, dtype=y.dtype).fill_(t),
    "features": lambda t, y: y @ (V[:, None] * t.sin() * V),
    "embedding": lambda t, y: y + torch.cat([(t * V[:2]).sin(), (t * V[:1]).cos()]),
}


@pytest.mark.parametrize("name", TIMES)
def test_time_can_be_used_in_every_way(name):
    assert_agrees(TIMES[name], points(3))


def test_captured_tensors_are_the_very_parameters():
    net = mlp(3, 8, 3)
    result = assert_agrees(lambda t, y: net(y), points(3))
    assert result.derived is None
    assert {id(x) for x in result.tensors} == {id(x) for x in net.parameters()}
    assert list(map(id, result.inputs({}))) == list(map(id, result.tensors))


def test_a_parameter_is_captured_once_however_often_it_is_used():
    net = nn.Linear(3, 3).double()
    result = assert_agrees(lambda t, y: net(net(y)) @ net.weight + net.weight[0] - net.weight.t()[1], points(3))
    assert {id(x) for x in result.tensors} == {id(net.weight), id(net.bias)}


def test_views_that_existed_before_share_what_they_show():
    base = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    row = base[1]
    assert_agrees(lambda t, y: y * row + base[0] + base.sum(0), points(3))
    assert_agrees(lambda t, y: y * base[1] + row, points(3))


def test_tuples_are_traced():
    net = mlp(3, 4, 3)

    def f(t, y):
        a, b = y
        return net(a) * b[:, :1], b.sin() + a[:, :2] * t

    assert_agrees(f, points(3), points(2))
    assert_agrees(lambda t, y: (y[1].sum() * y[0], y[1] * y[0].mean()), points(3), points(2), batch_dims=0)


def test_float32_is_traced():
    net = nn.Linear(3, 3)
    result = trace(lambda t, y: net(y), (points(3).float(),), False, 1, torch.tensor(0.0), Reference(points(3), 0.0))
    assert len(result.tensors) == 2


# Writes into memory that f owns.
def zeros(t, y):
    out = torch.zeros_like(y)
    out[:, 0] = y[:, 1]
    out[:, 1:] = y[:, :2] * t
    return out


def empty(t, y):
    out = torch.empty_like(y)
    out[:, 0], out[:, 1], out[:, 2] = y[:, 2], t, 3.0
    return out


def updates(t, y):
    out = y.clone()
    view = out[:, 1:]
    out += 1
    view *= y[:, :1]
    out.sub_(V).div_(2).neg_()
    view.add_(view.flip(1), alpha=0.5)
    return out.tanh_()


def copies(t, y):
    out = torch.zeros(y.shape, dtype=y.dtype)
    out.t()[1].copy_(y[:, 0])
    out[:, [0, 2]] = y[:, 1:]
    out[:, -1].zero_()
    out.masked_fill_(y > 1, 0.25)
    return out


def later(t, y):
    first = y * 2
    second = first + 1
    first.zero_()
    return second + first


@pytest.mark.parametrize("f", [zeros, empty, updates, copies, later], ids=lambda f: f.__name__)
def test_writes_into_tensors_that_f_made_are_followed(f):
    assert_agrees(f, points(3))


OBSTACLES = {
    "mean": (lambda t, y: y - y.mean(0), "mixes the points of a batch (aten.mean)"),
    "sum": (lambda t, y: y / y.sum(), "mixes the points of a batch (aten.sum)"),
    "softmax": (lambda t, y: y.softmax(0), "mixes the points of a batch (aten._softmax)"),
    "cumsum": (lambda t, y: y.cumsum(0), "mixes the points of a batch (aten.cumsum)"),
    "flip": (lambda t, y: y.flip(0) * 1, "mixes the points of a batch"),
    "flip alone": (lambda t, y: y.flip(0), "mixes the points of a batch"),
    "roll": (lambda t, y: y + y.roll(1, 0), "mixes the points of a batch (aten.add)"),
    "first": (lambda t, y: y - y[0], "mixes the points of a batch (aten.sub)"),
    "first alone": (lambda t, y: y[0], "mixes the points of a batch"),
    "write first": (lambda t, y: _write_first(y), "mixes the points of a batch"),
    "pairs": (lambda t, y: (y[:, None] - y[None]).sum(1), "mixes the points of a batch"),
    "gram": (lambda t, y: (y @ y.T) @ y, "mixes the points of a batch (aten.mm)"),
    "product over points": (lambda t, y: y @ (y.T @ y), "mixes the points of a batch (aten.mm)"),
    "shift": (lambda t, y: torch.cat([y[1:], y[:1]]), "does not treat the points of a batch alike"),
    "attention": (lambda t, y: y[torch.tensor([0])] + y, "mixes the points of a batch"),
    "reshape": (lambda t, y: y.reshape(3, -1).t() * 1, "mixes the points of a batch"),
    "batch norm": (nn.BatchNorm1d(3).double(), "writes into a tensor that it did not make"),
    "batch size": (lambda t, y: y / y.shape[0], "computes with the number of points in a batch"),
    "random": (lambda t, y: y + torch.randn_like(y), "draws random numbers (aten.randn_like)"),
    "dropout": (lambda t, y: nn.functional.dropout(y), "draws random numbers"),
    "item": (lambda t, y: y * y.sum().item(), "reads values into Python"),
    "float": (lambda t, y: y * float(t), "reads values into Python (aten._local_scalar_dense)"),
    "if": (lambda t, y: y if t > 0 else -y, "reads values into Python"),
    "nonzero": (lambda t, y: y[y > 0].sum() * y, ""),
    "numpy": (lambda t, y: y * torch.from_numpy(np.sin(y.detach().numpy())), "does not do the same each time"),
    "time in numpy": (lambda t, y: y * float(t.detach().numpy()), "does not do the same each time"),
    "precision": (lambda t, y: y.float().double(), "computes in torch.float32, the state is torch.float64"),
    "integers": (lambda t, y: y.long() * y, "computes in torch.int64"),
    "complex": (lambda t, y: (y * 1j).real, "not a plain one"),
    "captured precision": (lambda t, y: y * V.float()[:, None].T * SINGLE, "torch.float32"),
    "large": (lambda t, y: y * LARGE[0], "elements in memory"),
    "unknown": (lambda t, y: y.floor(), "aten.floor is not among the operations that the engine has"),
    "unknown too": (lambda t, y: torch.linalg.matrix_exp(y[:, :1, None])[:, 0] * y, "is not among the operations"),
    "argument": (lambda t, y: y.detach().add_(1), "writes into its argument (aten.add_)"),
    "parameter": (lambda t, y: y + V.add_(0), "writes into a tensor that it did not make"),
    "error": (lambda t, y: y @ torch.ones(4, 4), "f raises RuntimeError"),
    "actual batch": (lambda t, y: y * points(3), "f raises RuntimeError"),
    "out": (lambda t, y: torch.mul(y, 2, out=torch.empty_like(y)), "f raises RuntimeError"),
    "shape": (lambda t, y: y[:, :2], "another shape"),
    "wider": (lambda t, y: torch.cat([y, y], 1), "another shape"),
    "nothing": (lambda t, y: None, "something else than the state"),
    "list": (lambda t, y: [y], "something else than the state"),
    "dtype": (lambda t, y: torch.zeros(len(y), 3, dtype=torch.float32), "returns torch.float32"),
    "sparse": (lambda t, y: torch.sparse.mm(torch.eye(3, dtype=y.dtype).to_sparse(), y.T).T, ""),
    "indices": (lambda t, y: y.gather(1, y.argmax(1, keepdim=True)) + y, "aten.argmax"),
    "chosen": (lambda t, y: y * y.max(1, keepdim=True).indices, "does not compute"),
}
SINGLE = torch.ones(3)
LARGE = torch.empty(1 << 22, 3, dtype=torch.float64)


def _write_first(y):
    out = torch.zeros_like(y)
    out[0] = 1.0
    return out + y


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_cannot_be_traced_is_refused_with_the_reason(name):
    f, reason = OBSTACLES[name]
    if isinstance(f, nn.Module):
        assert reason in refusal(lambda t, y: f(y))
    else:
        assert reason in refusal(f)


def test_batch_statistics_stay_as_they_are():
    norm = nn.BatchNorm1d(3).double()
    refusal(lambda t, y: norm(y))
    assert norm.num_batches_tracked == 0
    assert (norm.running_mean == 0).all()


def test_elements_that_a_mask_picks_are_refused_with_the_reason():
    with pytest.raises(Untraceable, match="by a mask that depends on the state or time"):
        traced(lambda t, y: -y * y[y > 0].sum(), points(3))
    assert_agrees(lambda t, y: -y * y[:, torch.tensor([True, False, True])].sum(1, keepdim=True), points(3))


def test_an_obstacle_that_f_catches_is_not_forgotten():
    def f(t, y):
        try:
            return y * float(t)
        except Exception:
            return y

    assert "reads values" in refusal(f)


class Counting:
    def __init__(self, use):
        self.calls, self.use = 0, use

    def __call__(self, t, y):
        self.calls += 1
        return self.use(self.calls, y)


CHANGING = {
    "scalar": lambda n, y: y * n,
    "literal": lambda n, y: y * torch.tensor([n, 1.0, 1.0], dtype=y.dtype),
    "array": lambda n, y: y * torch.from_numpy(np.full(3, float(n))),
    "operation": lambda n, y: y.sin() if n % 2 else y.cos(),
    "length": lambda n, y: y * 2 if n % 2 else y * 2 + 1,
    "column": lambda n, y: y[:, n % 2 : n % 2 + 1] * y,
    "full": lambda n, y: y + torch.full((3,), float(n)),
    "parameter": lambda n, y: y * (V if n % 2 else V.clone()),
}


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_from_call_to_call_is_refused(name):
    assert "does not do the same each time" in refusal(Counting(CHANGING[name]))


@pytest.mark.parametrize("width", [5, 7, 10, 35, 35 * 11 * 13])
def test_widths_that_equal_the_points_of_a_trial_are_told_apart(width):
    """Nothing says in advance how wide a closure's layers are."""
    first, second = nn.Linear(3, width).double(), nn.Linear(width, 3).double()
    assert_agrees(lambda t, y: second(first(y).tanh()), points(3))


def test_an_exact_divergence_is_traced():
    net = mlp(2, 16, 16, 2)

    def f(t, state):
        y, _ = state
        with torch.enable_grad():
            y = y.requires_grad_(True)
            dy = net(y) * t
            columns = [torch.autograd.grad(dy[:, i].sum(), y, create_graph=True)[0][:, i] for i in range(2)]
        return dy, -sum(columns)[:, None]

    result = assert_agrees(f, points(2), points(1))
    assert {id(x) for x in result.inputs({})} <= {id(x) for x in net.parameters()}


def test_a_hamiltonian_field_is_traced():
    net = mlp(4, 12, 1)

    def f(t, y):
        with torch.enable_grad():
            y = y.requires_grad_(True)
            gradient = torch.autograd.grad(net(y).sum(), y, create_graph=True)[0]
        q, p = gradient.chunk(2, 1)
        return torch.cat([p, -q], 1)

    assert_agrees(f, points(4))


def test_derivatives_by_torch_func_inside_f_are_traced():
    net = mlp(3, 8, 3)

    def f(t, y):
        jacobian = torch.func.vmap(torch.func.jacrev(net))(y)
        return y * torch.einsum("bii->b", jacobian)[:, None]

    assert_agrees(f, points(3))


def test_fields_of_the_literature_are_traced():
    gate, bias, layer = nn.Linear(1, 3).double(), nn.Linear(1, 3, bias=False).double(), nn.Linear(3, 3).double()
    cell, attention = nn.GRUCell(3, 3).double(), nn.MultiheadAttention(4, 2, batch_first=True).double()
    embedding = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)

    def squashed(t, y):
        return layer(y) * torch.sigmoid(gate(t.view(1, 1))) + bias(t.view(1, 1))

    def recurrent(t, y):
        return cell(y, layer(y)) - y

    def attending(t, y):
        tokens = y[:, :, None] * embedding
        return attention(tokens, tokens, tokens)[0].mean(2)

    for f in (squashed, recurrent, attending):
        assert assert_agrees(f, points(3)).passes_gradients


def test_one_point_times_a_matrix_is_traced():
    matrix = V[:, None] * V.sin()
    for f in (lambda t, y: matrix @ y, lambda t, y: y @ matrix, lambda t, y: torch.outer(y, V) @ y * (y @ y)):
        assert_agrees(f, points(3)[0], batch_dims=0)


def test_inputs_of_f_need_not_require_gradients_outside():
    with torch.no_grad():
        assert_agrees(lambda t, y: y.sin() * t, points(3))
    with torch.inference_mode():
        traced(lambda t, y: y.sin() * t, (points(3),))


def behind_torch(t, y):
    out = torch.zeros_like(y)
    out.numpy()[:] = 1.0
    return out * y


def test_what_torch_does_not_see_is_refused():
    assert "other means than torch's operations" in refusal(behind_torch)


STOPS = {
    "detach": lambda t, y: y.detach() * y,
    "no_grad": lambda t, y: y * torch.no_grad()(torch.sin)(y),
    "data": lambda t, y: y * (y.data + V),
    "parameter": lambda t, y: y * MADE_OF.detach(),
    "all": lambda t, y: y.detach().sin(),
    "without graph": lambda t, y: torch.autograd.grad((y**3).sum(), y)[0],
}
PASSES = {
    "plain": lambda t, y: y.sin() * MADE_OF * t,
    "with graph": lambda t, y: torch.autograd.grad((y**3 * MADE_OF.exp()).sum(), y, create_graph=True)[0],
    "writes": lambda t, y: updates(t, y) + copies(t, y) + zeros(t, y),
    "masks": lambda t, y: torch.where(y > 0, y, -y * MADE_OF),
}


@pytest.mark.parametrize("name", STOPS)
def test_stopped_gradients_are_noticed(name):
    assert not assert_agrees(STOPS[name], points(3)).passes_gradients


@pytest.mark.parametrize("name", PASSES)
def test_gradients_that_flow_are_recognised(name):
    assert assert_agrees(PASSES[name], points(3)).passes_gradients


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).double()
        self.rate = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, t, y):
        self.unused.exp()
        return self.net(y) * nn.functional.softplus(self.rate)


def built(t, y):
    a = torch.zeros(3, 3, dtype=y.dtype)
    a[0, 1] = MADE_OF[0]
    a[1, 0] = -MADE_OF[1] * 2
    a[2] += MADE_OF.exp()
    return y @ a.T + a.diagonal() + torch.from_numpy(np.ones(3)) * MADE_OF.sum()


@pytest.mark.parametrize("f", [Weighted(), built], ids=["module", "matrix"])
def test_what_is_computed_from_parameters_alone_is_computed_by_torch(f):
    result = assert_agrees(f, points(3))
    assert result.derived is not None
    assert result.passes_gradients
    parameters = [x for x in (f.parameters() if isinstance(f, nn.Module) else [MADE_OF]) if x.shape != (2,)]
    assert all(any(x is p for p in parameters) for x in result.sources)

    def loss(tensors):
        y = points(3)
        builder = Torch(y, torch.tensor(0.83, dtype=y.dtype), tensors)
        return (builder.evaluate(trace(f, (y,), False, 1, torch.zeros((), dtype=y.dtype), builder).slope) ** 2).sum()

    ours = torch.autograd.grad(loss(result.inputs({})), parameters)
    theirs = torch.autograd.grad((f(torch.tensor(0.83, dtype=torch.float64), points(3)) ** 2).sum(), parameters)
    torch.testing.assert_close(ours, theirs)


class Torch(Reference):
    """The reference with torch's tensors, as far as these fields need it."""

    def __init__(self, y, t, tensors):
        super().__init__(y.numpy(), float(t))
        self.given = list(tensors)

    def tensor(self, shape):
        values = self.given[len(self.asked)]
        self.asked.append(shape)
        first = len(self.columns)
        self.columns.extend(values.reshape(-1, 1).expand(-1, len(self.points)))
        self.kinds.extend([1] * values.numel())
        return np.arange(first, first + values.numel()).reshape(shape)

    def _get(self, rows):
        columns = [torch.from_numpy(np.array(c)) if isinstance(c, np.ndarray) else c for c in self.columns]
        return torch.stack([columns[i] for i in rows.reshape(-1)]).reshape(*rows.shape, -1)

    def _made(self, columns, *rows):
        first = len(self.columns)
        flat = columns.reshape(-1, len(self.points))
        self.columns.extend(flat)
        self.kinds.extend([3] * len(flat))
        return np.arange(first, first + len(flat)).reshape(columns.shape[:-1])

    def binary(self, name, a, b):
        a, b = np.broadcast_arrays(a, b)
        return self._made(getattr(torch, name)(self._get(a), self._get(b)), a, b)

    def linear(self, x, weight, bias=None):
        result = torch.einsum("...mp,nmp->...np", self._get(x), self._get(weight))
        return self._made(result if bias is None else result + self._get(bias), x, weight)

    def evaluate(self, rows):
        return self._get(rows).T


def test_derived_tensors_follow_their_parameters():
    f = Weighted()
    result = assert_agrees(f, points(3))
    before = [x.detach().clone() for x in result.inputs({})]
    with torch.no_grad():
        f.rate += 1.0
    after = result.inputs({})
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) == 1


def test_parameters_repeated_for_each_point_are_no_obstacle():
    code = nn.Parameter(V.clone())
    net = mlp(6, 8, 3)
    result = assert_agrees(lambda t, y: net(torch.cat([y, code.repeat(len(y), 1)], 1)), points(3))
    assert any(x is code for x in result.tensors)
    assert_agrees(lambda t, y: y * (code.expand_as(y) * code).exp(), points(3))


def test_changed_indices_make_a_program_out_of_date():
    order = torch.tensor([2, 0, 1])
    result = assert_agrees(lambda t, y: y[:, order], points(3))
    assert result.is_current({})
    order[0] = 1
    assert not result.is_current({})


def test_a_tensor_written_to_after_its_use_is_refused():
    def f(t, y):
        a = V * 2
        first = y * a
        a += V
        return first * a

    assert "has used before" in refusal(f)


def test_transforms_and_autocast_are_refused():
    y = points(3)
    with torch.autocast("cpu"):
        assert "autocast" in refusal(lambda t, y: y)

    def mapped(x):
        trace(lambda t, y: y, (y,), False, 1, torch.tensor(0.0, dtype=y.dtype), Reference(y.numpy(), 0.0))
        return x

    with pytest.raises(Untraceable, match=r"torch\.func"):
        torch.vmap(mapped)(y)


def test_tracing_leaves_random_numbers_alone():
    state = torch.get_rng_state()
    traced(lambda t, y: y.sin(), (points(3),))
    assert torch.equal(state, torch.get_rng_state())


def test_an_empty_batch_is_traced():
    builder = Reference(points(3).numpy(), 0.0)
    trace(lambda t, y: y.sin() * t, (points(3)[:0],), False, 1, torch.tensor(0.0, dtype=torch.float64), builder)


def test_tracing_does_not_import_torch_s_compiler():
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import numpy as np\n"
        "from reference_program import points, traced\n"
        "net = torch.nn.Linear(3, 3).double()\n"
        "traced(lambda t, y: net(y).tanh() * t, (points(3),))\n"
        "new = set(sys.modules) - before\n"
        "print([name for name in new if name.startswith(('sympy', 'torch.fx', 'torch._dynamo'))])"
    )
    path = __file__.rsplit("/", 1)[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_quantized_layers_are_refused():
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 3)), {nn.Linear})
    with pytest.raises(Untraceable, match="f uses parameters that are not tensors"):
        traced(lambda t, y: net(y), (torch.rand(4, 3),))


def test_an_operation_of_another_library_is_not_taken_for_torchs_of_the_same_name():
    library = torch.library.Library("anode_tests", "DEF")
    library.define("exp(Tensor x) -> Tensor")
    library.impl("exp", lambda x: 2 * x.exp(), "CompositeExplicitAutograd")
    with torch.no_grad(), pytest.raises(Untraceable, match=r"anode_tests\.exp is not among the operations"):
        traced(lambda t, y: torch.ops.anode_tests.exp(y.detach()), (points(3),))
