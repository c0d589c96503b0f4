import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode.models.alike import configuration
from anode.models.flow import PAPER
from anode.models.model import Outcome
from anode.models.saving import load, save
from anode.storage import read_tensors, write_tensors
from helpers.draws import normal

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


@anode.register
class Autonomous(nn.Sequential):
    def forward(self, t, h):
        return super().forward(h)


BUILDERS = {
    "NeuralODE": lambda: anode.NeuralODE(2, 3, 8, activation="softplus", **TIGHT),
    "augmented": lambda: anode.NeuralODE(2, 3, 8, augment=2, activation="tanh", **TIGHT),
    "timeless": lambda: anode.NeuralODE(2, 1, 8, layers=1, time=False, activation="silu", **TIGHT),
    "stored": lambda: anode.NeuralODE(2, 1, 8, gradient="stored", activation="gelu", **TIGHT),
    "ResNet": lambda: anode.ResNet(2, 3, 8, 4),
    "Flow": lambda: anode.Flow(anode.MLPField(2, 8, activation="tanh"), **TIGHT),
    "augmented Flow": lambda: anode.Flow(anode.MLPField(5, 8, activation="softplus"), augment=3, t1=0.5, **TIGHT),
    "Flow of a module": lambda: anode.Flow(Autonomous(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), **TIGHT),
}
SIZES = {
    "NeuralODE": (3, 2),
    "augmented": (3, 4),
    "timeless": (1, 2),
    "stored": (1, 2),
    "ResNet": (3, 2),
    "Flow": (2, 2),
    "augmented Flow": (5, 5),
    "Flow of a module": (2, 2),
}
"""Outputs and features of each of them."""

WITH_FLOW = [name for name in BUILDERS if name != "ResNet"]

every_model = pytest.mark.parametrize(
    ("name", "members"), [*((name, None) for name in BUILDERS), *((name, 3) for name in BUILDERS)]
)


def model_of(name: str, members: int | None, dtype=torch.float64):
    torch.manual_seed(0)
    build = BUILDERS[name]
    return (build() if members is None else anode.seeded(build, range(members))).to(dtype)


def input_of(members: int | None, dtype=torch.float64) -> torch.Tensor:
    return normal(*([] if members is None else [members]), 6, 2, dtype=dtype)


def flow_in(model) -> anode.Flow:
    return model if isinstance(model, anode.Flow) else model.flow


# Every model


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_model_has_predictions_and_features_of_the_right_shape_and_dtype(name, members, dtype):
    model, x = model_of(name, members, dtype), input_of(members, dtype)
    if dtype == torch.float32 and name in WITH_FLOW:
        flow_in(model).solver = flow_in(model).solver.but(rtol=1e-3, atol=1e-3)
    outputs, features = SIZES[name]
    outcome = model.run(x)
    assert model.members == members
    for values, size in ((outcome.prediction, outputs), (outcome.features, features)):
        assert values.shape == (*x.shape[:-1], size)
        assert values.dtype == dtype
        assert values.isfinite().all()
    assert torch.equal(model(x), outcome.prediction)
    assert torch.equal(model.features(x), outcome.features)
    assert (outcome.solution is None) == (name == "ResNet")


@every_model
def test_every_model_has_a_gradient_for_each_parameter_and_for_the_input(name, members):
    model, x = model_of(name, members), input_of(members).requires_grad_()
    model(x).square().sum().backward()
    for parameter in (x, *model.parameters()):
        assert parameter.grad.isfinite().all()
        each = parameter.grad if members is None else parameter.grad.flatten(1).any(1)
        assert each.any() if members is None else each.all()


@every_model
def test_every_models_gradient_is_its_difference_quotient(name, members):
    model, x = model_of(name, members), input_of(members)
    if name in WITH_FLOW:  # steps of given size, so that no decision about a step can flip
        flow_in(model).solver = flow_in(model).solver.but(method="rk4", step_size=0.25)
    cotangent = normal(*model(x).shape, seed=3)
    found = torch.autograd.grad(model(x), tuple(model.parameters()), cotangent)
    directions = [normal(*p.shape, seed=4) for p in model.parameters()]

    def moved_by(step: float) -> torch.Tensor:
        with torch.no_grad():
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter += step * direction
            return (model(x) * cotangent).sum()

    step = 1e-6  # small, because of the kinks of relu
    quotient = (moved_by(step) - moved_by(-2 * step)) / (2 * step)
    expected = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
    torch.testing.assert_close(quotient, expected, rtol=1e-5, atol=1e-7)


