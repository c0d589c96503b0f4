"""Every part of the family: alone, stacked, saved, trained and differentiated, for points and for images."""

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode.models.family import FAMILY, NEED_EXTRA

POINTS = sorted(FAMILY)
TIGHT = anode.Solver(rtol=1e-6, atol=1e-6)


def points(name, **options):
    return anode.family.build(name, 2, 1, **{"augment": 1, "hidden": 6, "activation": "tanh", **options})


def images(name, **options):
    return anode.family.build(name, (1, 5, 4), 3, **{"augment": 1, "filters": 3, "activation": "tanh", **options})


def input_of(build, members=None):
    front = () if members is None else (members,)
    shape = (6, 2) if build is points else (4, 1, 5, 4)
    return torch.rand(*front, *shape, generator=torch.Generator().manual_seed(1))


def combined():
    """Parts inside each other."""
    second = anode.DataControl(anode.SecondOrder(anode.MLPField(2, 6, inputs=6, activation="tanh")))
    yield lambda: anode.NeuralODE(2, 1, field=second, augment=anode.WithInput(anode.WithVelocity()))
    ball = anode.HeavyBall(anode.DataControl(anode.MLPField(2, 6, inputs=4, activation="tanh")))
    yield lambda: anode.NeuralODE(2, 1, field=ball, augment=anode.WithVelocity(anode.WithInput()))
    whole = anode.Learned(nn.Linear(2, 3), keep=False)
    yield lambda: anode.NeuralODE(2, 1, 6, augment=whole)
    lifted = anode.WithVelocity(anode.Learned(nn.Linear(2, 1)), start=nn.Linear(3, 3))
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
    yield lambda: anode.NeuralODE(2, 1, field=anode.HeavyBall(net, generalised=True), augment=lifted)


@pytest.mark.parametrize("build", [points, images])
@pytest.mark.parametrize("name", POINTS)
def test_a_stack_computes_what_its_members_do(name, build):
    together = anode.seeded(lambda: build(name), seeds=range(3))
    x = input_of(build, 3)
    with torch.no_grad():
        alone = torch.stack([model(part) for model, part in zip(anode.unstack(together), x, strict=True)])
        assert torch.allclose(together(x), alone, atol=1e-5)


@pytest.mark.parametrize("build", [points, images])
@pytest.mark.parametrize("name", POINTS)
def test_a_saved_model_predicts_the_same_bits(name, build, tmp_path):
    for model, members in ((build(name), None), (anode.seeded(lambda: build(name), seeds=range(2)), 2)):
        x = input_of(build, members)
        again = anode.load(anode.save(model, tmp_path / f"model{members}"))
        assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("name", POINTS)
def test_the_engine_solves_every_part_alone_and_stacked(name):
    for model, members in ((points(name), None), (anode.seeded(lambda: points(name), seeds=range(2)), 2)):
        assert model.run(input_of(points, members)).solution.engine.name == "native"


@pytest.mark.parametrize("name", POINTS)
def test_every_parameter_gets_the_right_gradient(name):
    torch.manual_seed(0)
    model = points(name, hidden=3, solver=TIGHT.but(method="rk4", step_size=0.5)).double()
    x = input_of(points)[:2].double().requires_grad_()
    names, values = zip(*model.named_parameters(), strict=True)

    def run(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    model.flow.solver = model.flow.solver.but(gradient="stored", engine="torch")
    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)
    expected = torch.autograd.grad(model(x).square().sum(), values)
    model.flow.solver = model.flow.solver.but(gradient="discrete", engine="native")
    for ours, theirs in zip(torch.autograd.grad(model(x).square().sum(), values), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("index", range(4))
def test_parts_combine_with_each_other(index, tmp_path):
    torch.manual_seed(0)
    model = list(combined())[index]().double()
    x = input_of(points).double()
    outcome = model.run(x)
    assert outcome.solution.engine.name == "native"
    assert torch.equal(anode.load(anode.save(model, tmp_path / "model"))(x), outcome.prediction)
    together = anode.stack([model, model])
    assert torch.allclose(together(torch.stack([x, x]))[1], outcome.prediction, atol=1e-9)


@pytest.mark.parametrize("name", POINTS)
def test_training_lowers_the_loss(name):
    torch.manual_seed(0)
    x = torch.rand(64, 2)
    history = anode.fit(points(name), (x, x[:, :1] * x[:, 1:]), epochs=15, lr=1e-2, progress=False)
    assert history.loss[-1] < history.loss[0]


def test_the_head_sees_positions_and_no_input():
    assert points("second-order").head.in_features == 3
    assert points("control").head.in_features == 3
    assert points("zeros").head.in_features == 3
    assert images("heavy-ball").head.image == (2, 5, 4)
    assert images("control").head.image == (2, 5, 4)
    nested = anode.WithVelocity(anode.WithInput(1))
    assert nested.shown(10, 2) == 3


@pytest.mark.parametrize("name", NEED_EXTRA)
def test_a_learned_augmentation_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match="augment: takes a whole number above 0, got 0"):
        points(name, augment=0)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"name: takes one of zeros, .* did you mean 'second-order'"):
        points("second_order")


