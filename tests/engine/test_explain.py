"""anode.explain says who would solve, and as what."""

import pytest
import torch
from torch import nn

import anode
from anode.engine import native

pytestmark = pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))
        self.plain = torch.tensor(0.5)
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        return self.net(torch.cat([y, t.expand(len(y), 1)], 1)) * self.scale + self.plain


def test_a_module_is_told_by_its_own_names():
    told = anode.explain(Counted(), torch.rand(8, 2))
    shapes = {"net.0.weight": (5, 3), "net.0.bias": (5,), "net.2.weight": (2, 5), "net.2.bias": (2,)}
    assert dict(told.tensors) == {**shapes, "scale": (2,), "plain": ()}
    assert told.lines[0] == "v1 (5) = tanh(net.0.weight @ cat(y, t) + net.0.bias)"
    assert told.operations == len(told.lines) == 4
    assert told.counters == (("nfe", 1),)
    assert told.kept >= 5  # what tanh returns
    assert str(told) == repr(told)
    assert "plain []" in str(told)


def test_counters_stay_as_they_are_traced_or_not():
    field, y0 = Counted(), torch.rand(8, 2)
    for _ in range(2):
        anode.explain(field, y0)
        assert field.nfe == 0
    solution = anode.solve(field, y0, (0.0, 1.0))
    assert field.nfe == solution.stats.nfe


def test_f_is_called_at_the_given_start_time():
    def f(t, y):
        if t != 2.0:
            raise ValueError("another time")
        return -y

    with pytest.raises(ValueError, match="another time"):
        anode.explain(f, torch.rand(8, 2))
    assert "reads values" in str(anode.explain(f, torch.rand(8, 2), t=2.0))


@pytest.mark.parametrize("grad", [True, False])
def test_it_says_what_the_solve_says(grad):
    memory = []
    fields = [
        lambda t, y: -y,
        lambda t, y: y + torch.rand_like(y),
        lambda t, y: memory.append(1) or -y,
        lambda t, y: y - y.mean(0),
        lambda t, y: y if y.sum() > 0 else -y,
        lambda t, y: y.detach() * y,
        nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
        anode.MLPField(2, 4),
    ]
    y0 = torch.rand(300, 2)
    with torch.set_grad_enabled(grad):
        told = [str(anode.explain(f, y0).engine) for f in fields]
        assert told == [str(anode.solve(f, y0, (0.0, 1.0)).engine) for f in fields]


@pytest.mark.parametrize("switch", ["ANODE_ENGINE", "dtype"])
def test_what_is_no_matter_of_f_is_said_first(switch, monkeypatch):
    y0 = torch.rand(8, 2)
    if switch == "dtype":
        told = anode.explain(lambda t, y: -y, y0.half())
        assert told.engine.obstacle == "the state is of torch.float16"
    else:
        monkeypatch.setenv("ANODE_ENGINE", "torch")
        told = anode.explain(lambda t, y: -y, y0)
        assert told.engine.obstacle == "ANODE_ENGINE=torch is set"
    assert told.lines == ()
    assert str(told) == f"engine    torch, which calls f as it is: {told.engine.obstacle}"


class Holder:
    def __init__(self):
        self.rates = torch.rand(2)

    def field(self, t, y):
        return y * self.rates


def test_tensors_of_closures_methods_and_containers_have_names():
    matrix, several = torch.rand(2, 2), [torch.rand(2), torch.rand(2)]
    layer, holder = nn.Linear(2, 2), Holder()
    y0 = torch.rand(8, 2)

    def names(f):
        return [name for name, _ in anode.explain(f, y0).tensors]

    assert names(lambda t, y: y @ matrix) == ["matrix"]
    assert names(lambda t, y: y * several[1]) == ["several[1]"]
    assert sorted(names(lambda t, y: layer(y))) == ["layer.bias", "layer.weight"]
    assert names(holder.field) == ["rates"]
    assert names(lambda t, y: holder.field(t, y)) == ["holder.rates"]


def test_tensors_are_named_beside_sparse_ones_and_variables_without_a_value():
    def made(is_exact):
        if not is_exact:
            noise = torch.rand(2)
        return lambda t, y: y * rate if is_exact else y * noise

    rate, y0 = torch.rand(2), torch.rand(8, 2)
    assert [name for name, _ in anode.explain(made(is_exact=True), y0).tensors] == ["rate"]
    sparse = torch.eye(8).to_sparse()
    assert "torch.sparse_coo" in str(anode.explain(lambda t, y: sparse @ y, y0))


def test_what_torch_computes_once_is_said_with_its_sources():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2, bias=False))
    told = anode.explain(lambda t, y: layer(y), torch.rand(8, 2))
    ((name, sources),) = told.computed
    assert told.lines == (f"dy (2) = {name} @ y",)
    assert sorted(sources) == [f"layer.parametrizations.weight.original{i}" for i in (0, 1)]


def test_integer_tensors_are_fixed():
    order = torch.tensor([1, 0])
    told = anode.explain(lambda t, y: y[:, order], torch.rand(8, 2))
    assert told.fixed == ("order",)
    assert told.lines == ("dy (2) = y[[1, 0]]",)


def test_points_and_features_are_told_apart():
    def state(f, *shape):
        return anode.explain(f, torch.rand(shape)).state

    assert state(lambda t, y: -y, 8, 3, 2).startswith("points of 6 features, float32; dimension 0")
    assert state(lambda t, y: -y).startswith("one point of 1 feature,")
    assert state(anode.MLPField(2, 4), 8, 3, 2).endswith("all dimensions of y0 but the last count the points")
    assert state(anode.stack([anode.MLPField(2, 4)] * 3), 3, 8, 2).startswith("3 members, each with points of 2")
    pair = anode.explain(lambda t, y: (y[1], -y[0]), (torch.rand(8, 2), torch.rand(8, 2)))
    assert pair.state.startswith("points of 4 features in 2 components")
    assert pair.lines == ("v1 (2) = -y[0]", "dy (4) = cat(y[1], v1)")


def test_states_that_cannot_be_solved_from_are_refused():
    with pytest.raises(ValueError, match="y0: takes finite values"):
        anode.explain(lambda t, y: -y, torch.tensor([float("nan")]))


@pytest.mark.parametrize("f", [3, lambda y: y, nn.Linear], ids=["number", "one argument", "class"])
def test_what_is_no_right_hand_side_is_refused(f):
    with pytest.raises(TypeError, match=r"^f: takes a function .*f\(t, y\), got "):
        anode.explain(f, torch.rand(8, 2))