@every_model
def test_every_model_treats_samples_alike_whatever_their_order(name, members):
    model, x = model_of(name, members), input_of(members)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(model(x[..., order, :]), model(x)[..., order, :], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 3, 2)], ids=str)
def test_every_model_takes_one_vector_a_batch_of_one_or_more_dimensions(name, shape):
    model, x = model_of(name, None), normal(*shape)
    flat = model(x.reshape(-1, 2))
    torch.testing.assert_close(model(x).reshape(flat.shape), flat, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_stacked_model_takes_a_batch_of_one(name):
    assert model_of(name, 3)(normal(3, 1, 2)).shape[:2] == (3, 1)


@pytest.mark.parametrize(
    ("name", "members"), [*((name, None) for name in WITH_FLOW), *((name, 3) for name in WITH_FLOW[:-1])]
)
def test_every_flow_can_be_undone(name, members):
    model, x = model_of(name, members), input_of(members)
    torch.testing.assert_close(flow_in(model).inverse(model.features(x)), x, rtol=1e-6, atol=1e-6)


@every_model
def test_every_model_is_restored_from_its_state_dict_through_a_file(name, members, tmp_path):
    model, x = model_of(name, members), input_of(members)
    path = write_tensors(tmp_path / "weights.safetensors", model.state_dict())
    torch.manual_seed(1)
    build = BUILDERS[name]
    other = (build() if members is None else anode.seeded(build, range(10, 10 + members))).double()
    assert not torch.equal(other(x), model(x))
    assert other.load_state_dict(read_tensors(path)) == ([], [])
    assert torch.equal(other(x), model(x))


@every_model
def test_every_model_is_saved_and_loaded(name, members, tmp_path):
    model, x = model_of(name, members), input_of(members)
    save(model, tmp_path / "model")
    other = load(tmp_path / "model")
    assert type(other) is type(model)
    assert other.members == members
    assert configuration(other) == configuration(model)
    assert torch.equal(other(x), model(x))


@every_model
def test_every_model_can_be_trained(name, members):
    model, x = model_of(name, members), normal(12, 2)
    before = [p.clone() for p in model.parameters()]
    y = normal(12, SIZES[name][0], seed=2)
    history = anode.fit(model, (x, y), epochs=1, batch_size=6, progress=False)
    assert history.members == members
    assert len(history) == 2
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@every_model
def test_no_model_moves_the_global_random_numbers_or_its_own_parameters_by_being_run(name, members):
    model, x = model_of(name, members), input_of(members)
    state, before = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    model(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@every_model
def test_every_model_can_be_copied_by_its_repr_and_settings(name, members):
    model = model_of(name, members)
    assert type(model).__name__ in repr(model)
    if members is None:  # what a stack is built of are its members
        again = type(model)(**model.settings)
        assert configuration(again) == configuration(model)
        assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())


# Neural ODEs


def test_a_neural_ode_is_a_linear_map_of_a_flow():
    model, x = model_of("augmented", None), input_of(None)
    features = anode.solve(model.flow.field, torch.cat([x, x.new_zeros(6, 2)], -1), (0.0, 1.0), **TIGHT).y1
    torch.testing.assert_close(model.features(x), features)
    torch.testing.assert_close(model(x), features @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        # (dim + 1) hidden + hidden, hidden² + hidden, hidden dim + dim; and the head, dim out + out
        ({"in_features": 2, "out_features": 1, "hidden": 32}, 128 + 1056 + 66 + 3),
        ({"in_features": 2, "out_features": 1, "hidden": 32, "augment": 5}, 288 + 1056 + 231 + 8),
        ({"in_features": 1, "out_features": 1, "hidden": 16, "augment": 1}, 64 + 272 + 34 + 3),
        ({"in_features": 2, "out_features": 1, "hidden": 32, "time": False}, 96 + 1056 + 66 + 3),
    ],
    ids=str,
)
def test_a_neural_ode_has_the_papers_number_of_parameters(options, parameters):
    assert sum(p.numel() for p in anode.NeuralODE(**options).parameters()) == parameters


def test_the_papers_solver_is_the_default():
    solver = anode.NeuralODE(2, 1).flow.solver
    assert (solver.method, solver.rtol, solver.atol) == ("dopri5", 1e-3, 1e-3)
    stats = anode.NeuralODE(2, 1).run(torch.ones(4, 2)).solution.stats
    assert stats.nfe == 2 + 6 * (stats.accepted + stats.rejected)