def test_a_constant_begins_as_zeros_and_is_learned():
    x = torch.rand(8, 2)
    model = anode.NeuralODE(2, 1, augment=anode.Constant(2), solver=TIGHT)
    assert torch.equal(model.flow.augment(x), anode.Zeros(2)(x))
    anode.fit(model, (x, x[:, :1]), epochs=1, progress=False)
    assert model.flow.augment.value.abs().min() > 0
    assert torch.allclose(model.flow.inverse(model.flow(x)), x, atol=1e-4)


@pytest.mark.parametrize(
    ("augment", "field", "says"),
    [
        (anode.Learned(nn.Linear(2, 2)), anode.MLPField(4), "inverse: Learned appends the output of a network"),
        (
            anode.WithVelocity(start=nn.Linear(2, 2)),
            anode.HeavyBall(anode.MLPField(2)),
            "inverse: the velocity at the start is learned",
        ),
        (
            anode.WithInput(),
            anode.DataControl(anode.MLPField(2, inputs=4)),
            "inverse: the features .* end with the input",
        ),
    ],
)
def test_an_inverse_that_makes_no_sense_is_refused_before_the_solve(augment, field, says):
    flow = anode.Flow(field, augment=augment)
    with pytest.raises(NotImplementedError, match=says):
        flow.inverse(flow(torch.rand(3, 2)))


def test_a_flow_that_starts_at_rest_has_an_inverse():
    flow = anode.Flow(anode.HeavyBall(anode.MLPField(3)), augment=anode.WithVelocity(1), solver=TIGHT)
    x = torch.rand(5, 2)
    assert torch.allclose(flow.inverse(flow(x)), x, atol=1e-4)


def test_a_second_order_state_of_odd_size_is_refused():
    flow = anode.Flow(anode.SecondOrder(anode.MLPField(2, inputs=5)), augment=3)
    with pytest.raises(ValueError, match=r"positions and velocities of one size .* got shape \(4, 5\); pass augment="):
        flow(torch.rand(4, 2))


def test_a_heavy_ball_inside_data_control_is_refused_with_what_to_write():
    with pytest.raises(ValueError, match=r"HeavyBall\(DataControl\(f\)\)"):
        anode.DataControl(anode.HeavyBall(anode.MLPField(2)))


def test_a_heavy_ball_that_would_move_the_input_of_data_control_is_refused():
    control = anode.DataControl(anode.MLPField(2, 4, inputs=4))
    with pytest.raises(ValueError, match=r"generalised: takes False around DataControl, .*got True"):
        anode.HeavyBall(control, generalised=True)
    with pytest.raises(ValueError, match="start: takes None for a position that holds the input"):
        anode.WithVelocity(anode.WithInput(), start=nn.Linear(4, 4))
    flow = anode.Flow(anode.HeavyBall(control), augment=anode.WithVelocity(anode.WithInput()))
    x = torch.rand(3, 2)
    assert torch.equal(flow(x)[:, 2:4], x)


def test_a_velocity_of_another_size_is_refused():
    flow = anode.Flow(anode.HeavyBall(anode.MLPField(2)), augment=anode.WithVelocity(start=nn.Linear(2, 3)))
    with pytest.raises(ValueError, match="start: takes a module that maps a position to a velocity of its shape"):
        flow(torch.rand(4, 2))


