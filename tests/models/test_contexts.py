"""Flows and densities that depend on a context."""

import math

import pytest
import torch
from torch import nn

import anode
from anode.engine.extension import extension

X = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
C = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
TIGHT = {"rtol": 1e-8, "atol": 1e-8}
compiled = pytest.mark.skipif(extension is None, reason="the engine was not compiled")


class Own(nn.Module):
    """A field that computes something else from its context than a state."""

    def __init__(self):
        super().__init__()
        self.net, self.speed = nn.Linear(2, 2), nn.Linear(3, 2)

    def forward(self, t, h, context):
        return torch.tanh(self.net(h)) * self.speed(context) * (1 + t)


def fields():
    torch.manual_seed(0)
    return {
        "own": Own().double(),
        "perceptron": anode.MLPField(2, inputs=5, hidden=8, activation="tanh").double(),
        "in another": anode.HeavyBall(anode.MLPField(2, inputs=5, hidden=8, activation="tanh")).double(),
        "data control": anode.DataControl(anode.MLPField(2, inputs=4 + 3, hidden=8, activation="tanh")).double(),
    }


def flow_of(name, **settings):
    augment = {"in another": anode.WithVelocity(), "data control": anode.WithInput()}.get(name, 0)
    return anode.Flow(fields()[name], augment=augment, **{**TIGHT, **settings})


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("name", fields())
def test_a_flow_solves_every_point_with_its_own_context(name, engine):
    flow = flow_of(name, engine=engine)
    together = flow(X, context=C)
    alone = torch.cat([flow(x[None], context=c[None]) for x, c in zip(X, C, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(together, flow(X, context=C.flip(0)), atol=1e-3)


@compiled
@pytest.mark.parametrize("name", fields())
def test_the_engine_solves_with_a_context(name):
    flow = flow_of(name)
    for rows in (9, 4, *[9] * 12):
        assert flow.run(X[:rows], context=C[:rows].clone()).solution.engine.name == "native"
    assert flow.run(X, context=C[:1].expand(9, 3)).solution.engine.name == "native"


@pytest.mark.parametrize("name", fields())
def test_gradients_reach_the_context_and_are_those_of_python(name):
    found = []
    for engine, gradient in (("auto", "discrete"), ("torch", "discrete"), ("torch", "stored")):
        flow, context = flow_of(name, engine=engine, gradient=gradient), C.clone().requires_grad_()
        flow(X, context=context).square().sum().backward()
        assert bool((context.grad.abs().sum(1) > 0).all())
        found.append([context.grad, *(p.grad for p in flow.parameters())])
    torch.testing.assert_close(found[0], found[2], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[1], found[2], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("gradient", ["discrete", "stored", "continuous"])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_two_solves_before_one_backward_pass_keep_their_contexts(engine, gradient):
    def gradients(loss):
        flow = flow_of("own", engine=engine, gradient=gradient)
        loss(flow)
        return [p.grad for p in flow.parameters()]

    def at_once(flow):
        (flow(X, context=C).sum() + flow(X, context=-C).square().sum()).backward()

    def one_by_one(flow):
        flow(X, context=C).sum().backward()
        flow(X, context=-C).square().sum().backward()

    torch.testing.assert_close(gradients(at_once), gradients(one_by_one), rtol=1e-9, atol=1e-9)


def test_all_methods_of_a_flow_take_the_context():
    flow = flow_of("own")
    end = flow(X, context=C)
    torch.testing.assert_close(flow.inverse(end, context=C), X, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(flow.inverse(end, context=-C), X, atol=1e-2)
    torch.testing.assert_close(flow.trajectory(X, 3, context=C)[-1], end)
    torch.testing.assert_close(flow.features(X, context=C), end)
    assert flow.check(X, context=C).passes
    assert flow.certify(X, context=C).passes
    torch.testing.assert_close(flow.run(X, context=C).features, end)


def test_a_flow_whose_methods_know_of_no_context_works_without_one():
    class Reporting(anode.Flow):
        def solve(self, x, save_at=None):
            return super().solve(x, save_at=save_at)

        def solve_from(self, h, span, solver=None, save_at=None):
            return super().solve_from(h, span, solver=solver or self.solver, save_at=save_at)

    flow = Reporting(anode.MLPField(2).double(), **TIGHT)
    assert flow(X).shape == flow.trajectory(X, 3)[-1].shape
    assert flow.check(X).passes


def test_a_neural_ode_passes_the_context_on():
    field = fields()["perceptron"]
    model = anode.NeuralODE(field=field, head=nn.Linear(2, 1).double(), **TIGHT)
    torch.testing.assert_close(model(X, context=C), model.head(anode.Flow(field, **TIGHT)(X, context=C)))


def test_contexts_of_images_are_channels():
    flow = anode.Flow(anode.ConvField(2, filters=4, inputs=2 + 1))
    x, context = torch.rand(3, 2, 5, 5), torch.rand(3, 1, 5, 5, requires_grad=True)
    flow(x, context=context).sum().backward()
    assert context.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("field", "context", "error", "message"),
    [
        ("own", C[:8], ValueError, r"context: takes a row for each of the 9 points, got a tensor of shape \(8, 3\)"),
        ("own", C.float(), TypeError, "context: takes torch.float64, the dtype of the points, got torch.float32"),
        ("own", [1.0], TypeError, "context: takes a tensor with a row per point, got a list"),
        ("own", None, ValueError, "field: .* missing a required argument: 'context'"),
        ("perceptron", C[:, :2], ValueError, "context: takes 3 features in dimension -1, for a field with inputs=5"),
        ("perceptron", C[:, 0], ValueError, "context: takes 3 features in dimension -1"),
    ],
)
def test_a_context_that_does_not_fit_is_named(field, context, error, message):
    with pytest.raises(error, match=message):
        flow_of(field)(X, context=context)


@pytest.mark.parametrize("field", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))], ids=["module", "sequential"])
def test_a_field_that_takes_no_context_is_named(field):
    with pytest.raises(TypeError, match=r"context: takes None for a field that is not called as f\(t, h, context\)"):
        anode.Flow(field.double())(X, context=C)


def test_a_single_point_has_a_context_of_its_own():
    flow = flow_of("perceptron")
    torch.testing.assert_close(flow(X[0], context=C[0]), flow(X, context=C)[0], rtol=1e-6, atol=1e-6)


def test_a_model_without_a_flow_takes_no_context():
    with pytest.raises(ValueError, match="context: takes None for a ResNet"):
        anode.ResNet(2, 1).double()(X, context=C)


def test_a_stack_takes_no_context():
    flows = anode.stack([anode.Flow(anode.MLPField(2, inputs=5)) for _ in range(2)])
    with pytest.raises(ValueError, match="context: takes None for a stack of models"):
        flows(X.float().expand(2, 9, 2), context=C.float())


@pytest.mark.parametrize(
    "call",
    [
        lambda flow: flow(X, save_at=[0.0, 1.0]),
        lambda flow: flow(X, t=torch.linspace(0, 1, 3)),
        lambda flow: flow(X, torch.linspace(0, 1, 3)),
    ],
)
def test_other_arguments_of_a_call_point_to_the_method_that_takes_them(call):
    with pytest.raises(TypeError, match=r"a Flow is called with x, .* run\(x, .*trajectory\(x, times\)"):
        call(flow_of("perceptron"))


# ------------------------------------------------------------------------------------------------------------ densities


def density_of(**settings):
    torch.manual_seed(0)
    network = {} if "field" in settings else {"hidden": 8, "layers": 2}
    return anode.DensityFlow(2, **{"context": 3, **network, **settings}).double()


@pytest.mark.parametrize("settings", [{}, {"field": Own()}], ids=["perceptron", "own"])
def test_a_conditional_density_integrates_to_one_for_every_context(settings):
    model = density_of(**settings, rtol=1e-6, atol=1e-6)
    side = torch.linspace(-6, 6, 61, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    densities = []
    for c in C[:2]:
        with torch.no_grad():
            log_prob = model.log_prob(grid, context=c.expand(len(grid), 3))
        densities.append(log_prob)
        assert float(log_prob.exp().sum() * (side[1] - side[0]) ** 2) == pytest.approx(1.0, abs=1e-2)
    assert not torch.allclose(*densities, atol=1e-2)


@compiled
@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_the_engine_computes_conditional_densities(trace):
    outcome = density_of(trace=trace).run(X, context=C)
    assert outcome.solution.engine.name == "native"


def test_samples_and_their_inverse_take_the_context():
    model = density_of(rtol=1e-7, atol=1e-7)
    drawn = model.sample(9, context=C)
    outcome = model.run(drawn, context=C)
    torch.testing.assert_close(model.inverse(outcome.features, context=C), drawn, rtol=1e-4, atol=1e-4)


def test_several_draws_of_a_point_have_its_context():
    model = density_of(rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(model.log_prob(X, 4, context=C), model.log_prob(X, context=C), rtol=1e-5, atol=1e-5)


def test_the_joint_density_and_a_saved_one_take_the_context(tmp_path):
    model = density_of(augment=2)
    x = torch.cat([X, X], 1)
    torch.testing.assert_close(model.joint().log_prob(x, context=C).shape, torch.Size([9]))
    again = anode.load(anode.save(model, tmp_path / "model"))
    assert again.settings == model.settings
    for each in (model, again):
        torch.manual_seed(3)
        each.found = each.log_prob(X, context=C)
    torch.testing.assert_close(model.found, again.found)


def test_log_probabilities_with_a_context_are_computed_in_inference_mode():
    model = density_of()
    expected = model.log_prob(X, context=C).detach()
    with torch.inference_mode():
        torch.testing.assert_close(model.log_prob(X.clone(), context=C.clone()), expected)


@pytest.mark.parametrize(
    ("settings", "context", "message"),
    [
        ({}, None, r"context: takes \[batch, 3\] for this density of p\(x \| c\), got None"),
        ({}, C[:, :2], r"context: takes shape \(9, 3\)"),
        ({"context": 0}, C, "context: takes None for a density built without context="),
        ({"field": anode.MLPField(2)}, C, r"field: takes a field with inputs=5, .*got one with inputs=2"),
    ],
)
def test_what_does_not_fit_a_conditional_density_is_named(settings, context, message):
    with pytest.raises(ValueError, match=message):
        density_of(**settings).log_prob(X, context=context)


def line(points):
    generator = torch.Generator().manual_seed(0)
    c = 4 * torch.rand(points, 1, generator=generator) - 2
    return torch.sin(c) + 0.2 * torch.randn(points, 1, generator=generator), c


@pytest.mark.parametrize("batches", [False, True])
def test_fit_learns_a_conditional_density_from_points_and_their_contexts(batches):
    torch.manual_seed(0)
    model = anode.DensityFlow(1, hidden=16, layers=2, context=1, rtol=1e-3, atol=1e-3)
    x, c = line(600)
    data = list(zip(x.split(128), c.split(128), strict=True)) if batches else (x, c)
    more = {} if batches else {"batch_size": 128}
    history = anode.fit(model, data, epochs=25, lr=2e-2, validation=line(200), check_every=20, **more)
    true = -0.5 - math.log(0.2) - 0.5 * math.log(2 * math.pi)  # the mean log-probability under the density itself
    assert history.validation[-1] < -true + 0.3
    assert len(history.check) > 0
    for at in (-1.0, 1.5):
        drawn = model.sample(400, context=torch.full((400, 1), at))
        assert abs(float(drawn.mean()) - math.sin(at)) < 0.2


def test_fit_regularises_a_conditional_density_of_classes():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes, self.net = nn.Embedding(4, 3), nn.Linear(5, 2)

        def forward(self, t, z, context):
            return torch.tanh(self.net(torch.cat([z, self.codes(context)], dim=1)))

    model = anode.DensityFlow(2, field=Embedded(), context=1)
    loss = anode.Regularised(anode.Kinetic(), anode.Jacobian())
    labels = torch.arange(9) % 4
    history = anode.fit(model, (X.float(), labels), epochs=2, loss=loss)
    assert history.failures == []
    assert model.sample(9, context=labels).shape == (9, 2)


def test_fit_of_a_conditional_density_without_contexts_says_what_to_pass():
    with pytest.raises(ValueError, match=r"data: .*context: takes shape .*fit\(model, \(x, context\)\)"):
        anode.fit(density_of(), X)
