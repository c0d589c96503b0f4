"""Values that depend on time and parameters only, which the engine computes once for all points with one time."""

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode.engine import native
from anode.engine.extension import extension
from anode.engine.program.layout import Layout, Space
from anode.engine.program.program import Builder

pytestmark = pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")


def column(t, y):
    """The time of each point, as control="sample" needs it."""
    return torch.ones_like(y[:, :1]) * t


class Gates(nn.Module):
    """Layers whose results are scaled and shifted by functions of time."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 9), nn.Linear(9, 3)
        self.gates = nn.ModuleList([nn.Linear(1, 9), nn.Linear(1, 3)])
        self.shift = nn.Linear(1, 9, bias=False)

    def forward(self, t, y):
        t = column(t, y)
        y = torch.tanh(self.first(y) * torch.sigmoid(self.gates[0](t)) + self.shift(t))
        return self.second(y) * torch.sigmoid(self.gates[1](t))


class Embedding(nn.Module):
    """Sines and cosines of the time, through a layer, as inputs beside the state."""

    def __init__(self):
        super().__init__()
        self.frequencies, self.embed = nn.Parameter(torch.tensor([1.0, 2.5, 4.0])), nn.Linear(6, 4)
        self.first, self.second = nn.Linear(7, 8), nn.Linear(8, 3)

    def forward(self, t, y):
        angles = column(t, y) * self.frequencies
        embedded = torch.nn.functional.silu(self.embed(torch.cat([angles.sin(), angles.cos()], 1)))
        return self.second(torch.tanh(self.first(torch.cat([y, embedded], 1))))


class Softened(nn.Module):
    """Weights of the features that a softmax makes of the time, one of which scales all."""

    def __init__(self):
        super().__init__()
        self.rates, self.mix = nn.Linear(1, 3), nn.Linear(3, 3)

    def forward(self, t, y):
        weights = torch.softmax(self.rates(column(t, y)), 1)
        return torch.tanh(self.mix(y)) * weights - y * weights[:, :1] / weights.amax(1, keepdim=True)


class TimeAlone(nn.Module):
    """A slope that is the same for all points."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 3)

    def forward(self, t, y):
        return torch.tanh(self.net(column(t, y)))


class Hyper(nn.Module):
    """Matrices that a network makes of the time."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 9))

    def forward(self, t, y):
        matrix = self.net(column(t, y)).reshape(-1, 3, 3)
        return torch.tanh((y[:, None, :] * matrix).sum(-1))


FIELDS = [Gates, Embedding, Softened, TimeAlone, Hyper]
each_field = pytest.mark.parametrize("field", FIELDS)


def found(field, engine, points=70, dtype=torch.float64, **options):
    """The end of a solve and all gradients."""
    torch.manual_seed(0)
    f, y0 = field().to(dtype), torch.randn(points, 3, dtype=dtype, requires_grad=True)
    solution = anode.solve(f, y0, (0.1, 1.2), engine=engine, **options)
    weights = torch.linspace(0.5, 1.5, y0.numel(), dtype=dtype).view_as(y0)
    return [solution.y1, *torch.autograd.grad((solution.y1 * weights).sum(), [y0, *f.parameters()])]


def assert_close(ours, theirs, rtol=1e-8):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * max(1.0, float(b.detach().abs().max())))


@each_field
@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("points", [1, 6, 150])
def test_solves_and_gradients_are_those_of_python(field, control, points):
    options = {"points": points, "control": control, "rtol": 1e-5, "atol": 1e-5}
    assert_close(found(field, "native", **options), found(field, "torch", **options))


@each_field
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("dtype", native.DTYPES)
def test_every_instruction_set_and_precision_computes_the_same(monkeypatch, field, instructions, dtype):
    options = {"dtype": dtype, "method": "rk4", "step_size": 0.2}
    expected = found(field, "torch", **options)
    monkeypatch.setattr(native, "instructions", instructions)
    assert_close(found(field, "native", **options), expected, rtol=1e-9 if dtype == torch.float64 else 2e-5)


@each_field
def test_bits_do_not_depend_on_the_number_of_threads(threads, field):
    threads(1)
    one = found(field, "native", points=300)
    threads(3)
    assert all(torch.equal(a, b) for a, b in zip(one, found(field, "native", points=300), strict=True))


@pytest.mark.parametrize("control", ["member", "joint"])
def test_members_have_values_of_their_own(control):
    field = anode.seeded(lambda: anode.Flow(Gates()), range(3)).double().field
    y0 = torch.randn(3, 70, 3, dtype=torch.float64, requires_grad=True)

    def solved(engine):
        y1 = anode.solve(field, y0, (0.0, 1.0), engine=engine, control=control, rtol=1e-6, atol=1e-6).y1
        return [y1, *torch.autograd.grad(y1.square().sum(), [y0, *field.parameters()])]

    assert_close(solved("native"), solved("torch"))


def test_what_is_computed_from_time_and_tensors_has_no_row_per_point():
    b = Builder(2)
    gate = b.unary("sigmoid", b.linear(b.time().reshape(1), b.tensor((2, 1)), b.tensor((2,))))
    moved = b.binary("multiply", b.state(2), gate)
    mixed = b.copied(np.concatenate([gate[:1], moved[:1]]))
    program = b.finish(b.unary("tanh", mixed))
    assert program.uniform >= set(gate.tolist())
    assert not program.uniform & {*moved.tolist(), *mixed.tolist()}
    layout = Layout(program, extension.UNARY, extension.BINARY)
    assert {layout.place[row][0] for row in gate.tolist()} == {Space.UNIFORM}
    folds = [op for op in layout.back.operations if op.kind == "fold"]
    assert folds
    assert all(layout.place[op.out][0] == Space.UNIFORM_COTANGENT for op in folds)
