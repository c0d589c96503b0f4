import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from torch import nn

import anode
from anode import ANODEClassifier, ANODERegressor
from anode.models.flow import PAPER
from helpers.own_parts import Lift, Private, Swirl, convolutions, noisy_layers

IRIS = load_iris(return_X_y=True)
X_DIGITS, Y_DIGITS = (part[:64] for part in load_digits(return_X_y=True))
QUICK = {"epochs": 2, "random_state": 0}


def rows(**options) -> ANODEClassifier:
    return ANODEClassifier(**{**QUICK, **options}).fit(*IRIS)


def images(**options) -> ANODEClassifier:
    return ANODEClassifier(image=(1, 8, 8), **{**QUICK, "epochs": 1, **options}).fit(X_DIGITS, Y_DIGITS)


# A field of one's own


@pytest.mark.parametrize("field", [Swirl, Private, anode.MLPField])
def test_a_field_of_ones_own_learns_classes(field):
    model = rows(field=field, epochs=8, lr=0.05, batch_size=75, random_state=0)
    assert type(model.model_.flow.field) is type(field(9))
    assert model.score(*IRIS) > 0.8


def test_a_field_of_ones_own_learns_numbers():
    x = np.linspace(-1, 1, 40)[:, None]
    model = ANODERegressor(field=Swirl, epochs=20, lr=0.05, random_state=0).fit(x, np.sin(2 * x[:, 0]))
    assert model.score(x, np.sin(2 * x[:, 0])) > 0.9


@pytest.mark.parametrize(("augment", "size"), [("auto", 9), (0, 4), (2, 6), (Lift(4, 3), 7)])
def test_a_field_is_given_the_size_of_the_state(augment, size):
    seen = []
    model = rows(augment=augment, field=lambda n: seen.append(n) or Swirl(n))
    assert seen == [size]
    assert model.transform(IRIS[0]).shape == (150, size)
    assert len(model.get_feature_names_out()) == size


def test_a_field_for_images_is_given_channels_height_and_width():
    seen = []
    model = images(augment=2, field=lambda shape: seen.append(shape) or convolutions(shape))
    assert seen == [(3, 8, 8)]
    assert model.transform(X_DIGITS[:5]).shape == (5, 3 * 64)
    assert len(model.get_feature_names_out()) == 3 * 64


def test_zeros_become_channels_whatever_the_field_says():
    model = images(augment=2, field=convolutions)
    assert model.model_.flow.augment.dim == -3
    assert model.model_.flow.augment(torch.ones(1, 1, 8, 8)).sum(dim=(0, 2, 3)).tolist() == [64, 0, 0]


def test_the_same_seed_gives_a_field_of_ones_own_the_same_bits():
    a, b, c = (rows(random_state=s, field=Swirl) for s in (1, 1, 2))
    assert np.array_equal(a.predict_proba(IRIS[0]), b.predict_proba(IRIS[0]))
    assert not np.allclose(a.predict_proba(IRIS[0]), c.predict_proba(IRIS[0]))


def noisy(**options) -> ANODEClassifier:
    return rows(field=noisy_layers, solver=anode.Solver(method="rk4", step_size=0.5), **options)


def test_what_is_random_in_training_depends_on_the_seed_and_leaves_torch_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (noisy(random_state=s).history_.loss for s in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert np.array_equal(a, b)
    assert not np.allclose(a, c)


def test_layers_that_are_random_in_training_are_not_in_prediction():
    model = noisy(warm_start=True)
    assert np.array_equal(model.predict_proba(IRIS[0]), model.predict_proba(IRIS[0]))
    modes = []

    class Watch(anode.Callback):
        def iteration(self, training):
            modes.append(training.model.training)

    model.set_params(callbacks=[Watch()]).fit(*IRIS)
    assert modes == [True] * 2 * 5


@pytest.mark.parametrize("field", [Swirl, Private])
def test_a_prediction_by_a_field_of_ones_own_does_not_depend_on_other_rows(field):
    model = rows(field=field)
    alone = model.predict_proba(IRIS[0][:20])
    assert np.allclose(model.predict_proba(np.concatenate([IRIS[0][:20], 30 * IRIS[0]]))[:20], alone, rtol=1e-9)
    assert model.model_.flow.solver == PAPER  # the step control of predictions is not left on the model


def by_number(t, h):
    return h * float(t)


def by_decision(t, h):
    return h if t > 0.5 else -h


def by_flat_time(t, h):
    return h * t.flatten()


@pytest.mark.parametrize("wrong", [by_number, by_decision, by_flat_time])
@pytest.mark.parametrize(("fit", "shape"), [(rows, r"\[2, 1\]"), (images, r"\[3, 1, 1, 1\]")])
def test_a_field_that_takes_no_time_per_row_is_told_to_let_it_broadcast(wrong, fit, shape):
    class Wrong(nn.Module):
        def forward(self, t, h):
            return wrong(t, h)

    said = rf"field: fails with one time per row, t of shape {shape}, which predictions need; write f\(t, h\) so that t"
    with pytest.raises(ValueError, match=said):
        fit(augment=1, field=lambda size: Wrong())  # images then have two channels, which two times would fit by chance


def test_a_field_that_does_not_fit_the_state_is_named():
    with pytest.raises(ValueError, match=r"field: fails on states of shape \[2, 9\] \(RuntimeError: "):
        rows(field=lambda size: Swirl(5))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (Swirl(9), "field: takes a function or class that is given the size of the state .*got a Swirl"),
        ("mlp", "field: takes a function or class"),
        (lambda size: size, "field: takes a function or class .*, which returned a int"),
    ],
    ids=["module", "text", "number"],
)
def test_what_makes_no_field_is_refused(field, said):
    with pytest.raises((ValueError, TypeError), match=said):
        rows(field=field)


