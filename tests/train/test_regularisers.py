"""Regularisers against their definitions, alone, stacked, on images and in training."""

import pytest
import torch
from torch import nn

import anode
from helpers.own_parts import Scaled

DATA = anode.datasets.load("moons", points=64)
TIGHT = anode.Solver(rtol=1e-9, atol=1e-9)


def model_of(**options):
    return anode.NeuralODE(2, 1, 5, augment=1, activation="tanh", **options)


def linear_flow():
    """A flow whose field is h -> A h."""
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
    return anode.Flow(field, solver=TIGHT), field[0].weight.detach()


def integrals(flow, x, *terms):
    return flow.run(x, **anode.Regularised(*terms).options(flow)).integrals


def test_kinetic_energy_is_the_integral_of_half_the_square_of_f():
    flow, a = linear_flow()
    x = torch.randn(4, 2, dtype=torch.float64)
    (energy,) = integrals(flow, x, anode.Kinetic())
    times = torch.linspace(0, 1, 2001, dtype=torch.float64)
    speeds = torch.stack([x @ torch.matrix_exp(a * t).T @ a.T for t in times])
    expected = torch.trapezoid(speeds.square().mean(-1) / 2, times, dim=0)
    assert torch.allclose(energy, expected, rtol=1e-5)


def test_the_jacobian_of_a_linear_field_has_the_norm_of_its_matrix():
    flow, a = linear_flow()
    x = torch.randn(3, 2, dtype=torch.float64)
    (exact,) = integrals(flow, x, anode.Jacobian())
    assert torch.allclose(exact, a.square().sum().expand(3) / 2)
    torch.manual_seed(1)
    (estimate,) = integrals(flow, x[:1].expand(20_000, 2), anode.Jacobian(exact=False))
    assert estimate.mean().item() == pytest.approx(exact[0].item(), rel=0.03)


def test_the_jacobian_of_a_network_is_that_of_autograd():
    torch.manual_seed(0)
    field = anode.MLPField(2, 4, activation="tanh").double()
    flow = anode.Flow(field, solver=TIGHT)
    x = torch.randn(1, 2, dtype=torch.float64)
    (found,) = integrals(flow, x, anode.Jacobian())
    times = torch.linspace(0, 1, 401, dtype=torch.float64)
    path = flow.trajectory(x, times)
    norms = [
        torch.func.jacrev(lambda h, t=t: field(t, h[None])[0])(h[0]).square().sum() / 2
        for t, h in zip(times, path, strict=True)
    ]
    assert found.item() == pytest.approx(torch.trapezoid(torch.stack(norms), times).item(), rel=1e-5)


def test_an_estimate_keeps_its_random_numbers_for_a_solve():
    flow, a = linear_flow()
    x = torch.randn(1, 2, dtype=torch.float64)
    torch.manual_seed(4)
    (found,) = integrals(flow, x, anode.Jacobian(exact=False))
    torch.manual_seed(4)
    probe = torch.randn(1, 2, dtype=torch.float64)
    assert torch.allclose(found, (probe @ a).square().mean(1))


def test_local_errors_are_those_that_the_solver_controls():
    torch.manual_seed(0)
    model = model_of(rtol=1e-3, atol=1e-3)
    outcome = model.run(DATA.x, dense=True)
    steps = outcome.solution.local_errors()
    assert len(steps) == outcome.solution.stats.accepted
    assert all(0 < error < 1e-3 * (1 + outcome.features.abs().max()) for _, error in steps)
    assert sum(size for size, _ in steps) >= 1.0  # the last step passes the end
    penalty = anode.LocalErrors(2.0).penalty(outcome, None)
    assert penalty.item() == pytest.approx(2.0 * sum(size * error.item() for size, error in steps), rel=1e-4)


def test_steer_ends_at_random_times_in_training_alone():
    model = model_of()
    loss = anode.Regularised(anode.Steer(0.25))
    torch.manual_seed(0)
    ends = torch.tensor([loss.options(model.flow)["t1"] for _ in range(200)])
    assert 0.75 <= ends.min() < 0.77
    assert 1.23 < ends.max() <= 1.25
    outcome = model.run(DATA.x, t1=0.8)
    assert outcome.solution.t1 == 0.8
    assert torch.allclose(outcome.features, model.flow.trajectory(DATA.x, [0.8])[0], atol=1e-2)


