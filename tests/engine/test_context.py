"""Functions that read tensors with a row per point, such as the condition of a conditional flow, beside torchdiffeq."""

from typing import NamedTuple

import pytest
import torch
import torchdiffeq
from torch import nn

import anode
from anode.engine.extension import extension
from anode.engine.memory import memory_of

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")
TIMES = torch.linspace(0.0, 1.0, 4, dtype=torch.float64)


def points(rows, *shape, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, *shape, dtype=torch.float64, generator=generator).requires_grad_(grad)


def network(inputs, outputs, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, outputs)).double()


class Conditional(nn.Module):
    """A field with an attribute that is set before each solve."""

    def __init__(self, condition):
        super().__init__()
        self.net, self.condition, self.nfe = network(5, 2), condition, 0

    def forward(self, t, y):
        self.nfe += 1
        return self.net(torch.cat([y, self.condition], dim=1)) * (1 + t)


class Weights(nn.Module):
    """Matrices for each point, as a hypernetwork gives them, whose shape f asks for."""

    def __init__(self, condition):
        super().__init__()
        self.matrices, self.bias = condition, nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, t, y):
        rows, outputs, inputs = self.matrices.shape
        product = torch.bmm(self.matrices, y.view(rows, inputs, 1)).view(len(self.matrices), outputs)
        return torch.tanh(product + self.bias) * t


class Noise(nn.Module):
    """A density with Hutchinson's estimate of the trace, whose noise is an attribute."""

    def __init__(self, condition):
        super().__init__()
        self.net, self.noise = network(2, 2), condition

    def forward(self, t, state):
        z, _ = state
        with torch.enable_grad():
            z = z.requires_grad_()
            slope = self.net(z)
            (pulled,) = torch.autograd.grad(slope, z, self.noise, create_graph=True)
        return slope, -(pulled * self.noise).sum(1, keepdim=True)


class Encoded(nn.Module):
    """A field that computes with the condition alone too."""

    def __init__(self, condition):
        super().__init__()
        self.encode, self.condition = network(3, 2, seed=3), condition

    def forward(self, t, y):
        return torch.sin(y + self.encode(self.condition)) - self.condition[:, :1] * t


FIELDS = {
    "attribute": (Conditional, (3,)),
    "matrices": (Weights, (2, 2)),
    "noise": (Noise, (2,)),
    "code": (Encoded, (3,)),
}


def found(library, f, y0, wanted, solver="odeint", **options):
    """Values and gradients, by one library."""
    y = getattr(library, solver)(f, y0, TIMES, **{"rtol": 1e-7, "atol": 1e-9, **options})
    parts = y if isinstance(y, tuple) else (y,)
    total = sum((part * torch.linspace(0.5, 1.5, part.numel()).view_as(part)).sum() for part in parts)
    return [*parts, *torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=True)]