# Parameters that would change nothing


@pytest.mark.parametrize(
    "options",
    [{"hidden": 8}, {"layers": 1}, {"activation": "relu"}, {"time": False}, {"filters": 8}],
    ids=lambda options: next(iter(options)),
)
def test_what_describes_a_network_is_refused_beside_a_field(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=rf"{name}: takes no value with field, .*default, got {value!r}"):
        rows(field=Swirl, **options)


@pytest.mark.parametrize("options", [{"hidden": 8}, {"layers": np.int64(1)}], ids=["hidden", "layers"])
def test_sizes_of_a_perceptron_are_refused_for_images(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: takes no value with image, .*filters instead"):
        images(**options)


def test_filters_are_refused_without_images():
    with pytest.raises(ValueError, match="filters: takes no value without image; leave it at its default, got 8"):
        ANODERegressor(filters=8).fit(*IRIS)


def test_defaults_are_not_refused():
    options = {name: getattr(ANODEClassifier, name) for name in ("hidden", "layers", "activation", "time", "filters")}
    assert rows(**options, field=Swirl).n_iter_ == 2
    assert images(**options).n_iter_ == 1


# An augmentation of one's own


def test_an_augmentation_of_ones_own_is_copied_and_trained():
    lift = Lift(4, 3)
    before = lift.lift.weight.detach().clone()
    models = [rows(augment=lift) for _ in range(2)]
    assert torch.equal(lift.lift.weight, before)
    assert lift.lift.weight.dtype == torch.float32  # though the rows are float64
    trained = models[0].model_.flow.augment.lift.weight
    assert not torch.allclose(trained, before.double(), atol=1e-4)
    assert torch.equal(models[1].model_.flow.augment.lift.weight, trained)


def test_an_augmentation_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"augment: takes zeros that are appended to dimension -3, .*got Zeros\(2"):
        images(augment=anode.Zeros(2))
    model = images(augment=anode.Zeros(2, dim=-3))
    assert model.transform(X_DIGITS[:5]).shape == (5, 3 * 64)


# Going on


def test_going_on_takes_a_field_built_alike():
    model = rows(field=Swirl, warm_start=True)
    before = model.history_.loss[0]
    assert model.fit(*IRIS).history_.loss[0] < before
    for other in (Private, lambda size: Swirl(size, speed=2.0), None):
        with pytest.raises(
            ValueError, match="field: takes a module built as in the first fit, because warm_start is set"
        ):
            model.set_params(field=other).fit(*IRIS)


def test_going_on_takes_an_augmentation_built_alike():
    model = rows(augment=Lift(4, 3), warm_start=True)
    assert model.fit(*IRIS).n_iter_ == 2
    with pytest.raises(
        ValueError, match="augment: takes a module built as in the first fit, because warm_start is set"
    ):
        model.set_params(augment=3).fit(*IRIS)


@pytest.mark.parametrize("name", ["scale", "early_stopping", "warm_start"])
def test_a_switch_takes_true_or_false(name):
    with pytest.raises(ValueError, match=f"{name}: takes True or False, got 'yes'"):
        rows(**{name: "yes"})


def test_a_misspelt_augment_is_told_of_auto():
    with pytest.raises(ValueError, match=r"augment: takes .auto., a whole number from 0, or .*got 'atuo'"):
        rows(augment="atuo")


def test_an_estimator_leaves_the_batch_statistics_of_an_augmentation_to_training():
    normed = anode.Learned(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    x = np.random.default_rng(0).normal(size=(64, 2))
    model = ANODERegressor(augment=normed, hidden=4, epochs=1, batch_size=64, random_state=0).fit(x, x[:, 0])
    assert model.model_.flow.augment.network[1].num_batches_tracked == 1