@pytest.mark.parametrize("method", ["tsit5", "dopri5"])
def test_a_harmonic_oscillator_is_solved_as_scipy_and_the_formula_do(method):
    from scipy.integrate import solve_ivp

    spring = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        spring.weight.copy_(torch.tensor([[-4.0, -0.3]]))  # q'' = -4 q - 0.3 q'
    field = anode.SecondOrder(nn.Sequential(spring))
    augment = anode.WithVelocity(start=nn.Sequential(nn.Linear(1, 1)).double())
    flow = anode.Flow(field, augment=augment, t1=2.0, method=method, rtol=1e-10, atol=1e-10)
    x = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    found = flow(x).detach().numpy()
    for start, end in zip(augment(x).detach().numpy(), found, strict=True):
        theirs = solve_ivp(lambda t, y: [y[1], -4 * y[0] - 0.3 * y[1]], (0, 2), start, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(end, theirs.y[:, -1], rtol=1e-7)
        decay, speed = 0.15, (4 - 0.15**2) ** 0.5
        b = (start[1] + decay * start[0]) / speed
        exact = np.exp(-decay * 2) * (start[0] * np.cos(2 * speed) + b * np.sin(2 * speed))
        np.testing.assert_allclose(end[0], exact, rtol=1e-7)


@pytest.mark.parametrize("generalised", [False, True])
def test_a_heavy_ball_is_its_definition(generalised):
    field = anode.HeavyBall(nn.Sequential(nn.Linear(2, 2)), generalised=generalised).double()
    h = torch.randn(5, 4, dtype=torch.float64)
    q, m = h.split(2, dim=1)
    c, k = torch.sigmoid(torch.tensor(-3.0)).double(), nn.functional.softplus(torch.tensor(2.0)).double()
    force = field.field(q) - c * m
    expected = [torch.tanh(m), force - k * q] if generalised else [m, force]
    assert torch.allclose(field(torch.tensor(0.0), h), torch.cat(expected, dim=1), atol=1e-7)


def test_data_control_gives_f_the_input_at_every_time():
    class Towards(nn.Module):
        def forward(self, t, h):
            return h[:, 1:] - h[:, :1]  # h' = x - h

    flow = anode.Flow(
        anode.DataControl(Towards()), augment=anode.WithInput(anode.Learned(nn.Linear(1, 1), keep=False)), solver=TIGHT
    )
    x = torch.tensor([[2.0], [-1.0]])
    start = flow.augment(x)[:, :1]
    found = flow(x)
    assert torch.allclose(found[:, :1], x + (start - x) * np.exp(-1.0), atol=1e-5)
    assert torch.equal(found[:, 1:], x)


def controlled(dim=-1):
    own = anode.MLPField(2, 4, inputs=4) if dim == -1 else anode.ConvField(1, 3, inputs=2)
    return anode.Flow(anode.DataControl(own), augment=anode.WithInput(dim=dim))


def controlled_ball():
    field = anode.HeavyBall(anode.DataControl(anode.MLPField(2, 4, inputs=4)))
    return anode.Flow(field, augment=anode.WithVelocity(anode.WithInput()))


@pytest.mark.parametrize("build", [controlled, lambda: controlled(-3), controlled_ball])
def test_noise_leaves_the_input_of_data_control_as_it_is(build):
    flow, together = build(), anode.seeded(build, seeds=range(2))
    x = torch.rand(5, 2) if flow.field.features_dim == -1 else torch.rand(5, 1, 4, 4)
    noisy = {"method": "euler", "step_size": 0.25, "noise": 1.0}
    for each, given in ((flow, x), (together, x.expand(2, *x.shape))):
        h = each.run(given, **noisy).features
        size = x.shape[flow.field.features_dim]
        assert torch.equal(h.narrow(flow.field.features_dim, size, size), given)
        assert (h - each(given)).narrow(flow.field.features_dim, 0, size).abs().min() > 0


@pytest.mark.parametrize("kind", [anode.MLPField, anode.ConvField])
def test_a_field_given_more_than_it_returns_cannot_be_solved_by_itself(kind):
    x = torch.rand(3, 2) if kind is anode.MLPField else torch.rand(3, 2, 4, 4)
    with pytest.raises(ValueError, match=r"field: takes a module that returns the shape of its state|f must return"):
        anode.Flow(kind(1, inputs=2))(x)
