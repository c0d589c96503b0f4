"""The density of rows: scales, weights, both ways, files, and what is refused."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import anode

SMALL = {"hidden": 8, "layers": 1, "random_state": 0}
SCALES = np.array([0.1, 50.0])


def rows(count: int = 200, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 2)) * SCALES + [3, -20]


@pytest.fixture(scope="module")
def fitted() -> anode.ANODEDensity:
    return anode.ANODEDensity(**SMALL, epochs=30).fit(rows())


class Drift(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, t, z):
        return self.linear(z) * (1 + t)


def test_the_density_of_unscaled_rows_integrates_to_one(fitted):
    sides = [torch.linspace(-8, 8, 121) * scale + at for scale, at in zip(SCALES, (3, -20), strict=True)]
    cell = math.prod(float(side[1] - side[0]) for side in sides)
    total = np.exp(fitted.score_samples(torch.cartesian_prod(*sides).double().numpy())).sum() * cell
    assert total == pytest.approx(1, abs=1e-3)


def test_it_comes_close_to_the_normal_distribution_that_rows_come_from(fitted):
    held_out = rows(500, seed=1)
    truth = -math.log(2 * math.pi * SCALES.prod()) - 0.5 * (((held_out - [3, -20]) / SCALES) ** 2).sum(1)
    assert fitted.score(held_out) == pytest.approx(truth.mean(), abs=0.1)
    assert fitted.score(held_out) == pytest.approx(fitted.score_samples(held_out).mean())
    drawn = fitted.sample(4000, random_state=0)
    np.testing.assert_allclose(drawn.mean(0), [3, -20], atol=0.2 * SCALES.max(), rtol=0.05)
    np.testing.assert_allclose(drawn.std(0), SCALES, rtol=0.15)


def test_samples_depend_on_the_random_state_and_on_nothing_else(fitted):
    before = torch.get_rng_state()
    assert np.array_equal(fitted.sample(3, random_state=1), fitted.sample(3, random_state=1))
    assert not np.array_equal(fitted.sample(3, random_state=1), fitted.sample(3, random_state=2))
    assert fitted.sample().shape == (1, 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("options", [{"augment": 1}, {"trace": "hutchinson"}], ids=str)
def test_noise_in_training_comes_from_the_seed_and_scores_do_not_depend_on_other_rows(options):
    models = [anode.ANODEDensity(**SMALL, epochs=2, **options).fit(rows(60)) for _ in range(2)]
    scores = [model.score_samples(rows(6, seed=1)) for model in models]
    assert np.array_equal(*scores)
    np.testing.assert_allclose(models[0].score_samples(rows(6, seed=1)[2:4]), scores[0][2:4], rtol=1e-6)
    assert models[0].sample(2).shape == (2, 2)


def test_more_draws_make_the_bound_tighter_in_the_mean():
    model = anode.ANODEDensity(**SMALL, augment=1, epochs=2).fit(rows(60))
    one, many = (model.set_params(draws=draws).score(rows(300, seed=1)) for draws in (1, 50))
    assert one < many


def test_rows_without_weight_do_not_count():
    X, options = rows(40), {**SMALL, "epochs": 2, "scale": False, "batch_size": 40}
    weights = np.repeat([1.0, 0.0], 20)
    near = (X - X.mean(0)) / X.std(0)
    other = np.concatenate([near[:20], 2 * near[20:]])
    scores = [anode.ANODEDensity(**options).fit(each, sample_weight=weights).score(near) for each in (near, other)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


def test_early_stopping_and_a_validation_set():
    model = anode.ANODEDensity(**SMALL, epochs=4, early_stopping=True, patience=1).fit(rows(60))
    assert 1 <= model.n_iter_ <= 4
    held_out = rows(20, seed=1)
    followed = anode.ANODEDensity(**SMALL, epochs=2).fit(rows(60), validation=held_out)
    losses = followed.history_.validation
    assert losses[-1] == pytest.approx(-followed.score(held_out) - np.log(followed.scale_).sum(), abs=1e-3)


def test_a_warm_start_goes_on_and_sparse_rows_and_precisions_are_taken():
    model = anode.ANODEDensity(**SMALL, epochs=2, warm_start=True).fit(rows(60))
    first, weights = model.offset_, [p.clone() for p in model.model_.parameters()]
    model.fit(rows(60, seed=1))
    assert model.offset_ is first
    assert any(not torch.equal(a, b) for a, b in zip(weights, model.model_.parameters(), strict=True))
    sparse = anode.ANODEDensity(**SMALL, epochs=0).fit(csr_array(rows(60).astype(np.float32)))
    assert sparse.score_samples(rows(3).astype(np.float32)).dtype == np.float32
    assert sparse.sample(2).dtype == np.float32


def test_a_field_of_ones_own_is_trained_and_saved(tmp_path):
    anode.register(Drift)
    model = anode.ANODEDensity(field=Drift, epochs=2, random_state=0).fit(rows(60))
    model.save(tmp_path / "density")
    assert np.array_equal(
        anode.ANODEDensity.load(tmp_path / "density").score_samples(rows(5)), model.score_samples(rows(5))
    )


def test_a_saved_or_pickled_estimator_says_the_same_to_the_bit(tmp_path, fitted):
    fitted.save(tmp_path / "density")
    for other in (anode.ANODEDensity.load(tmp_path / "density"), pickle.loads(pickle.dumps(fitted))):
        assert np.array_equal(other.score_samples(rows(5)), fitted.score_samples(rows(5)))
        assert np.array_equal(other.sample(3, random_state=0), fitted.sample(3, random_state=0))


def test_a_grid_search_chooses_by_the_log_likelihood():
    search = GridSearchCV(anode.ANODEDensity(**SMALL, epochs=2), {"lr": [1e-6, 2e-2]}, cv=2).fit(rows(80))
    assert search.best_params_ == {"lr": 2e-2}
    assert clone(search.best_estimator_).lr == 2e-2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"augment": -1}, "augment: takes a whole number from 0, got -1"),
        ({"draws": 0}, "draws: takes a whole number above 0, got 0"),
        ({"trace": "half"}, "trace: takes one of exact, hutchinson, got 'half'"),
        ({"field": Drift, "hidden": 3}, "hidden: takes no value with field"),
        ({"field": lambda size: 3}, "field: takes a function or class"),
        ({"field": lambda size: torch.nn.Linear(size, size)}, "field: fails on states of shape"),
        ({"time": 3}, "time: takes True or False, got 3"),
    ],
    ids=["augment", "draws", "trace", "field and hidden", "no module", "no time", "time"],
)
def test_a_bad_parameter_is_named_and_nothing_is_learned(options, said):
    model = anode.ANODEDensity(epochs=1, **options)
    with pytest.raises((ValueError, TypeError), match=said):
        model.fit(rows(20))
    assert not hasattr(model, "model_")


def test_too_many_columns_for_the_exact_trace_have_an_estimate():
    X = np.random.default_rng(0).normal(size=(30, 65))
    with pytest.raises(ValueError, match='trace: takes "hutchinson" for a state of 65 numbers'):
        anode.ANODEDensity().fit(X)
    model = anode.ANODEDensity(**SMALL, trace="hutchinson", epochs=1).fit(X)
    assert np.array_equal(model.score_samples(X[:3]), model.score_samples(X[:3]))


@pytest.mark.parametrize("augment", [0, 1])
def test_an_estimated_score_does_not_depend_on_other_rows_and_averages_over_draws(augment):
    X = np.random.default_rng(0).normal(size=(40, 65))
    solver = anode.Solver(method="rk4", step_size=0.5)
    model = anode.ANODEDensity(**SMALL, trace="hutchinson", augment=augment, solver=solver, epochs=1).fit(X)
    with torch.no_grad():
        for parameter in model.model_.parameters():
            parameter *= 3  # so that estimates differ
    scores = model.score_samples(X)
    np.testing.assert_allclose(model.score_samples(X[5:7]), scores[5:7], rtol=1e-6)
    twice = model.score_samples(np.concatenate([X[:3], X[:3]]))
    np.testing.assert_allclose(twice[:3], twice[3:], rtol=1e-6)
    one, many = (model.set_params(draws=draws).score_samples(X) for draws in (1, 200))
    assert np.abs(scores - many).max() < np.abs(one - many).max()


@pytest.mark.parametrize(("columns", "augment", "most"), [(2, 0, 300), (8, 2, 163), (30, 2, 51)])
def test_rows_are_computed_a_few_at_a_time_if_each_is_computed_often(columns, augment, most):
    X = np.random.default_rng(0).normal(size=(300, columns))
    solver = anode.Solver(method="euler", step_size=1.0, engine="torch")
    model = anode.ANODEDensity(**SMALL, augment=augment, solver=solver, epochs=0).fit(X)
    seen = []
    model.model_.field.register_forward_pre_hook(lambda module, given: seen.append(len(given[1])))
    assert model.score_samples(X).shape == (300,)
    assert max(seen) == most * (20 if augment else 1)


def test_draws_are_checked_in_predictions_too(fitted):
    model = clone(fitted).set_params(epochs=0).fit(rows()).set_params(draws=0)
    with pytest.raises(ValueError, match="draws: takes a whole number above 0, got 0"):
        model.score_samples(rows(3))


def test_a_row_far_away_is_an_error_that_says_what_to_do(fitted):
    with pytest.raises(FloatingPointError, match="log_prob: is not finite for 1 of 1 points"):
        fitted.score_samples([[1e200, 0.0]])
    with pytest.raises(ValueError, match="n_samples: takes a whole number above 0, got 0"):
        fitted.sample(0)
