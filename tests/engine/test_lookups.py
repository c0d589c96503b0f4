"""Functions that look something up by time: interpolated inputs and controlled differential equations."""

import pytest
import torch
import torchdiffeq
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anode
from anode.engine.extension import extension
from anode.engine.memory import memory_of

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")
KNOTS = torch.tensor([0.0, 0.2, 0.35, 0.6, 0.9, 1.0], dtype=torch.float64)


def data(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Path(nn.Module):
    """A piecewise linear path through data [points, knots, channels], as libraries for such equations write it."""

    def __init__(self, values):
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("slopes", (values[:, 1:] - values[:, :-1]) / (KNOTS[1:] - KNOTS[:-1]).unsqueeze(-1))
        self.register_buffer("knots", KNOTS)

    def interval(self, t):
        last = self.slopes.size(-2) - 1
        index = torch.bucketize(t.detach(), self.knots.detach()).sub(1).clamp(0, last)
        return t - self.knots[index], index

    def evaluate(self, t):
        after, index = self.interval(t)
        return self.values[..., index, :] + after * self.slopes[..., index, :]

    def derivative(self, t):
        _, index = self.interval(t)
        return self.slopes[..., index, :]


class Controlled(nn.Module):
    def __init__(self, path, hidden=4, channels=3):
        super().__init__()
        torch.manual_seed(0)
        self.path, self.shape = path, (hidden, channels)
        self.net = nn.Sequential(nn.Linear(hidden, 8), nn.ReLU(), nn.Linear(8, hidden * channels), nn.Tanh()).double()

    def forward(self, t, z):
        matrices = self.net(z).view(*z.shape[:-1], *self.shape)
        return (matrices @ self.path.derivative(t).unsqueeze(-1)).squeeze(-1)


class Driven(Controlled):
    def forward(self, t, z):
        return torch.sin(z) * self.path.evaluate(t).sum(-1, keepdim=True)


def solved(library, f, y0, wanted):
    """By equal steps, none of which ends at a knot: adaptive ones depend on rounding where the slope jumps."""
    y = library.odeint(f, y0, torch.linspace(0, 1, 3).double(), method="rk4", options={"step_size": 0.07})
    return [y, *torch.autograd.grad((y**2).sum(), wanted, retain_graph=True)]


@pytest.mark.parametrize("rows", [1, 3, 80])
@pytest.mark.parametrize("kind", [Controlled, Driven])
def test_controlled_equations_are_solved_as_by_torchdiffeq(kind, rows, monkeypatch):
    values = data(rows, len(KNOTS), 3).requires_grad_()
    f, y0 = kind(Path(values)), data(rows, 4, seed=1).requires_grad_()
    wanted = [y0, values, *(f.net.parameters() if kind is Controlled else ())]
    assert anode.explain(f, y0).engine.name == "native", anode.explain(f, y0)
    native, theirs = (solved(library, f, y0, wanted) for library in (anode, torchdiffeq))
    monkeypatch.setenv("ANODE_ENGINE", "torch")
    torch.testing.assert_close(native, solved(anode, f, y0, wanted), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(native, theirs, rtol=1e-9, atol=1e-9)


def test_a_new_path_for_each_batch_needs_no_new_trace():
    f, parts = Controlled(Path(data(5, len(KNOTS), 3))), []
    for seed, rows in enumerate((5, 5, 9)):
        wrapper = Controlled(Path(data(rows, len(KNOTS), 3, seed=seed)))
        wrapper.net = f.net
        y0 = data(rows, 4, seed=1)
        fixed = {"method": "rk4", "step_size": 0.07}
        ours, theirs = (anode.solve(wrapper, y0, (0.0, 1.0), engine=engine, **fixed) for engine in ("auto", "torch"))
        parts.append(ours.engine.name)
        torch.testing.assert_close(ours.y1, theirs.y1, rtol=1e-9, atol=1e-9)
    assert parts == ["native"] * 3
    assert sum(memory.traces.total() for memory in memory_of(f.net[0]).functions.values()) == 1


def test_paths_with_many_intervals_are_left_to_python():
    table, knots = data(300, 600, 2), torch.linspace(0, 1, 601).double()

    def f(t, y):
        return y * table[:, torch.bucketize(t, knots) - 1]

    explained = anode.explain(f, data(300, 2), 0.1)
    assert "aten.index is not among the operations that the engine has" in str(explained)


TABLE = data(6, 3, 2)
PICKED = {
    "x[i]": lambda x, i: x[i].sum(0),
    "x[:, i]": lambda x, i: x[:, i.clamp(max=2)].sum(0),
    "x[..., i]": lambda x, i: x[..., i.clamp(max=1)].sum() * torch.ones(2, dtype=x.dtype),
    "x[i, 1]": lambda x, i: x[i, 1],
    "x[2, i]": lambda x, i: x[2, i.clamp(max=2)],
    "x[i, :, 0]": lambda x, i: x[i, :, 0][:2],
    "x[None, i]": lambda x, i: x[None, i].sum((0, 1)),
    "x[i, ..., 1:]": lambda x, i: x[i, ..., 1:].sum() * torch.ones(2, dtype=x.dtype),
    "x[-i]": lambda x, i: x[-i].sum(0),
    "index_select": lambda x, i: x.index_select(0, i.reshape(1))[0, 0],
}


class Picking(nn.Module):
    def __init__(self, pick, count, right):
        super().__init__()
        self.pick, self.count, self.right, self.table = pick, count, right, nn.Parameter(TABLE.clone())

    def forward(self, t, y):
        index = (self.count(t, KNOTS, right=self.right) - 1).clamp(0, 5)
        return y * self.pick(self.table, index)


@pytest.mark.parametrize(
    "count", [torch.bucketize, lambda t, knots, right=False: torch.searchsorted(knots, t, right=right)]
)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("name", PICKED)
def test_every_way_to_index_is_pythons(name, right, count):
    f, y0 = Picking(PICKED[name], count, right), data(7, 2)
    for t in (0.0, *KNOTS[1:-1].tolist(), 0.77, 1.0):
        assert anode.explain(f, y0, t).engine.name == "native"
    fixed = {"method": "midpoint", "step_size": 0.05, "gradient": "stored"}
    ours, theirs = (anode.solve(f, y0, (0.0, 1.0), engine=engine, **fixed) for engine in ("native", "torch"))
    torch.testing.assert_close(ours.y1, theirs.y1, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(each.y1.sum(), f.table)[0] for each in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_points_look_up_by_their_own_state():
    table, knots = data(6, 2).requires_grad_(), torch.linspace(-1.0, 1.0, 5).double()

    def f(t, y):
        return torch.tanh(y) * table[torch.bucketize(y[:, 0].contiguous().detach(), knots)]

    y0 = data(50, 2)
    fixed = {"method": "rk4", "step_size": 0.1, "gradient": "stored"}
    ours, theirs = (anode.solve(f, y0, (0.0, 1.0), engine=engine, **fixed) for engine in ("auto", "torch"))
    assert ours.engine.name == "native"
    torch.testing.assert_close(ours.y1, theirs.y1, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(each.y1.sum(), table)[0] for each in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_an_index_that_does_not_exist_fails_the_solve():
    def f(t, y):
        return y * TABLE[torch.bucketize(t, KNOTS * 0.8)][0]  # the table has no row 6, which is reached after 0.8

    solution = anode.solve(f, data(3, 2), (0.0, 1.0), method="rk4", step_size=0.1)
    assert solution.engine.name == "native"
    assert solution.status == anode.Status.NON_FINITE
    with pytest.raises(IndexError):
        anode.solve(f, data(3, 2), (0.0, 1.0), method="rk4", step_size=0.1, engine="torch")


def test_detached_values_that_only_choose_do_not_prevent_gradients_and_others_do():
    w = data(2, 2).requires_grad_()
    chooses = lambda t, y: torch.where(y.detach() > 0, y @ w, -y)  # noqa: E731
    stops = lambda t, y: y.detach() @ w  # noqa: E731
    returns = lambda t, y: (y @ w).detach()  # noqa: E731
    y0 = data(4, 2).requires_grad_()
    assert anode.explain(chooses, y0).engine.name == "native"
    for f in (stops, returns):
        assert "stops gradients" in str(anode.explain(f, y0).engine)
    found = [
        torch.autograd.grad(anode.solve(chooses, y0, (0.0, 1.0), engine=engine, gradient="stored").y1.sum(), [y0, w])
        for engine in ("native", "torch")
    ]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(st.lists(st.floats(-1.0, 2.0, width=32), min_size=1, max_size=8), st.booleans(), st.floats(-1.5, 2.5, width=32))
def test_counting_is_torchs_for_any_boundaries(knots, right, t):
    boundaries = torch.tensor(sorted(knots), dtype=torch.float64)
    values = torch.arange(len(knots) + 1, dtype=torch.float64)

    def f(t, y):
        return y * values[torch.bucketize(t, boundaries, right=right)]

    y0 = torch.ones(2, 1, dtype=torch.float64)
    options = {"method": "euler", "step_size": 1.0}
    ours, theirs = (anode.solve(f, y0, (t, t + 1.0), engine=engine, **options).y1 for engine in ("native", "torch"))
    assert torch.equal(ours, theirs)
