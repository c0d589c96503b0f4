"""The parts of the family, noise and regularisers inside estimators."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from torch import nn

import anode
from anode import ANODEClassifier, ANODERegressor
from anode.estimators import trained

IRIS = load_iris()
USUAL = {"epochs": 2, "random_state": 0}


@anode.register
def second_order(size):
    return anode.SecondOrder(anode.MLPField(size // 2, 8, inputs=size))


@anode.register
def heavy_ball(size):
    channels = size if isinstance(size, int) else size[0]
    kind = anode.MLPField if isinstance(size, int) else anode.ConvField
    return anode.HeavyBall(kind(channels // 2, 4), generalised=True)


@anode.register
def controlled(size):
    return anode.DataControl(anode.MLPField(size - 4, 8, inputs=size))


PARTS = {
    "constant": {"augment": anode.Constant(2)},
    "learned": {"augment": anode.Learned(nn.Linear(4, 2))},
    "second order": {"augment": anode.WithVelocity(1, start=nn.Linear(5, 5)), "field": second_order},
    "heavy ball": {"augment": anode.WithVelocity(), "field": heavy_ball},
    "data control": {"augment": anode.WithInput(1), "field": controlled},
    "noise": {"solver": anode.Solver(method="euler", step_size=0.25, noise=0.2)},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_trained_saved_and_predicts_the_same_again(name, tmp_path):
    model = clone(ANODEClassifier(**PARTS[name], **USUAL)).fit(IRIS.data, IRIS.target)
    found = model.predict_proba(IRIS.data)
    assert (model.predict_proba(IRIS.data) == found).all()
    again = ANODEClassifier.load(model.save(tmp_path / "model"))
    assert (again.predict_proba(IRIS.data) == found).all()
    assert model.transform(IRIS.data).shape[1] == len(model.get_feature_names_out())


def test_a_part_works_on_images():
    digits = load_digits(n_class=3)
    augment = anode.WithVelocity(1, dim=-3)
    model = ANODEClassifier(image=(1, 8, 8), augment=augment, field=heavy_ball, epochs=1, random_state=0)
    model.fit(digits.data[:64], digits.target[:64])
    assert model.predict(digits.data[64:80]).shape == (16,)
    assert model.model_.head.image == (2, 8, 8)


def test_regularisers_change_training_and_are_named_when_they_are_not_saved(tmp_path):
    x, y = IRIS.data[:, :3], IRIS.data[:, 3]
    plain = ANODERegressor(**USUAL).fit(x, y)
    model = ANODERegressor(regularisers=[anode.Kinetic(10.0), anode.Steer(0.2)], **USUAL).fit(x, y)
    assert model.history_.loss[0] > plain.history_.loss[0]
    assert (clone(model).fit(x, y).predict(x) == model.predict(x)).all()
    with pytest.warns(UserWarning, match="regularisers: not saved"):
        path = model.save(tmp_path / "model")
    assert np.array_equal(ANODERegressor.load(path).predict(x), model.predict(x))


@pytest.mark.parametrize("name", ["noise", "data control"])
def test_noise_in_predictions_is_the_same_for_all_rows(name, monkeypatch):
    model = ANODEClassifier(**{**PARTS[name], **PARTS["noise"]}, **USUAL).fit(IRIS.data, IRIS.target)
    found = model.predict_proba(IRIS.data)
    np.testing.assert_allclose(model.predict_proba(IRIS.data[70:75]), found[70:75], rtol=1e-6)
    monkeypatch.setattr(trained, "ROWS_AT_ONCE", 40)
    np.testing.assert_allclose(model.predict_proba(IRIS.data), found, rtol=1e-6)
    np.testing.assert_allclose(model.transform(IRIS.data[70:75]), model.transform(IRIS.data)[70:75], rtol=1e-6)


def test_noise_in_predictions_leaves_torchs_random_numbers_alone():
    model = ANODEClassifier(**PARTS["noise"], **USUAL).fit(IRIS.data, IRIS.target)
    before = torch.get_rng_state()
    model.predict(IRIS.data)
    assert torch.equal(torch.get_rng_state(), before)