def linear_density(trace, augment):
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(2 + augment, 2 + augment, bias=False)).double()
    solver = {"rtol": 1e-9, "atol": 1e-9}
    return anode.DensityFlow(2, field=field, trace=trace, augment=augment, **solver), field[0].weight.detach()


@pytest.mark.parametrize("augment", [0, 1])
@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_integrals_of_a_density_flow_are_those_of_its_points(trace, augment):
    model, a = linear_density(trace, augment)
    x = torch.randn(4, 2, dtype=torch.float64)
    loss = anode.Regularised(anode.Kinetic(), anode.Jacobian())
    torch.manual_seed(1)
    outcome = model.run(x, **loss.options(model.flow))
    torch.manual_seed(1)
    plain = model.run(x)
    torch.manual_seed(1)
    start = model.flow.augment(x)[:, : 2 + augment]
    (energy,) = integrals(anode.Flow(model.field, solver=TIGHT), start, anode.Kinetic())
    assert torch.allclose(outcome.integrals[0], energy, rtol=1e-5)
    assert torch.allclose(outcome.integrals[1], a.square().sum().expand(4) / len(a))
    assert torch.allclose(outcome.prediction, plain.prediction, atol=1e-6)
    (estimate,) = model.run(
        x[:1].expand(10_000, 2), **anode.Regularised(anode.Jacobian(exact=False)).options(model.flow)
    ).integrals
    assert estimate.mean().item() == pytest.approx(outcome.integrals[1][0].item(), rel=0.05)


@pytest.mark.parametrize("own", [False, True], ids=["perceptron", "own"])
def test_a_stack_of_density_flows_is_regularised_as_its_members_are(own):
    def build():
        parts = {"field": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))} if own else {"hidden": 4}
        return anode.DensityFlow(2, **parts)

    together, loss = anode.seeded(build, seeds=range(2)), anode.Regularised(anode.Kinetic(), anode.Jacobian())
    x = DATA.x[:8].expand(2, 8, 2)
    found = together.run(x, **loss.options(together.flow))
    assert found.solution.engine.name == "native"
    for i, model in enumerate(anode.unstack(together)):
        alone = model.run(x[i], **loss.options(model.flow))
        assert torch.allclose(found.prediction[i], alone.prediction, atol=1e-5)
        for ours, theirs in zip(found.integrals, alone.integrals, strict=True):
            assert torch.allclose(ours[i], theirs, atol=1e-5)
    by_row = together.run(x, control=2, **loss.options(together.flow))
    assert torch.allclose(by_row.integrals[1], found.integrals[1], atol=1e-4)


@pytest.mark.parametrize("name", ["kinetic", "jacobian", "hutchinson", "steer", "errors"])
def test_a_density_flow_is_trained_with_its_own_loss_and_a_regulariser(name):
    model = anode.DensityFlow(2, 4, layers=1)
    history = anode.fit(model, DATA.x, loss=anode.Regularised(TERMS[name]), validation=DATA.x, epochs=1)
    assert history.failures == []
    assert history.validation[-1] == pytest.approx(-model.log_prob(DATA.x).mean().item(), abs=1e-3)


def test_the_gradient_of_a_regularised_density_flow_is_right():
    model, _ = linear_density("exact", 0)
    model.flow.solver = anode.Solver(method="rk4", step_size=0.5)
    loss = anode.Regularised(anode.Kinetic(), anode.Jacobian())
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def run(x, _):
        outcome = model.run(x, **loss.options(model.flow))
        return outcome.prediction, *outcome.integrals

    assert torch.autograd.gradcheck(run, (x, model.field[0].weight))


def test_noise_moves_states_and_leaves_integrals_and_their_random_numbers_alone():
    class Growth(nn.Module):
        def forward(self, t, h):
            return 0.5 * h

    x, noisy = torch.randn(2000, 12), anode.Solver(method="euler", step_size=0.1, noise=3.0)
    flow = anode.Flow(Growth(), solver=noisy)
    torch.manual_seed(0)
    (found,) = integrals(flow, x, anode.Jacobian())
    assert found.mean().item() == pytest.approx(0.25, rel=0.02)
    outcome = flow.run(0 * x, **anode.Regularised(anode.Kinetic()).options(flow))
    assert outcome.features.std() > 1
    assert outcome.integrals[0].min() >= 0