@pytest.mark.parametrize("augment", [0, 1, 5])
def test_augmenting_by_nothing_is_the_plain_neural_ode(augment):
    model = anode.NeuralODE(2, 1, augment=augment)
    assert model.flow.field.dim == model.head.in_features == 2 + augment
    assert model.features(torch.ones(4, 2)).shape == (4, 2 + augment)


def test_options_of_the_solver_go_to_the_flow():
    model = anode.NeuralODE(2, 1, rtol=1e-7, method="bosh3", max_steps=77, t1=0.5, control="sample")
    assert model.flow.solver == PAPER.but(rtol=1e-7, method="bosh3", max_steps=77, control="sample")
    assert model.flow.t1 == 0.5
    assert anode.NeuralODE(2, 1, solver=model.flow.solver).flow.solver == model.flow.solver
    assert model.run(torch.ones(4, 2)).solution.stats.nfe.shape == (4,)


def test_a_failed_solve_raises_but_for_run():
    model = anode.NeuralODE(2, 1, max_steps=1).double()
    x = normal(5, 2)
    outcome = model.run(x)
    assert not outcome.solution.success
    assert outcome.prediction.shape == (5, 1)
    for call in (model, model.features):
        with pytest.raises(anode.SolveError, match="MAX_STEPS"):
            call(x)


def test_an_outcome_without_a_solve_needs_no_check():
    outcome = Outcome(torch.ones(1), torch.ones(1))
    assert outcome.check() is outcome


# Residual networks


def test_a_resnet_adds_a_network_of_its_own_in_every_layer():
    model, x = model_of("ResNet", None), input_of(None)
    h = x
    for block in model.blocks:
        first, second, third = block.weights
        h1 = torch.relu(h @ first.T + block.biases[0])
        h2 = torch.relu(h1 @ second.T + block.biases[1])
        h = h + h2 @ third.T + block.biases[2]
    torch.testing.assert_close(model.features(x), h)
    torch.testing.assert_close(model(x), h @ model.head.weight.T + model.head.bias)


def test_a_resnets_trajectory_goes_from_the_input_to_the_features():
    model, x = model_of("ResNet", None), input_of(None)
    states = model.trajectory(x)
    assert len(states) == 1 + len(model.blocks) == 5
    assert states[0] is x
    assert torch.equal(states[-1], model.features(x))
    assert all(not torch.equal(a, b) for a, b in pairwise(states))


@pytest.mark.parametrize("members", [None, 2])
def test_a_resnet_scales_bytes_as_its_error_for_other_dtypes_promises(members):
    model = anode.ResNet(2, 3) if members is None else anode.seeded(lambda: anode.ResNet(2, 3), range(members))
    front = () if members is None else (members,)
    assert torch.equal(model(torch.full((*front, 4, 2), 255, dtype=torch.uint8)), model(torch.ones(*front, 4, 2)))


def test_the_layers_of_a_resnet_are_different():
    weights = [block.weights[0] for block in anode.ResNet(2, 1).blocks]
    assert all(not torch.equal(a, b) for a, b in pairwise(weights))


def test_a_resnet_works_with_another_head():
    model = anode.ResNet(2, 1)
    model.head = torch.nn.Sequential(torch.nn.Linear(2, 3))
    assert model(torch.rand(4, 2)).shape == (4, 3)
    assert anode.stack([model, model])(torch.rand(2, 4, 2)).shape == (2, 4, 3)


@pytest.mark.parametrize(("hidden", "layers"), [(16, 2), (32, 5), (32, 10)])
def test_a_resnet_has_the_papers_number_of_parameters(hidden, layers):
    each = (2 * hidden + hidden) + (hidden * hidden + hidden) + (2 * hidden + 2)
    assert sum(p.numel() for p in anode.ResNet(2, 1, hidden, layers).parameters()) == layers * each + 3


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_a_resnet_uses_its_activation(activation):
    model = anode.ResNet(2, 1, activation=activation)
    assert all(block.activation == activation for block in model.blocks)


# Arguments

build_either = pytest.mark.parametrize("build", [anode.NeuralODE, anode.ResNet], ids=["NeuralODE", "ResNet"])


@build_either
@pytest.mark.parametrize("name", ["in_features", "out_features", "hidden", "layers"])
@pytest.mark.parametrize("size", [0, -1, 1.5, math.nan, "2", True])
def test_a_bad_size_is_an_error_that_names_it(build, name, size):
    # hidden and layers are checked by the fields themselves
    with pytest.raises(ValueError, match=f"{name}: takes a whole number above 0"):
        build(**{"in_features": 2, "out_features": 1, name: size})


