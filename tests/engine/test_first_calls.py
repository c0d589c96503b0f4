"""Functions whose first call makes what the others use: Python makes that call, and the next solve is compiled."""

import pytest
import torch
from torch import nn

import anode
from anode.engine.extension import extension
from anode.engine.memory import MOST_TRACES, memory_of

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")


def points(rows):
    return torch.linspace(-1.0, 1.0, 2 * rows, dtype=torch.float64).reshape(rows, 2)


class Late(nn.Module):
    """Makes its layer when it sees the first state. Multiplied by t, so that first slopes tell nothing."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = None, 0

    def forward(self, t, y):
        self.calls += 1
        if self.layer is None:
            self.layer = nn.Linear(y.shape[1], y.shape[1]).double()
        return torch.tanh(self.layer(y)) * t


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(2, dtype=torch.float64)

    def forward(self, t, y):
        return torch.tanh(self.layer(y)) * t


class Masked(nn.Module):
    """Keeps a tensor for the present number of points."""

    def __init__(self):
        super().__init__()
        self.layer, self.mask = nn.Linear(2, 2).double(), None

    def forward(self, t, y):
        if self.mask is None or len(self.mask) != len(y):
            self.mask = torch.linspace(0.5, 1.0, len(y), dtype=y.dtype)[:, None]
        return self.mask * torch.tanh(self.layer(y)) * t


class Numbered(nn.Module):
    """Notes the number of points, which is no tensor, and computes with it."""

    def __init__(self):
        super().__init__()
        self.count = None

    def forward(self, t, y):
        if self.count is None or self.count != len(y):
            self.count = len(y)
        return -y * t * self.count


class Logging(nn.Module):
    """Has a side effect for many points only, which do not show in a trace of few."""

    def __init__(self):
        super().__init__()
        self.log = []

    def forward(self, t, y):
        if len(y) > 100:
            self.log.append(float(t))
        return -y * t


def solved(f, rows, engine="auto"):
    y0 = points(rows).requires_grad_()
    solution = anode.solve(f, y0, (0.0, 1.0), rtol=1e-7, atol=1e-9, gradient="stored", engine=engine)
    wanted = [y0, *f.parameters()]
    return solution, [solution.y1, *torch.autograd.grad((solution.y1**2).sum(), wanted)]


def check(f, rows):
    """The values and gradients of a solve are Python's. Return its engine."""
    solution, ours = solved(f, rows)
    torch.testing.assert_close(ours, solved(f, rows, "torch")[1], rtol=1e-9, atol=1e-9)
    return solution.engine.name


@pytest.mark.parametrize("make", [Late, Lazy])
def test_a_layer_that_the_first_call_makes_is_compiled_from_the_second_solve(make):
    torch.manual_seed(0)
    f = make()
    assert [check(f, rows) for rows in (4, 4, 9, 300)] == ["torch", "native", "native", "native"]
    f.layer = nn.Linear(2, 2).double()
    assert check(f, 4) == "native"
    f.layer = None if make is Late else nn.LazyLinear(2, dtype=torch.float64)
    assert [check(f, 4) for _ in range(2)] == ["torch", "native"]


def test_every_call_counts_whoever_makes_it():
    torch.manual_seed(0)
    f = Late()
    for _ in range(3):
        f.calls = 0
        assert int(anode.solve(f, points(4), (0.0, 1.0)).stats.calls) == f.calls


def test_a_tensor_that_is_kept_for_a_number_of_points_is_read_by_row():
    torch.manual_seed(0)
    f = Masked()
    assert [check(f, rows) for rows in (4, 4, 300)] == ["torch", "native", "torch"]
    assert len(f.mask) == 300
    assert [check(f, rows) for rows in (300, 4, 4)] == ["native", "torch", "native"]
    f.mask = torch.full_like(f.mask, 3.0)
    assert check(f, 4) == "native"


def test_a_trace_leaves_no_trace_in_f():
    torch.manual_seed(0)
    f = Numbered()
    for rows in (4, 4, 9, 4, 300, 300):
        check(f, rows)
        assert f.count == rows


def test_a_side_effect_for_many_points_is_noticed_with_as_many():
    f = Logging()
    assert [check(f, rows) for rows in (4, 200, 200)] == ["native", "torch", "torch"]
    f.log.clear()
    solution = anode.solve(f, points(200), (0.0, 1.0))
    assert len(f.log) == solution.stats.calls


class Branching(nn.Module):
    """Runs other code for many points, which reads what the code for few does not."""

    def __init__(self):
        super().__init__()
        self.gain = self.other = 1.0

    def for_many(self, y):
        return y * self.other

    def forward(self, t, y):
        return (self.for_many(y) if len(y) > 100 else y * self.gain) * t


def test_code_that_runs_for_many_points_only_is_called_in_python():
    f = Branching()
    assert [check(f, rows) for rows in (4, 200)] == ["native", "torch"]
    f.other = 3.0
    assert [check(f, rows) for rows in (4, 200)] == ["native", "torch"]


def test_a_table_by_the_number_of_points_holds_only_those_of_solves():
    class Table(Masked):
        def forward(self, t, y):
            if len(y) not in self.table:
                self.table[len(y)] = torch.linspace(0.5, 1.0, len(y), dtype=y.dtype)[:, None]
            return self.table[len(y)] * torch.tanh(self.layer(y)) * t

    torch.manual_seed(0)
    f = Table()
    f.table = {}
    for rows in (4, 4, 9, 9, 4, 300):
        check(f, rows)
    assert list(f.table) == [4, 9, 300]


def test_what_has_a_side_effect_each_time_is_not_observed_for_ever():
    f, words = Logging(), "f appends to a list (list.append)"
    for _ in range(MOST_TRACES + 3):
        assert words in str(anode.solve(f, points(200), (0.0, 1.0)).engine)
    assert memory_of(f).traces.total() == MOST_TRACES


def test_a_hook_that_is_removed_is_no_obstacle_any_more():
    net = nn.Linear(2, 2).double()
    handle = net.register_forward_hook(lambda *given: None)
    for _ in range(2):
        assert "a hook is registered on Linear" in str(anode.solve(net_of(net), points(4), (0.0, 1.0)).engine)
    handle.remove()
    assert anode.solve(net_of(net), points(4), (0.0, 1.0)).engine.name == "native"


def net_of(net):
    return lambda t, y: net(y)


def test_an_explanation_is_that_of_the_next_solve():
    torch.manual_seed(0)
    f = Late()
    explained = anode.explain(f, points(4))
    assert [name for name, _ in explained.tensors] == ["layer.bias", "layer.weight"]
    assert anode.solve(f, points(4), (0.0, 1.0)).engine == explained.engine


class Appending(nn.Module):
    def __init__(self):
        super().__init__()
        self.times = []

    def forward(self, t, y):
        self.times.append(t)
        return -y * t


def test_what_grows_with_every_call_is_not_watched_for_good(monkeypatch):
    f = Appending()
    for _ in range(MOST_TRACES + 1):
        solution = anode.solve(f, points(4), (0.0, 1.0))
    assert str(solution.engine).startswith("torch (f appends to a list")
    assert len(memory_of(f).entries) == 1
    monkeypatch.setattr("anode.engine.watch.guard.Guard.changes", lambda self: pytest.fail("f is still watched"))
    monkeypatch.setattr("anode.engine.compiling.observe", lambda *_: pytest.fail("f is still observed"))
    assert anode.solve(f, points(4), (0.0, 1.0)).engine.name == "torch"