@pytest.fixture
def assert_same(monkeypatch):
    """Compares with the Python core, up to rounding, and with torchdiffeq, whose gradients include its step sizes."""

    def compare(f, y0, wanted, **options):
        native = found(anode, f, y0, wanted, **options)
        with monkeypatch.context() as patch:
            patch.setenv("ANODE_ENGINE", "torch")
            python = found(anode, f, y0, wanted, **options)
        theirs = found(torchdiffeq, f, y0, wanted, **options)
        torch.testing.assert_close(native, python, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(native, theirs, rtol=1e-4, atol=1e-6)

    return compare


def of(f, y0):
    """The names of the tensors of which the engine takes a row per point."""
    explained = anode.explain(f, y0)
    assert explained.engine.name == "native", explained
    return [name for name, _ in explained.context]


@pytest.mark.parametrize("rows", [1, 3, 9, 150])
@pytest.mark.parametrize("name", FIELDS)
def test_values_and_gradients_are_torchdiffeqs(name, rows, assert_same):
    make, shape = FIELDS[name]
    base = points(rows, *shape, seed=1)
    f, y0 = make(1.5 * base), points(rows, 2)
    state = (y0, torch.zeros(rows, 1, dtype=torch.float64)) if name == "noise" else y0
    assert_same(f, state, [y0, base, *f.parameters()])
    if rows > 1:
        assert len(of(f, state)) == 1


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_a_condition_may_be_in_a_named_tuple_and_given_to_torch_in_one(assert_same):
    net, y0 = network(5, 2), points(300, 2)
    for seed in range(2):
        pair = Pair(points(300, 3, seed=seed), points(2, seed=seed))
        f = lambda t, y, pair=pair: net(torch.cat(Pair(y, pair.first), 1)) * pair.second * t  # noqa: E731
        assert_same(f, y0, [y0, *pair, *net.parameters()])
        assert len(of(f, y0)) == 1
    assert memory_of(f).traces.total() == 1


def test_more_points_than_one_point_may_have_features_are_compiled():
    condition = points(1000, 3, grad=False)
    net = network(5, 2)
    assert of(lambda t, y: net(torch.cat([y, condition], 1)), points(1000, 2)) == ["condition"]


def test_the_first_step_and_all_others_are_those_without_the_condition_in_the_norm():
    condition = 1e4 * points(40, 3, grad=False)
    f, y0 = Conditional(condition), points(40, 2)
    ours = anode.solve(f, y0, (0.0, 1.0), rtol=1e-5, atol=1e-6)
    assert ours.engine.name == "native"
    f.nfe = 0
    torchdiffeq.odeint(f, y0, TIMES[[0, -1]], rtol=1e-5, atol=1e-6)
    assert int(ours.stats.nfe) == f.nfe


def test_every_point_may_have_its_own_step_size():
    f, y0 = Conditional(points(30, 3, grad=False)), points(30, 2, grad=False)
    solutions = [
        anode.solve(f, y0, (0.0, 1.0), control="sample", rtol=1e-6, atol=1e-8, engine=engine)
        for engine in ("native", "torch")
    ]
    torch.testing.assert_close(solutions[0].y1, solutions[1].y1, rtol=1e-9, atol=1e-9)
    assert solutions[0].stats.nfe.tolist() == solutions[1].stats.nfe.tolist()


def test_another_condition_before_every_solve_needs_no_new_trace_even_with_another_number_of_points(assert_same):
    f = Conditional(points(8, 3))
    for seed, rows in enumerate((8, 8, 5, 64, 8)):
        f.condition, y0 = points(rows, 3, seed=seed), points(rows, 2, seed=9)
        assert_same(f, y0, [f.condition, *f.parameters()])
    assert memory_of(f).traces.total() == 1


def test_a_new_function_with_another_condition_in_its_closure_needs_no_new_trace(assert_same):
    net = network(5, 2)

    def solve(condition, y0):
        f = lambda t, y: net(torch.cat([y, condition], 1))  # noqa: E731
        assert_same(f, y0, [y0, condition, *net.parameters()])
        return memory_of(f).traces.total()

    counts = [solve(points(rows, 3, seed=i), points(rows, 2)) for i, rows in enumerate((6, 6, 11))]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize("solver", ["odeint", "odeint_adjoint"])
def test_gradients_reach_what_the_condition_was_computed_from(solver, assert_same):
    encoder, code = network(4, 3), points(20, 4, grad=False)
    f, y0 = Conditional(encoder(code)), points(20, 2)
    more = {} if solver == "odeint" else {"adjoint_params": (*f.parameters(), f.condition)}
    wanted = [y0, *f.parameters(), *encoder.parameters()]
    if solver == "odeint":
        assert_same(f, y0, wanted)
        return
    condition = f.condition  # torchdiffeq frees the graph of the encoder: the condition is where gradients end
    assert_same(f, y0, [y0, condition, *f.parameters()], solver=solver, **more)


def test_second_derivatives_reach_the_condition():
    condition, y0 = points(6, 3), points(6, 2)
    f, found = Conditional(condition), []
    for library in (anode, torchdiffeq):
        y1 = library.odeint(f, y0, TIMES, rtol=1e-7, atol=1e-9)[-1]
        (first,) = torch.autograd.grad((y1**2).sum(), condition, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), [y0, condition, *f.parameters()], allow_unused=True))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_second_derivatives_are_those_of_the_condition_of_the_solve():
    y0, found = points(6, 2), []
    for library in (anode, torchdiffeq):
        condition = points(6, 3)
        f = Conditional(condition)
        y1 = library.odeint(f, y0, TIMES, rtol=1e-7, atol=1e-9)[-1]
        f.condition = points(6, 3, seed=5)
        (first,) = torch.autograd.grad((y1**2).sum(), condition, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), [y0, condition, *f.parameters()], allow_unused=True))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_an_event_and_steps_taken_in_python_use_the_condition_too():
    condition, y0 = points(12, 3), points(12, 2)
    f = Conditional(condition)
    solutions = [
        anode.solve(f, y0, (0.0, 1.0), step_at=[0.3], gradient="discrete", rtol=1e-6, atol=1e-8, engine=engine)
        for engine in ("auto", "torch")
    ]
    assert "f is compiled" in str(solutions[0].engine)
    found = [torch.autograd.grad(each.y1.sum(), [y0, condition, *f.parameters()]) for each in solutions]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_as_many_points_as_a_layer_has_units_are_no_obstacle(assert_same):
    condition = points(9, 3)  # `network` has 9 hidden units
    f, y0 = Conditional(condition), points(9, 2)
    assert of(f, y0) == ["condition"]
    assert_same(f, y0, [y0, condition, *f.parameters()])