@build_either
def test_an_unknown_activation_is_an_error_that_suggests_the_nearest(build):
    with pytest.raises(ValueError, match=r"activation: .*'rulu'.*did you mean 'relu'"):
        build(2, 1, activation="rulu")


def test_an_unknown_option_is_an_error_that_names_it():
    with pytest.raises(TypeError, match="hiden"):
        anode.NeuralODE(2, 1, hiden=3)


@build_either
@pytest.mark.parametrize("shape", [(), (3,), (5, 1), (5, 3)], ids=str)
def test_an_input_of_another_size_is_an_error_that_names_x(build, shape):
    with pytest.raises(ValueError, match="x: takes 2 features in the last dimension, got shape"):
        build(2, 1)(torch.ones(shape))


@build_either
@pytest.mark.parametrize("shape", [(2,), (5, 2), (2, 5, 2), (3, 4, 5, 2)], ids=str)
def test_an_input_of_another_shape_for_a_stack_is_an_error_that_names_x(build, shape):
    model = anode.seeded(lambda: build(2, 1), range(3))
    with pytest.raises(ValueError, match=r"x: takes shape \[members, batch, features\] = \[3, any, 2\]"):
        model(torch.ones(shape))


@pytest.mark.parametrize("build", [partial(anode.NeuralODE, 2, 1), partial(anode.ImageNeuralODE, (1, 4, 4), 3)])
def test_an_unknown_argument_is_an_error_that_names_it_and_the_nearest(build):
    with pytest.raises(TypeError, match=r"rtoll: is not an argument of .*; did you mean 'rtol'\?"):
        build(rtoll=1e-3)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"max_steps": 0}, "max_steps: takes a whole number above 0, got 0"),
        ({"rtol": math.inf}, "rtol: takes a finite number, got inf"),
        ({"atol": math.inf}, "atol: takes a finite number, got inf"),
        ({"t1": math.inf}, "t1: takes a finite number, got inf"),
        ({"step_size": math.inf}, "step_size: takes a finite number, got inf"),
        ({"gradient": "exact"}, "gradient: takes one of discrete, stored, continuous, got 'exact'"),
        ({"control": "batch"}, "control: takes one of auto, joint, member, sample, got 'batch'"),
    ],
)
def test_a_bad_option_of_the_solver_is_refused_when_a_model_is_made(option, said):
    with pytest.raises(ValueError, match=said):
        anode.NeuralODE(2, 1, **option)
    with pytest.raises(ValueError, match=said):
        anode.ImageNeuralODE((1, 4, 4), 3, **option)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int16])
def test_sizes_may_be_integers_of_numpy(kind, tmp_path):
    two, three = kind(2), kind(3)
    models = [
        anode.NeuralODE(two, three, three, augment=two, layers=two, max_steps=kind(100), control=kind(1)),
        anode.NeuralODE(2, 1, rtol=np.float32(1e-3), step_size=np.float32(0.5)),
        anode.ResNet(two, three, three, two),
        anode.ImageNeuralODE(np.array([2, 3, 3], kind), three, three, augment=two, head_channels=three),
    ]
    for model in models:
        found = load(save(model, tmp_path / "model"))
        assert found.settings == model.settings
        plain = {name: value for name, value in model.settings.items() if name != "solver"}
        assert {type(value) for value in plain.values()} <= {int, float, bool, str, list, type(None)}
    assert len(anode.Flow(anode.MLPField(three), augment=kind(1)).trajectory(torch.rand(4, 2), three)) == 3
    assert anode.ConvField(two, three)(torch.tensor(0.0), torch.zeros(1, 2, 4, 4)).shape == (1, 2, 4, 4)
    data = anode.datasets.g(two, inner=kind(20), outer=kind(40), seed=kind(1))
    assert torch.equal(data.x, anode.datasets.g(2, inner=20, outer=40, seed=1).x)
    assert len(anode.datasets.moons(points=kind(10), seed=kind(1))) == 10
    assert len(anode.datasets.separable(two, points=kind(10))) == 10
    assert anode.images.load("digits").subset(kind(20), kind(1)).resize(kind(4)).shape == (1, 4, 4)
    options = {"epochs": kind(1), "batch_size": kind(20), "evaluate_every": two, "seed": kind(1)}
    fitted = anode.fit(anode.NeuralODE(2, 1), data, validation=data, **options, checkpoint=tmp_path / "states")
    assert fitted.settings["batch_size"] == 20


