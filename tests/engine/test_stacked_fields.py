"""Stacks of fields of the user's own: one program for all members, against each member alone and against Python."""

import pytest
import torch
from torch import nn

import anode
from anode.engine import native as engine
from helpers.own_fields import TRACED, Decay, Idle, Mixing, TimeConcatenated

pytestmark = pytest.mark.skipif(not engine.instruction_sets(), reason="there is no compiled engine")
OPTIONS = {"rtol": 1e-6, "atol": 1e-6}


def stack_of(field, members=3):
    """A stack of fields, in a flow as a field is stacked, of double precision."""
    return anode.seeded(lambda: anode.Flow(field()), range(members)).double().field


def state_of(members=3, points=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(members, points, 5, generator=generator, dtype=torch.float64).requires_grad_()


def solved(field, y0, **options):
    """The end of a solve, its gradients for the state and for all parameters, and the solution."""
    solution = anode.solve(field, y0, (0.0, 1.0), **{**OPTIONS, **options})
    gradients = torch.autograd.grad(solution.y1.square().sum(), [y0, *field.parameters()], allow_unused=True)
    return solution, [torch.zeros(()) if g is None else g for g in gradients]


@pytest.mark.parametrize(
    ("name", "control"),
    [*((name, control) for name in TRACED for control in ("member", "joint")), ("cubes", "sample"), ("idle", "sample")],
)
def test_a_stack_is_solved_as_in_python(name, control):
    field, y0 = stack_of(TRACED[name]), state_of()
    (one, gradients), (other, expected) = (solved(field, y0, engine=e, control=control) for e in ("auto", "torch"))
    assert str(one.engine) == "native"
    torch.testing.assert_close(one.y1, other.y1, rtol=1e-9, atol=1e-9)
    assert torch.equal(torch.as_tensor(one.stats.nfe), torch.as_tensor(other.stats.nfe))
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", TRACED)
def test_each_member_has_the_bits_that_it_has_alone(name):
    flows = anode.seeded(lambda: anode.Flow(TRACED[name](), **OPTIONS), range(3)).double()
    with torch.no_grad():
        flows.field.module.get_parameter(next(iter(dict(flows.field.module.named_parameters()))))[1] *= 3
    y0 = state_of()
    together = flows.solve(y0)
    assert str(together.engine) == "native"
    for i, flow in enumerate(anode.unstack(flows)):
        alone = flow.solve(y0[i])
        assert torch.equal(together.y1[i], alone.y1)
        assert int(together.stats.nfe[i]) == int(alone.stats.nfe)


def test_a_stack_of_one_and_members_without_a_batch_are_solved():
    for members, shape in ((1, (1, 4, 5)), (3, (3, 1, 5))):
        field, y0 = stack_of(Idle, members), torch.randn(shape, dtype=torch.float64)
        with torch.no_grad():
            one, other = (anode.solve(field, y0, (0.0, 1.0), engine=e) for e in ("auto", "torch"))
        assert str(one.engine) == "native"
        torch.testing.assert_close(one.y1, other.y1)


def test_members_that_take_their_whole_batch_at_once_are_solved():
    field, y0 = stack_of(Mixing), state_of()
    (one, gradients), (other, expected) = (solved(field, y0, engine=e) for e in ("auto", "torch"))
    assert str(one.engine) == "native"
    for a, b in zip((one.y1, *gradients), (other.y1, *expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_counter_counts_calls_of_the_stack():
    field, y0 = stack_of(TimeConcatenated), state_of()
    with torch.no_grad():
        for _ in range(2):
            before = field.module.nfe
            solution = anode.solve(field, y0, (0.0, 1.0))
            assert str(solution.engine) == "native"
            assert field.module.nfe - before == solution.stats.calls


def scaled(field):
    field.module.factor = 3.0


def with_other_data(field):
    field.module.used.weight.data = field.module.used.weight.data * 2


def with_another_parameter(field):
    field.module.used.bias = nn.Parameter(field.module.used.bias.detach() + 1)


def with_another_constant(field):
    field.module.constant = field.module.constant + 1


def with_the_constant_changed(field):
    field.module.constant += 1


@pytest.mark.parametrize(
    "change", [scaled, with_other_data, with_another_parameter, with_another_constant, with_the_constant_changed]
)
def test_a_change_of_the_fields_is_noticed(change):
    field, y0 = stack_of(Idle), state_of()
    before = solved(field, y0)[0]
    change(field)
    (one, gradients), (other, expected) = (solved(field, y0, engine=e) for e in ("auto", "torch"))
    assert str(one.engine) == "native"
    assert not torch.allclose(before.y1, one.y1)
    for a, b in zip((one.y1, *gradients), (other.y1, *expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


class Chosen(nn.Module):
    """Takes features in an order that a buffer holds."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.register_buffer("order", torch.arange(5))

    def forward(self, t, y):
        return torch.tanh(self.linear(y[:, self.order]))


def test_members_with_other_whole_numbers_are_left_to_python():
    field, y0 = stack_of(Chosen), state_of()
    first = solved(field, y0)[0]
    field.module.order[1] = torch.arange(5).flip(0)
    one, other = (solved(field, y0, engine=e)[0] for e in ("auto", "torch"))
    assert "the members have different whole numbers" in str(one.engine)
    torch.testing.assert_close(one.y1, other.y1)
    assert not torch.allclose(one.y1, first.y1)


def test_tensors_that_are_computed_from_parameters_are_left_to_python():
    solution, _ = solved(stack_of(Decay), state_of())
    assert "f computes tensors from its parameters alone" in str(solution.engine)


class Pair(nn.Module):
    """A field on a tuple."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, t, state):
        position, velocity = state
        return velocity, torch.tanh(self.linear(torch.cat([position, velocity[:, :1]], 1))) * t


def test_members_may_have_a_tuple_as_state():
    field = stack_of(Pair)
    state = tuple(torch.randn(3, 4, 2, dtype=torch.float64) for _ in range(2))
    one, other = (anode.solve(field, state, (0.0, 1.0), engine=e) for e in ("auto", "torch"))
    assert str(one.engine) == "native"
    torch.testing.assert_close(one.y1, other.y1)


def test_what_is_known_of_a_module_is_no_part_of_what_it_computes():
    net = nn.Sequential(nn.Linear(3, 8), nn.Hardtanh(), nn.Linear(8, 3))
    y0 = torch.randn(4, 3)
    with torch.no_grad():
        assert str(anode.solve(net, y0, (0.0, 1.0)).engine) == "native"
    assert str(anode.solve(net, y0, (0.0, 1.0)).engine) == "native"