def test_a_tensor_that_f_does_not_read_is_left_out():
    f, y0 = Conditional(points(7, 3)), points(7, 2)
    f.data = points(7, 100)
    assert of(f, y0) == ["condition"]


@pytest.mark.parametrize("mixing", ["flipped", "next", "differences"])
def test_points_that_read_the_rows_of_others_are_seen(mixing, assert_same):
    condition, y0 = points(300, 2, grad=False), points(300, 2)
    moved = {
        "flipped": lambda: condition.flip(0),
        "next": lambda: condition.roll(1, 0),
        "differences": lambda: condition - condition.mean(0),
    }[mixing]

    def f(t, y):
        return moved() * y

    assert anode.explain(f, y0).engine.name == "torch"
    assert_same(f, y0, [y0])


def test_a_table_that_all_points_read_is_no_condition_although_it_has_as_many_rows(assert_same):
    table, y0 = points(300, 2, grad=False), points(300, 2)

    def f(t, y):
        return torch.softmax(y @ table.T, -1) @ table - table.mean(0)

    assert of(f, y0) == []
    assert_same(f, y0, [y0])


def test_a_condition_that_does_not_fit_the_points_is_fs_own_error():
    f = Conditional(points(8, 3))
    anode.odeint(f, points(8, 2), TIMES)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        anode.odeint(f, points(7, 2), TIMES)


def test_a_row_for_all_points_is_not_taken_for_one_per_point_if_there_is_one_point_first(assert_same):
    f, y0 = Conditional(points(1, 3)), points(1, 2)
    f.shift = points(1, 3, seed=4)
    f.forward = lambda t, y: f.net(torch.cat([y, f.condition + f.shift], 1)) * t
    for rows in (1, 8, 1, 30):
        f.condition, y0 = points(rows, 3, seed=rows), points(rows, 2)
        assert_same(f, y0, [y0, f.condition, f.shift, *f.parameters()])
        assert anode.explain(f, y0).engine.name == "native"
    assert memory_of(f).traces.total() == 2


def test_a_condition_that_is_changed_in_place_is_read_again(assert_same):
    f, y0 = Conditional(points(8, 3, grad=False)), points(8, 2)
    anode.odeint(f, y0, TIMES)
    f.condition.mul_(-2.0)
    assert_same(f, y0, [y0, *f.parameters()])
    assert memory_of(f).traces.total() == 1


def test_a_row_that_is_not_finite_fails_the_solve_as_in_python():
    condition = points(8, 3, grad=False)
    condition[3, 1] = torch.nan
    f, y0 = Conditional(condition), points(8, 2, grad=False)
    native, python = (anode.solve(f, y0, (0.0, 1.0), engine=engine) for engine in ("native", "torch"))
    assert native.status == python.status == anode.Status.NON_FINITE


def test_the_listing_names_the_condition():
    condition, net = points(20, 3, grad=False), network(5, 2)
    text = str(anode.explain(lambda t, y: net(torch.cat([y, condition], 1)), points(20, 2)))
    assert "points of 2 features" in text
    assert "condition [20, 3], which has a row per point" in text
    assert "@ cat(y, condition)" in text
    assert "dy (2) =" in text
