import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anode
from anode import SolveError, Status
from anode.models.augment import Augment
from helpers.draws import normal

PROPERTY = settings(max_examples=25)
TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def flow_of(dim: int = 2, augment: int = 0, activation: str = "tanh", **options) -> anode.Flow:
    torch.manual_seed(0)
    return anode.Flow(anode.MLPField(dim + augment, 8, activation=activation), augment=augment, **options).double()


def stack_of(members: int = 3, **options) -> anode.Flow:
    return anode.seeded(lambda: anode.Flow(anode.MLPField(2, 8, activation="tanh"), **options), range(members)).double()


class Turn(nn.Module):
    """dh/dt = rate (-y, x): turns the plane, by rate radians a unit of time."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(rate, dtype=torch.float64))

    def forward(self, t, h):
        return self.rate * torch.stack([-h[..., 1], h[..., 0]], -1)


class BlowUp(nn.Module):
    """dh/dt = h³ / 2, whose solution from 1 becomes infinite at time 1."""

    def forward(self, t, h):
        return h**3 / 2


def turned(x: torch.Tensor, angle: float) -> torch.Tensor:
    cos, sin = math.cos(angle), math.sin(angle)
    return x @ torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)


# What a flow computes


@pytest.mark.parametrize("t1", [0.5, 1.0, 3.0])
def test_a_flow_is_the_solution_at_t1(t1):
    x = normal(5, 2)
    torch.testing.assert_close(anode.Flow(Turn(), t1=t1, **TIGHT)(x), turned(x, t1), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("augment", [0, 1, 3])
def test_prediction_and_features_are_the_solvers_answer_for_the_augmented_input(augment):
    flow, x = flow_of(augment=augment), normal(5, 2)
    outcome = flow.run(x)
    start = torch.cat([x, x.new_zeros(5, augment)], -1)
    expected = anode.solve(flow.field, start, (0.0, 1.0), rtol=1e-3, atol=1e-3)
    for value in (outcome.prediction, outcome.features, outcome.solution.y1, flow(x), flow.features(x)):
        assert torch.equal(value, expected.y1)
    stats = outcome.solution.stats
    assert stats.nfe == expected.stats.nfe == 2 + 6 * (stats.accepted + stats.rejected)


def test_a_flow_takes_an_augmentation_of_any_kind():
    class Twice(Augment):
        def forward(self, x):
            return torch.cat([x, x], -1)

        def remove(self, h):
            return h[..., : h.shape[-1] // 2]

    flow, x = anode.Flow(Turn(), augment=Twice(), **TIGHT), normal(5, 1)
    torch.testing.assert_close(flow(x), turned(torch.cat([x, x], -1), 1.0), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(flow.inverse(flow(x)), x, rtol=1e-7, atol=1e-7)


def test_no_hidden_state_is_left_by_a_solve():
    flow, x = flow_of(), normal(5, 2)
    first, second = flow.run(x), flow.run(x)
    assert torch.equal(first.features, second.features)
    assert first.solution.stats.nfe == second.solution.stats.nfe
    assert set(flow.state_dict()) == {f"field.{name}" for name in flow.field.state_dict()}


@pytest.mark.parametrize("shape", [(2,), (1, 2), (4, 3, 2)], ids=str)
def test_inputs_need_not_be_a_batch(shape):
    flow, x = flow_of(augment=1, **TIGHT), normal(*shape)
    features = flow(x)
    assert features.shape == (*shape[:-1], 3)
    assert flow.trajectory(x, 4).shape == (4, *features.shape)
    torch.testing.assert_close(flow.inverse(features), x, rtol=1e-6, atol=1e-6)


def test_samples_do_not_depend_on_their_batch_when_each_has_its_own_step_size():
    flow, x = flow_of(control="sample"), normal(6, 2)
    together = flow.run(x)
    assert together.solution.stats.nfe.shape == (6,)
    for i in range(6):
        alone = flow.run(x[i : i + 1])
        torch.testing.assert_close(together.features[i : i + 1], alone.features, rtol=1e-12, atol=1e-12)
        assert together.solution.stats.nfe[i] == alone.solution.stats.nfe[0]


def test_solve_takes_options_for_this_one_solve():
    flow, x = flow_of(), normal(5, 2)
    loose, tight = flow.solve(x), flow.solve(x, rtol=1e-10, atol=1e-10)
    assert tight.stats.nfe > loose.stats.nfe
    assert flow.solve(x).stats.nfe == loose.stats.nfe
    saved = flow.solve(x, save_at=[0.25, 0.5])
    assert saved.ys.shape == (2, 5, 2)


@pytest.mark.parametrize(
    ("options", "nfe"),
    [({"method": "euler", "step_size": 0.25}, 4), ({"method": "rk4", "step_size": 0.5}, 8)],
    ids=["euler", "rk4"],
)
def test_a_method_of_given_steps_costs_what_it_must(options, nfe):
    assert flow_of(**options).run(normal(5, 2)).solution.stats.nfe == nfe


def test_a_step_of_euler_is_a_residual_block():
    flow, x = flow_of(method="euler", step_size=1.0), normal(5, 2)
    torch.testing.assert_close(flow(x), x + flow.field(torch.tensor(0.0), x))


# Trajectories


@PROPERTY
@given(st.integers(2, 9), st.floats(0.05, 2.0), st.integers(0, 2))
def test_a_trajectory_begins_at_the_input_and_ends_at_the_features(times, t1, augment):
    flow, x = flow_of(augment=augment, t1=t1), normal(4, 2)
    states = flow.trajectory(x, times)
    assert states.shape == (times, 4, 2 + augment)
    assert torch.equal(states[0], flow.augment(x))
    torch.testing.assert_close(states[-1], flow(x), rtol=1e-12, atol=1e-12)


@PROPERTY
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6, unique=True).map(sorted))
def test_a_trajectory_is_at_every_time_where_the_exact_solution_is(times):
    flow, x = anode.Flow(Turn(), **TIGHT), normal(4, 2)
    for given_as in (times, tuple(times), torch.tensor(times, dtype=torch.float64)):
        states = flow.trajectory(x, given_as)
        assert states.shape == (len(times), 4, 2)
        for t, state in zip(times, states, strict=True):
            torch.testing.assert_close(state, turned(x, t), rtol=1e-6, atol=1e-6)


def test_a_number_of_times_means_evenly_spaced_ones():
    flow, x = flow_of(t1=2.0), normal(4, 2)
    assert torch.equal(flow.trajectory(x, 5), flow.trajectory(x, [0.0, 0.5, 1.0, 1.5, 2.0]))
    assert flow.trajectory(x).shape == (50, 4, 2)
    assert torch.equal(flow.trajectory(x, 1)[0], x)


def test_gradients_reach_the_parameters_from_inside_a_trajectory():
    flow, x = anode.Flow(Turn(0.7), **TIGHT), normal(4, 2)
    flow.trajectory(x, 5)[2].square()[:, 0].sum().backward()
    rate = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    cos, sin = torch.cos(rate / 2), torch.sin(rate / 2)
    (cos * x[:, 0] - sin * x[:, 1]).square().sum().backward()
    torch.testing.assert_close(flow.field.rate.grad, rate.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("times", [0, -1, True])
def test_a_bad_number_of_times_is_an_error_that_names_it(times):
    with pytest.raises(ValueError, match="times: takes a whole number above 0"):
        flow_of().trajectory(normal(4, 2), times)


@pytest.mark.parametrize("times", [[0.0, 1.5], [0.5, 0.2], [-0.1], [0.5, 0.5], [math.nan]], ids=str)
def test_times_out_of_range_or_out_of_order_are_an_error(times):
    with pytest.raises(ValueError, match="times"):
        flow_of().trajectory(normal(4, 2), times)


def test_times_in_single_precision_may_end_at_t1():
    flow, x = flow_of(t1=0.1), normal(4, 2)
    times = torch.linspace(0.0, flow.t1, 5)
    torch.testing.assert_close(flow.trajectory(x, times), flow.trajectory(x, 5))


# Inverses


@PROPERTY
@given(st.integers(0, 2), st.floats(0.1, 2.0), st.integers(0, 1000))
def test_the_inverse_gives_the_input_back(augment, t1, seed):
    flow, x = flow_of(augment=augment, t1=t1, **TIGHT), 2 * normal(4, 2, seed=seed)
    torch.testing.assert_close(flow.inverse(flow(x)), x, rtol=1e-6, atol=1e-6)


def test_the_inverse_takes_tighter_tolerances():
    flow, x = flow_of(), normal(4, 2)
    exact = flow.solve(x, rtol=1e-11, atol=1e-11).y1
    errors = [(flow.inverse(exact, rtol=tol, atol=tol) - x).abs().max() for tol in (1e-3, 1e-6, 1e-9)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-7


def test_the_flow_undoes_the_inverse():
    flow, h = flow_of(**TIGHT), normal(4, 2)
    torch.testing.assert_close(flow(flow.inverse(h)), h, rtol=1e-6, atol=1e-6)


def test_the_inverse_can_be_differentiated():
    flow, h = anode.Flow(Turn(), rtol=1e-11, atol=1e-11), normal(3, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(flow.inverse(h)[:, 0].sum(), h)
    expected = turned(torch.tensor([[1.0, 0.0]], dtype=torch.float64), 1.0).expand(3, 2)
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-8)


# Fields that are nothing but modules


@pytest.mark.parametrize("gradient", ["discrete", "stored", "continuous"])
def test_any_module_can_be_the_field_and_is_trained(gradient):
    flow, x = anode.Flow(Turn(0.5), gradient=gradient, **TIGHT), normal(5, 2)
    assert flow.members is None
    flow(x)[:, 0].sum().backward()
    rate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (torch.cos(rate) * x[:, 0] - torch.sin(rate) * x[:, 1]).sum().backward()
    torch.testing.assert_close(flow.field.rate.grad, rate.grad, rtol=1e-6, atol=1e-6)


def test_a_network_of_torchs_own_layers_can_be_the_field():
    class Autonomous(nn.Sequential):
        def forward(self, t, h):
            return super().forward(h)

    torch.manual_seed(0)
    network = Autonomous(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    flow, x = anode.Flow(network, augment=1, **TIGHT), normal(5, 2)
    flow(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in flow.parameters())
    torch.testing.assert_close(flow.inverse(flow(x)), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
@pytest.mark.parametrize("members", [None, 2])
def test_the_gradient_of_a_flow_is_its_difference_quotient_for_every_parameter_and_the_input(gradient, members):
    options = {"gradient": gradient, "method": "rk4", "step_size": 0.25}
    flow = flow_of(**options) if members is None else stack_of(members, **options)
    x = normal(*([] if members is None else [members]), 3, 2).requires_grad_()
    cotangent = normal(*x.shape, seed=3)
    inputs = (x, *flow.parameters())
    for tensor, found in zip(inputs, torch.autograd.grad(flow(x), inputs, cotangent), strict=True):
        direction, step = normal(*tensor.shape, seed=4), 1e-5
        with torch.no_grad():
            tensor += step * direction
            ahead = (flow(x) * cotangent).sum()
            tensor -= 2 * step * direction
            behind = (flow(x) * cotangent).sum()
            tensor += step * direction
        torch.testing.assert_close((found * direction).sum(), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


# Stacks


def test_each_member_of_a_stacked_flow_is_solved_as_if_alone():
    together, x = stack_of(), normal(3, 5, 2)
    with torch.no_grad():
        together.field.weights[0][1] *= 20  # a member that needs smaller steps
    outcome = together.run(x)
    assert outcome.solution.stats.nfe.shape == (3,)
    assert len(set(outcome.solution.stats.nfe.tolist())) > 1
    for i, flow in enumerate(anode.unstack(together)):
        alone = flow.run(x[i])
        torch.testing.assert_close(outcome.features[i], alone.features, rtol=1e-11, atol=1e-11)
        assert outcome.solution.stats.nfe[i] == alone.solution.stats.nfe
        torch.testing.assert_close(together.trajectory(x, 7)[:, i], flow.trajectory(x[i], 7), rtol=1e-11, atol=1e-11)


def test_a_stacked_flow_has_an_inverse():
    flow, x = stack_of(**TIGHT), normal(3, 5, 2)
    torch.testing.assert_close(flow.inverse(flow(x)), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(2,), (5, 2), (2, 5, 2), (1, 3, 5, 2), (3, 5, 1)], ids=str)
def test_an_input_of_the_wrong_shape_for_a_stack_is_an_error_that_tells_the_right_one(shape):
    with pytest.raises(ValueError, match=r"h: takes (shape \[members, batch, features\]|2 features)"):
        stack_of()(normal(*shape))


# Failures


@pytest.mark.parametrize("options", [{}, {"max_steps": 20}], ids=str)
def test_a_solve_that_fails_raises_but_for_run(options):
    flow, x = anode.Flow(BlowUp(), t1=2.0, **options), torch.ones(3, 1, dtype=torch.float64)
    outcome = flow.run(x)
    assert outcome.solution.status in (Status.MAX_STEPS, Status.UNDERFLOW, Status.NON_FINITE)
    assert 0.9 < outcome.solution.t1 <= 1.01
    assert outcome.features.isfinite().all()
    for call in (flow, flow.features, flow.trajectory):
        with pytest.raises(SolveError, match="stopped at t = "):
            call(x)
    with pytest.raises(SolveError, match="stopped at t = ") as caught:
        flow(x)
    assert caught.value.solution.status == outcome.solution.status


def test_an_inverse_that_fails_raises():
    class Collapse(nn.Module):
        def forward(self, t, h):
            return -(h**3) / 2

    flow, h = anode.Flow(Collapse(), t1=2.0), torch.ones(3, 1, dtype=torch.float64)
    assert flow.run(h).solution.success
    with pytest.raises(SolveError, match="stopped at t = "):
        flow.inverse(h)


def test_a_member_that_fails_does_not_touch_the_others():
    flow, x = stack_of(max_steps=20), normal(3, 5, 2)
    fine = flow.run(x)
    assert fine.solution.success
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter[1] *= 1e3
    outcome = flow.run(x)
    assert (outcome.solution.status != Status.SUCCESS).tolist() == [False, True, False]
    assert torch.equal(outcome.features[[0, 2]], fine.features[[0, 2]])
    with pytest.raises(SolveError, match=r"1 of 3 groups \(first: 1\)"):
        flow(x)


# Arguments


@pytest.mark.parametrize("t1", [0, 0.0, -1.0, math.nan, "1", None, True])
def test_a_bad_end_time_is_an_error_that_names_it(t1):
    with pytest.raises(ValueError, match="t1: takes a number above 0"):
        anode.Flow(Turn(), t1=t1)


def test_an_infinite_end_time_is_an_error():
    with pytest.raises(ValueError, match=r"t1|t_span"):
        anode.Flow(Turn(), t1=math.inf)(normal(5, 2))


def test_a_whole_number_may_be_the_end_time():
    x = normal(5, 2)
    assert torch.equal(flow_of(t1=1)(x), flow_of(t1=1.0)(x))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "dorpi5"),
        ("rtol", 0.0),
        ("atol", -1.0),
        ("gradient", "discret"),
        ("control", "everybody"),
        ("max_steps", 0),
        ("step_size", 0.0),
    ],
)
def test_a_bad_option_of_the_solver_is_an_error_that_names_it_when_used(name, value):
    with pytest.raises(ValueError, match=f"{name}: "):
        flow_of(**{name: value})(normal(5, 2))


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="tol"):
        anode.Flow(Turn(), tol=1e-3)


@pytest.mark.parametrize("augment", [0, 2])
def test_a_field_of_another_size_than_the_augmented_input_is_an_error(augment):
    flow = anode.Flow(anode.MLPField(3), augment=augment)
    with pytest.raises(ValueError, match=rf"h: takes 3 features .* got shape \(5, {2 + augment}\)"):
        flow(torch.ones(5, 2))


def test_an_empty_batch_is_an_error():
    with pytest.raises(ValueError, match="x: takes at least one point"):
        flow_of()(normal(0, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_input_that_is_not_finite_is_an_error(bad):
    x = normal(5, 2)
    x[3, 1] = bad
    with pytest.raises(ValueError, match="finite"):
        flow_of()(x)


def test_a_flow_shows_its_settings():
    shown = repr(anode.Flow(anode.MLPField(3), augment=1, t1=2.0, rtol=1e-5, control="sample"))
    for part in ("Flow(", "MLPField(", "Zeros(1", "t1=2.0", "rtol=1e-05", "control='sample'", "max_steps=1000"):
        assert part in shown


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_scaled_as_those_of_a_model(dtype):
    model = anode.ImageNeuralODE((1, 4, 4), 3, filters=2, augment=1).to(dtype)
    pixels = torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4)
    scaled = pixels.to(dtype) / 255
    assert torch.equal(model.flow(pixels), model.flow(scaled))
    assert torch.equal(model.flow(pixels), model.features(pixels))
    assert torch.equal(model.flow.trajectory(pixels, 3), model.flow.trajectory(scaled, 3))
    assert torch.equal(model.flow.check(pixels).error, model.flow.check(scaled).error)