TERMS = {
    "kinetic": anode.Kinetic(0.5),
    "jacobian": anode.Jacobian(0.5),
    "hutchinson": anode.Jacobian(0.5, exact=False),
    "steer": anode.Steer(0.25),
    "errors": anode.LocalErrors(10.0),
}


@pytest.mark.parametrize("name", TERMS)
def test_gradients_of_a_regularised_loss_are_right(name):
    torch.manual_seed(0)
    model = anode.NeuralODE(2, 1, 3, activation="tanh", method="dopri5", step_size=0.5).double()
    loss = anode.Regularised(TERMS[name], loss="mse")
    x, y = DATA.x[:3].double(), DATA.y[:3].double()
    names, values = zip(*model.named_parameters(), strict=True)

    def run(*parameters):
        torch.manual_seed(7)
        given = dict(zip(names, parameters, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(model, given):
            return loss(model.run(x, **loss.options(model.flow)), y).mean()

    model.flow.solver = model.flow.solver.but(gradient="stored", engine="torch")
    assert torch.autograd.gradcheck(run, values, fast_mode=True)
    expected = torch.autograd.grad(run(*values), values)
    model.flow.solver = model.flow.solver.but(gradient="discrete", engine="auto")
    for ours, theirs in zip(torch.autograd.grad(run(*values), values), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", ["kinetic", "jacobian", "steer", "errors"])
def test_a_stack_is_regularised_as_its_members_are(name):
    together = anode.seeded(model_of, seeds=range(3))
    loss = anode.Regularised(TERMS[name])
    x, y = DATA.x[:8].expand(3, 8, 2), DATA.y[:8].expand(3, 8, 1)

    def losses(model, x, y):
        torch.manual_seed(2)
        return loss(model.run(x, **loss.options(model.flow)), y)

    found = losses(together, x, y)
    alone = torch.stack([losses(model, x[0], y[0]) for model in anode.unstack(together)])
    assert torch.allclose(found, alone, atol=1e-5)
    history = anode.fit(together, DATA, loss=loss, epochs=1, progress=False)
    assert history.loss.shape == (1, 3)


def test_integrals_are_solved_for_by_the_engine_alone_and_stacked():
    loss = anode.Regularised(anode.Kinetic(), anode.Jacobian(exact=False))
    for model, x in (
        (model_of(), DATA.x),
        (anode.seeded(model_of, seeds=range(2)), DATA.x.expand(2, -1, -1)),
        (anode.family.build("heavy-ball", 2, 1), DATA.x),
    ):
        assert model.run(x, **loss.options(model.flow)).solution.engine.name == "native"


def test_validation_is_the_plain_loss_and_history_says_who_trained():
    torch.manual_seed(0)
    model = model_of()
    plain = anode.fit(model_of(), DATA, epochs=1, progress=False)
    loss = anode.Regularised(anode.Kinetic(1e3))
    history = anode.fit(model, DATA, loss=loss, validation=DATA, epochs=1, lr=1e-9, progress=False)
    expected = torch.nn.functional.smooth_l1_loss(model(DATA.x), DATA.y).item()
    assert history.validation[-1] == pytest.approx(expected, rel=1e-4)
    assert history.loss[0] > 2 * expected
    assert history.engine == "torch (the loss is not a built-in one)"
    assert plain.engine == "native"


def test_a_penalty_makes_trajectories_shorter():
    def energy(*terms):
        torch.manual_seed(0)
        model = model_of()
        anode.fit(model, DATA, loss=anode.Regularised(*terms), epochs=20, lr=1e-2, progress=False)
        with torch.no_grad():
            return integrals(model.flow, DATA.x, anode.Kinetic())[0].mean()

    assert energy(anode.Kinetic(1.0)) < 0.5 * energy()


@pytest.mark.parametrize("name", ["kinetic", "errors"])
def test_the_flow_of_a_model_of_your_own_is_regularised(name):
    def trained(wrap):
        torch.manual_seed(0)
        flow = anode.Flow(anode.MLPField(2, 5))
        loss = anode.Regularised(TERMS[name], loss="mse")
        anode.fit(wrap(flow), (DATA.x, DATA.x), loss=loss, epochs=1, progress=False, seed=0)
        return flow.field.state_dict()

    def frozen(flow):
        model = Scaled(flow)
        model.scale.requires_grad_(False)
        return model

    alone, within = trained(lambda flow: flow), trained(frozen)
    assert all(torch.allclose(alone[key], within[key], rtol=1e-5) for key in alone)


@pytest.mark.parametrize("name", ["kinetic", "hutchinson", "steer", "errors"])
def test_images_are_regularised(name):
    images = anode.images.load("digits").subset(32)
    model = anode.ImageNeuralODE(images.shape, images.classes, filters=3, augment=1)
    history = anode.fit(model, images, loss=anode.Regularised(TERMS[name]), epochs=1, progress=False)
    assert history.loss[0] > 0
    assert history.accuracy.shape == (1,)


@pytest.mark.parametrize(
    ("model", "terms", "says"),
    [
        (anode.ResNet(2, 1), [anode.Kinetic()], "loss: takes no regularisers for a model without a flow"),
        (anode.NeuralODE(2, 1, t1=0.2), [anode.Steer()], r"width: takes a number below t1, which is 0\.2, got 0\.5"),
        (anode.NeuralODE(2, 1, method="rk4", step_size=0.1), [anode.LocalErrors()], "method: takes a method with an"),
        (anode.NeuralODE(2, 1, augment=120), [anode.Jacobian(exact=True)], "exact: takes False for a state of 122"),
    ],
)
def test_a_regulariser_that_makes_no_sense_is_refused(model, terms, says):
    with pytest.raises(ValueError, match=says):
        anode.fit(model, DATA, loss=anode.Regularised(*terms), epochs=1, progress=False)


@pytest.mark.parametrize("build", [model_of, lambda: anode.seeded(model_of, seeds=range(2))], ids=["one", "stack"])
def test_a_solve_that_fails_before_its_first_step_has_no_local_errors(build):
    history = anode.fit(build(), DATA, loss=anode.Regularised(anode.LocalErrors(1.0)), epochs=5, lr=1e30)
    assert {failure.status for failure in history.failures} <= {"NON_FINITE", "LOSS", "GRADIENT", "UNDERFLOW"}
    assert history.failures


def test_two_terms_that_set_the_same_option_are_refused():
    loss = anode.Regularised(anode.Steer(0.1), anode.Steer(0.2))
    with pytest.raises(ValueError, match=r"terms: takes at most one regulariser that sets t1, got Regularised\(Steer"):
        anode.fit(model_of(), DATA, loss=loss, epochs=1)
    both = anode.Regularised(anode.LocalErrors(1.0), anode.LocalErrors(2.0))
    assert both.options(model_of().flow) == {"dense": True}


def test_batch_normalisation_in_training_has_no_jacobian_of_one_sample():
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model = anode.NeuralODE(field=normed, head=nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"field: takes no batch normalisation in training .*got BatchNorm1d"):
        anode.fit(model, DATA, loss=anode.Regularised(anode.Jacobian()), epochs=1)
    assert anode.fit(model, DATA, loss=anode.Regularised(anode.Kinetic()), epochs=1).failures == []
    normed[1].eval()
    assert anode.fit(model, DATA, loss=anode.Regularised(anode.Jacobian()), epochs=1).failures == []


def test_an_outcome_without_integrals_is_refused():
    model, loss = model_of(), anode.Regularised(anode.Kinetic())
    with pytest.raises(ValueError, match=r"outcome: takes an outcome of model\.run\(x, \*\*loss\.options"):
        loss(model.run(DATA.x), DATA.y)


def test_what_is_no_regulariser_is_refused():
    with pytest.raises(ValueError, match="terms: takes regularisers"):
        anode.Regularised("huber")
    with pytest.raises(ValueError, match="loss: takes one of huber"):
        anode.Regularised(loss="hubert")
    with pytest.raises(ValueError, match="keeps no steps"):
        model_of().run(DATA.x).solution.local_errors()