@pytest.mark.parametrize("bad", [True, np.bool_(True), 2.0, np.float64(2), "2", torch.tensor(True)], ids=repr)
def test_what_is_no_integer_is_no_size(bad):
    with pytest.raises(ValueError, match="hidden: takes a whole number above 0"):
        anode.NeuralODE(2, 1, bad)


# Parts of one's own


class Attention(nn.Module):
    """A field on sets of points, [batch, points, features]."""

    def __init__(self, dim):
        super().__init__()
        self.mix = nn.MultiheadAttention(dim, 1, batch_first=True)

    def forward(self, t, h):
        return torch.tanh(self.mix(h, h, h, need_weights=False)[0]) * torch.cos(t)


class Spots(nn.Module):
    """A field on images that says where their channels are."""

    features_dim = -3

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, t, h):
        return torch.tanh(self.conv(h))


def test_a_field_and_a_head_of_ones_own_are_a_flow_and_what_follows_it():
    field, head, x = Attention(4), nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.rand(5, 3, 2)
    model = anode.NeuralODE(field=field, head=head, augment=2, rtol=1e-5)
    outcome = model.run(x)
    features = anode.Flow(field, augment=2, rtol=1e-5)(x)
    assert torch.equal(outcome.features, features)
    assert torch.equal(outcome.prediction, head(features))
    outcome.prediction.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_images_go_through_a_field_of_ones_own_with_channels_of_zeros_added():
    model = anode.NeuralODE(field=Spots(1 + 2), head=nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), augment=2)
    assert model(torch.rand(3, 1, 4, 4)).shape == (3, 10)
    assert torch.equal(model(torch.full((3, 1, 4, 4), 255, dtype=torch.uint8)), model(torch.ones(3, 1, 4, 4)))


def test_a_linear_head_is_added_where_the_sizes_are_given():
    model = anode.NeuralODE(2, 3, field=nn.Sequential(nn.Linear(4, 4), nn.Tanh()), augment=2)
    assert model(torch.rand(5, 2)).shape == (5, 3)


def test_a_perceptron_may_have_a_head_of_ones_own():
    head = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    model = anode.NeuralODE(2, augment=1, hidden=8, head=head)
    assert model(torch.rand(5, 2)).shape == (5, 2)
    assert model.flow.field.hidden == 8


class Moving(anode.Augment):
    """A position that starts at the input, at rest."""

    def forward(self, x):
        return x, torch.zeros_like(x)

    def remove(self, h):
        return h[0]


class Spring(nn.Module):
    """Acceleration towards the origin, as a field on pairs of position and velocity."""

    def forward(self, t, h):
        position, velocity = h
        return velocity, -position


class Position(nn.Module):
    def forward(self, h):
        return h[0]


def test_a_state_may_be_a_tuple():
    model = anode.NeuralODE(field=Spring(), head=Position(), augment=Moving(), rtol=1e-7, atol=1e-7)
    x = torch.rand(5, 2)
    torch.testing.assert_close(model(x), x * math.cos(1.0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.features(x)[1], -x * math.sin(1.0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.flow.inverse(model.features(x)), x, atol=1e-5, rtol=1e-5)
    assert [part.shape for part in model.flow.trajectory(x, 7)] == [(7, 5, 2)] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "in_features: takes a whole number above 0, got None"),
        ({"in_features": 2}, "out_features: takes a whole number above 0, got None"),
        ({"field": Spots(1)}, r"in_features: takes the size of each input, unless head= is given, got None"),
        ({"field": Spots(1), "head": 3}, r"head: takes a torch\.nn\.Module, got 3"),
        ({"field": Spots(1), "head": Position(), "hidden": 8}, "hidden: takes None with field="),
        ({"field": Spots(1), "head": Position(), "out_features": 8}, "out_features: takes None with head="),
        ({"field": lambda t, h: h, "head": Position()}, r"field: takes a torch\.nn\.Module f\(t, h\)"),
        ({"in_features": 2, "out_features": 1, "augmnet": 3}, "augmnet: .*did you mean 'augment'"),
    ],
    ids=["nothing", "no outputs", "no head", "no module", "hidden", "two heads", "a function", "a typo"],
)
def test_parts_that_do_not_go_together_are_named(options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        anode.NeuralODE(**options)
