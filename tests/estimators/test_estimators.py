import json

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_circles, make_moons
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import anode
from anode import ANODEClassifier, ANODERegressor, Solver
from anode.files import DamagedFileError
from anode.storage import read_json
from helpers.editing import change
from helpers.keeping import by_copying, by_joblib, by_ourselves, by_pickle

IRIS = load_iris()
QUICK = {"epochs": 15, "hidden": 8, "random_state": 0}


def iris_classifier(**options) -> ANODEClassifier:
    return ANODEClassifier(**{**QUICK, **options}).fit(IRIS.data, IRIS.target)


def wave(rows: int = 120):
    x = np.linspace(-2, 2, rows)[:, None]
    return x, np.stack([np.sin(2 * x[:, 0]), 100 + 10 * x[:, 0]], axis=1)


def wave_regressor(**options) -> ANODERegressor:
    return ANODERegressor(**{**QUICK, "lr": 0.02, "epochs": 40, **options}).fit(*wave())


EACH = {"classifier": (iris_classifier, IRIS.data), "regressor": (wave_regressor, wave()[0])}
each_kind = pytest.mark.parametrize("kind", EACH)


# What is learned


def test_classes_are_learned():
    model = iris_classifier(epochs=40)
    assert model.score(IRIS.data, IRIS.target) > 0.95
    assert np.allclose(model.predict_proba(IRIS.data).sum(1), 1)
    assert np.allclose(np.log(model.predict_proba(IRIS.data)), model.predict_log_proba(IRIS.data))


def test_several_targets_of_any_scale_are_learned():
    x, y = wave()
    model = wave_regressor()
    assert model.predict(x).shape == y.shape
    assert model.score(x, y) > 0.95


def test_sparse_targets_are_taken():
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = ANODERegressor(epochs=1, random_state=0)
    np.testing.assert_array_equal(model.fit(X, csr_matrix(X)).predict(X), model.fit(X, X).predict(X))


def test_one_target_in_a_column_stays_a_column():
    x, y = wave()
    assert ANODERegressor(**QUICK).fit(x, y[:, :1]).predict(x).shape == (120, 1)
    assert ANODERegressor(**QUICK).fit(x, y[:, 0]).predict(x).shape == (120,)


def test_an_augmented_flow_separates_circles_which_a_plain_one_does_not():
    X, y = make_circles(300, factor=0.4, noise=0.05, random_state=0)
    augmented, plain = (ANODEClassifier(augment=p, epochs=40, lr=5e-3, random_state=0).fit(X, y) for p in (5, 0))
    assert augmented.score(X, y) > 0.98
    assert augmented.history_.loss[-5:].mean() < plain.history_.loss[-5:].mean()


def test_texts_can_be_classes():
    names = IRIS.target_names[IRIS.target]
    model = ANODEClassifier(**QUICK).fit(IRIS.data, names)
    assert model.classes_.tolist() == sorted(IRIS.target_names)
    assert set(model.predict(IRIS.data)) <= set(names)


@pytest.mark.slow
def test_images_are_taken_as_rows():
    X, y = load_digits(return_X_y=True)
    X, y = X[:600].astype(np.float32), y[:600]
    model = ANODEClassifier(image=(1, 8, 8), filters=8, epochs=6, random_state=0).fit(X[:500], y[:500])
    assert isinstance(model.model_, anode.ImageNeuralODE)
    assert model.score(X[500:], y[500:]) > 0.7
    assert model.transform(X[:3]).shape == (3, 6 * 64)
    assert len(model.get_feature_names_out()) == 6 * 64


def test_what_happened_can_be_seen():
    model = iris_classifier()
    assert (model.n_iter_, len(model.history_)) == (15, 15 * 5)
    assert model.n_function_evaluations_ == model.history_.nfe[-5:].mean() >= 14


# Rows


@each_kind
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_precision_is_that_of_the_rows(kind, dtype):
    build, rows = EACH[kind]
    model = clone(build(epochs=1)).fit(rows.astype(dtype), IRIS.target if kind == "classifier" else wave()[1])
    assert next(model.model_.parameters()).dtype == getattr(torch, np.dtype(dtype).name)
    assert model.transform(rows).dtype == dtype


@each_kind
def test_a_prediction_does_not_depend_on_other_rows(kind):
    build, rows = EACH[kind]
    model = build()
    far = np.concatenate([rows, 50 * rows])
    assert np.allclose(model.predict(far)[: len(rows)], model.predict(rows), rtol=1e-9)
    assert np.allclose(model.transform(far)[: len(rows)], model.transform(rows), rtol=1e-9, atol=1e-12)
    assert np.allclose(model.transform(rows[3:4]), model.transform(rows)[3:4], rtol=1e-9, atol=1e-12)


def test_scales_do_not_matter():
    a = ANODEClassifier(**QUICK).fit(IRIS.data, IRIS.target)
    b = ANODEClassifier(**QUICK).fit(IRIS.data * 1000 - 77, IRIS.target)
    assert np.allclose(a.predict_proba(IRIS.data), b.predict_proba(IRIS.data * 1000 - 77), rtol=1e-4, atol=1e-6)


def test_rows_can_be_left_as_they_are():
    model = ANODEClassifier(**QUICK, scale=False).fit(IRIS.data, IRIS.target)
    assert (model.offset_ == 0).all()
    assert (model.scale_ == 1).all()


def test_pandas_comes_in_and_goes_out():
    frame = load_iris(as_frame=True)
    model = ANODEClassifier(**QUICK).fit(frame.data, frame.target).set_output(transform="pandas")
    assert model.feature_names_in_.tolist() == list(frame.data.columns)
    features = model.transform(frame.data)
    assert isinstance(features, pd.DataFrame)
    assert features.columns.tolist() == [f"anodeclassifier{i}" for i in range(9)]
    assert model.get_feature_names_out().tolist() == features.columns.tolist()


# Weights


def test_a_class_can_count_more():
    X, y = make_moons(200, noise=0.4, random_state=0)
    shares = [
        (ANODEClassifier(**QUICK, class_weight=weights).fit(X, y).predict(X) == 1).mean()
        for weights in ({0: 10, 1: 1}, None, {0: 1, 1: 10})
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.4 < 0.6 < shares[2]


def test_classes_can_be_balanced():
    X, y = make_moons(400, noise=0.4, random_state=0)
    rare = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:20]])
    plain, balanced = (ANODEClassifier(**QUICK, class_weight=w).fit(X[rare], y[rare]) for w in (None, "balanced"))
    assert (balanced.predict(X)[y == 1] == 1).mean() > (plain.predict(X)[y == 1] == 1).mean() + 0.1


def test_rows_without_weight_do_not_count():
    x, y = wave()
    wrong = np.concatenate([y, -y])
    weights = np.repeat([1.0, 0.0], len(x))
    model = ANODERegressor(**{**QUICK, "epochs": 40, "lr": 0.02}).fit(np.concatenate([x, x]), wrong, weights)
    assert model.score(x, y) > 0.9


# Training


def test_the_same_state_gives_the_same_bits_and_another_does_not():
    a, b, c = (iris_classifier(random_state=seed).predict_proba(IRIS.data) for seed in (3, 3, 4))
    assert np.array_equal(a, b)
    assert not np.allclose(a, c)


def test_a_random_state_goes_on_and_torch_is_left_alone():
    state = np.random.RandomState(0)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b = (iris_classifier(random_state=state).predict_proba(IRIS.data) for _ in range(2))
    assert not np.allclose(a, b)
    assert torch.equal(torch.rand(3), expected)


@each_kind
def test_training_can_go_on(kind):
    build, rows = EACH[kind]
    target = IRIS.target if kind == "classifier" else wave()[1]
    model = build(epochs=3, warm_start=True)
    first, last = model.history_.loss[0], model.history_.loss[-3:].mean()
    model.fit(rows, target)
    assert model.history_.loss[0] < first
    assert model.history_.loss[-3:].mean() < last
    model.set_params(warm_start=False).fit(rows, target)
    assert model.history_.loss[0] == first


def test_what_does_not_go_on_is_named():
    model = iris_classifier(warm_start=True)
    with pytest.raises(ValueError, match=r"y: takes the classes of the first fit, .*: \[0, 1, 2\], got \[0, 1, 2, 9\]"):
        model.fit(IRIS.data, np.where(np.arange(150) == 0, 9, IRIS.target))
    model = wave_regressor(warm_start=True)
    with pytest.raises(ValueError, match=r"y: takes 2 targets, as in the first fit, .*got '1 targets'"):
        model.fit(wave()[0], wave()[1][:, 0])


@each_kind
def test_training_ends_when_it_no_longer_helps(kind):
    build, rows = EACH[kind]
    model = build(early_stopping=True, epochs=500, patience=3, validation_fraction=0.3, lr=0.05)
    assert model.n_iter_ < 500
    assert "the validation loss has not improved for 3 validations" in model.history_.stopped
    assert len(model.history_.validation) == model.n_iter_
    assert model.predict(rows).shape[0] == len(rows)


def test_rare_classes_are_held_out_as_they_come():
    labels = np.where(np.arange(150) == 0, 7, IRIS.target)
    model = ANODEClassifier(**QUICK, early_stopping=True).fit(IRIS.data, labels)
    assert model.classes_.tolist() == [0, 1, 2, 7]


def test_a_failed_solve_is_a_warning_and_leaves_a_model():
    with pytest.warns(ConvergenceWarning, match=r"training ended in iteration \d+: .*try a lower lr"):
        model = iris_classifier(lr=1e4, solver=Solver(atol=1e-3, max_steps=30))
    assert model.history_.failures


def test_an_interruption_is_a_warning_and_leaves_a_model(monkeypatch):
    def interrupted(loop, between, pressed):
        raise KeyboardInterrupt

    monkeypatch.setattr("anode.train.training.Training.loop", interrupted)
    with pytest.warns(UserWarning, match="training was interrupted"):
        model = iris_classifier()
    assert model.predict(IRIS.data).shape == (150,)


def test_a_row_that_cannot_be_solved_is_an_error_that_says_so():
    model = iris_classifier(solver=Solver(atol=1e-3, max_steps=3), activation="relu")
    with pytest.raises(anode.SolveError, match=r"MAX_STEPS|steps"):
        model.predict(1e12 * IRIS.data)


def test_no_epochs_are_no_error():
    model = iris_classifier(epochs=0)
    assert (model.n_iter_, model.n_function_evaluations_) == (0, 0)
    assert model.predict(IRIS.data).shape == (150,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"augment": -1}, "augment: takes a whole number from 0, got -1"),
        ({"augment": "all"}, "augment: takes"),
        ({"hidden": 0}, "hidden: takes"),
        ({"image": (1, 8, 8), "hidden": 32}, r"image: takes three numbers, .*product is 4, .*got \(1, 8, 8\)"),
        ({"image": (1, 4), "hidden": 32}, "image: takes three numbers"),
        ({"image": (-1, -2, 2), "hidden": 32}, "image: takes three numbers"),
        ({"image": 4, "hidden": 32}, "image: takes three numbers"),
        ({"activation": "relo"}, "activation: takes .*did you mean 'relu'"),
        ({"solver": "dopri"}, "solver: takes an anode.Solver"),
        ({"lr": -1.0}, "lr: takes"),
        ({"early_stopping": True, "validation_fraction": 1.5}, "validation_fraction: takes a number between 0 and 1"),
        ({"early_stopping": True, "patience": 0}, "patience: takes"),
        ({"patience": 0}, "patience: takes"),
    ],
    ids=str,
)
def test_a_mistake_is_an_error_that_names_it(options, said):
    with pytest.raises(ValueError, match=said):
        iris_classifier(**options)


# Others' tools


def test_it_works_in_a_pipeline_and_a_grid():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ANODEClassifier(**QUICK)), {"anodeclassifier__augment": [0, 2]}, cv=2
    ).fit(IRIS.data, IRIS.target)
    assert search.best_score_ > 0.7
    assert search.best_params_["anodeclassifier__augment"] in (0, 2)


def test_its_features_serve_another_estimator():
    pipe = make_pipeline(ANODEClassifier(**QUICK), LogisticRegression()).fit(IRIS.data, IRIS.target)
    assert pipe.score(IRIS.data, IRIS.target) > 0.9


def test_it_votes():
    vote = VotingClassifier(
        [("ode", ANODEClassifier(**QUICK)), ("linear", LogisticRegression(max_iter=500))], voting="soft"
    ).fit(IRIS.data, IRIS.target)
    assert vote.score(IRIS.data, IRIS.target) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_the_number_of_jobs_changes_nothing(backend):
    model = ANODEClassifier(**{**QUICK, "epochs": 4})
    alone = cross_val_score(model, IRIS.data, IRIS.target, cv=2)
    with joblib.parallel_backend(backend):
        assert np.allclose(cross_val_score(model, IRIS.data, IRIS.target, cv=2, n_jobs=2), alone, atol=1e-3)


@each_kind
def test_a_clone_is_not_fitted(kind):
    model = EACH[kind][0](hidden=9)
    copied = clone(model)
    assert copied.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(EACH[kind][1])


# Keeping


def by_skops(model, folder):
    skops.io.dump(model, folder / "model.skops")
    types = skops.io.get_untrusted_types(file=folder / "model.skops")
    assert all(name.startswith("anode.") for name in types)
    return skops.io.load(folder / "model.skops", trusted=types)


@each_kind
@pytest.mark.parametrize("keep", [by_pickle, by_joblib, by_skops, by_ourselves, by_copying])
def test_what_was_kept_is_the_same(kind, keep, tmp_path):
    build, rows = EACH[kind]
    model = build()
    again = keep(model, tmp_path)
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.predict(rows), model.predict(rows))
    assert np.array_equal(again.transform(rows), model.transform(rows))
    assert np.array_equal(again.history_.loss, model.history_.loss)
    assert again.n_function_evaluations_ == model.n_function_evaluations_


@pytest.mark.parametrize("labels", [IRIS.target_names[IRIS.target], IRIS.target > 0, IRIS.target.astype(float)])
def test_classes_of_any_kind_are_kept(labels, tmp_path):
    frame = load_iris(as_frame=True).data
    options = {"class_weight": dict.fromkeys(set(labels.tolist()), 1.5)}
    model = ANODEClassifier(**{**QUICK, "epochs": 1}, **options).fit(frame, labels)
    again = by_ourselves(model, tmp_path)
    assert again.classes_.dtype == model.classes_.dtype
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.class_weight == model.class_weight
    assert again.feature_names_in_.tolist() == frame.columns.tolist()


def test_an_image_classifier_is_kept(tmp_path):
    X, y = load_digits(return_X_y=True)
    model = ANODEClassifier(image=(1, 8, 8), filters=4, epochs=1, random_state=0).fit(X[:200], y[:200])
    again = by_ourselves(model, tmp_path)
    assert again.image == (1, 8, 8)
    assert np.array_equal(again.predict_proba(X[:9]), model.predict_proba(X[:9]))


def test_what_cannot_be_kept_as_text_is_named(tmp_path):
    model = iris_classifier(random_state=np.random.RandomState(0))
    with pytest.raises(TypeError, match="random_state: only numbers, text, registered modules"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_fitted_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        ANODEClassifier().save(tmp_path / "model")


def test_the_error_of_a_file_of_another_kind_names_the_function_that_loads_it(tmp_path):
    fitted = iris_classifier(epochs=1)
    fitted.save(tmp_path / "classifier")
    anode.save(fitted.model_, tmp_path / "model")
    it_is = r"it holds an ANODEClassifier; call anode\.ANODEClassifier\.load"
    with pytest.raises(DamagedFileError, match=rf"is not an ANODERegressor that can be loaded \({it_is}\)"):
        ANODERegressor.load(tmp_path / "classifier")
    with pytest.raises(DamagedFileError, match=rf"is not a model that can be loaded \({it_is}\)"):
        anode.load(tmp_path / "classifier")
    with pytest.raises(DamagedFileError, match=r"it holds a model; call anode\.load"):
        ANODEClassifier.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"anode estimator 1"', '"anode estimator 9"'),
        ('"n_iter_"', '"fit"'),
        ('"n_iter_"', '"__class__"'),
        ('"hidden": 8', '"width": 8'),
        ('"in_features": 4', '"in_features": 5'),
        ('"format"', '"was"'),
        ('"fitted": {', '"fitted": 3, "rest": {'),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, old, new):
    path = iris_classifier(epochs=1).save(tmp_path / "model")
    change(path, old, new)
    with pytest.raises(DamagedFileError, match=r"model\.json: is not an ANODEClassifier that can be loaded"):
        ANODEClassifier.load(tmp_path / "model")


# After a review


@pytest.mark.parametrize(
    "grid",
    [
        {"augment": np.arange(2)},
        {"hidden": np.array([4, 8])},
        {"time": np.array([True, False])},
        {"epochs": np.array([1, 2]), "batch_size": np.array([16])},
    ],
)
def test_grids_may_hold_numbers_of_numpy(grid):
    found = GridSearchCV(ANODEClassifier(**{**QUICK, "epochs": 1}), grid, cv=2, error_score="raise")
    assert found.fit(IRIS.data, IRIS.target).best_score_ >= 0


def test_a_fit_that_fails_leaves_the_estimator_as_it_was():
    fresh = ANODEClassifier(**QUICK, lr=-1.0)
    with pytest.raises(ValueError, match="lr"):
        fresh.fit(IRIS.data, IRIS.target)
    with pytest.raises(NotFittedError):
        fresh.predict(IRIS.data)
    model = iris_classifier()
    before = model.predict_proba(IRIS.data)
    with pytest.raises(ValueError, match="patience"):
        model.set_params(early_stopping=True, patience=0).fit(IRIS.data[:, :2], IRIS.target)
    np.testing.assert_array_equal(model.predict_proba(IRIS.data), before)


def test_going_on_takes_the_columns_and_the_shape_of_the_first_fit():
    model = iris_classifier(warm_start=True)
    with pytest.raises(ValueError, match="expecting 4 features"):
        model.fit(IRIS.data[:, :2], IRIS.target)
    with pytest.raises(ValueError, match="hidden: takes 8 as in the first fit, because warm_start is set, got 9"):
        model.set_params(hidden=9).fit(IRIS.data, IRIS.target)
    assert model.predict(IRIS.data).shape == (150,)


def test_going_on_takes_new_settings_of_the_solver():
    with pytest.warns(ConvergenceWarning, match="MAX_STEPS"):
        model = iris_classifier(warm_start=True, solver=Solver(atol=1e-3, max_steps=1))
    model.set_params(solver=None).fit(IRIS.data, IRIS.target)
    assert model.history_.failures == []
    assert model.model_.flow.solver.max_steps == 1000


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"lr": -1.0}, {"early_stopping": True, "validation_fraction": 2}])
def test_going_on_that_is_refused_leaves_the_model_as_it_was(wrong):
    model = iris_classifier(warm_start=True, solver=Solver(rtol=1e-1))
    before, settings = model.predict_proba(IRIS.data), model.model_.settings
    with pytest.raises(ValueError, match=list(wrong)[-1]):
        model.set_params(solver=Solver(rtol=1e-9), **wrong).fit(IRIS.data, IRIS.target)
    assert model.model_.settings == settings
    np.testing.assert_array_equal(model.predict_proba(IRIS.data), before)


def test_rows_that_do_not_count_are_not_held_out():
    weights = np.zeros(150)
    weights[::10] = 1
    model = ANODEClassifier(**QUICK, early_stopping=True, validation_fraction=0.2)
    assert model.fit(IRIS.data, IRIS.target, sample_weight=weights).n_iter_ > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            (
                {"class_weight": given},
                'class_weight: takes "balanced", a dictionary of numbers from 0 by class, or None',
            )
            for given in ({0: -1, 1: 1, 2: 1}, {0: "1", 1: 1, 2: 1}, [1, 1, 1], "balance")
        ),
        ({"regularisers": anode.Kinetic()}, r"regularisers: takes a sequence of .*got Kinetic\(0\.01\)"),
        ({"time": "yes"}, "time: takes True or False, got 'yes'"),
        ({"solver": {"max_steps": 0}}, "^solver: takes an anode.Solver"),
        ({"early_stopping": True, "validation_fraction": 0.999}, "validation_fraction: takes a fraction that splits"),
    ],
)
def test_mistakes_are_named_by_the_argument_they_are_in(options, said):
    with pytest.raises(ValueError, match=said):
        ANODEClassifier(**{**QUICK, **options}).fit(IRIS.data, IRIS.target)


def test_values_too_large_to_be_scaled_are_an_error_about_them():
    with pytest.raises(ValueError, match="X: takes values whose mean and variance are finite"):
        ANODEClassifier(**QUICK).fit(IRIS.data * 1e200, IRIS.target)
    with pytest.raises(ValueError, match=r"y: takes values whose mean .* are finite.*got values up to 2e\+300"):
        ANODERegressor(**QUICK).fit(IRIS.data, IRIS.target * 1e300)


def test_a_regressor_knows_its_losses():
    with pytest.raises(ValueError, match="loss: takes one of mse, huber, got 'cross_entropy'"):
        ANODERegressor(**QUICK, loss="cross_entropy").fit(IRIS.data, IRIS.target)


def test_predictions_have_the_precision_of_the_rows():
    rows = IRIS.data.astype(np.float32)
    assert ANODERegressor(**QUICK).fit(rows, IRIS.target).predict(rows).dtype == np.float32


def test_larger_batches_than_there_are_rows_are_all_rows():
    assert len(iris_classifier(batch_size=1000, epochs=2).history_) == 2


@pytest.mark.parametrize("name", ["classes_", "offset_", "scale_", "model_"])
def test_a_file_without_something_learned_is_damaged(tmp_path, name):
    path = iris_classifier().save(tmp_path / "model")
    content = read_json(path)
    del content["fitted"][name]
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError):
        ANODEClassifier.load(path)


def test_files_of_two_estimators_do_not_make_one(tmp_path):
    for name, epochs in (("one", 1), ("two", 2)):
        iris_classifier(epochs=epochs).save(tmp_path / name)
    (tmp_path / "two.safetensors").replace(tmp_path / "one.safetensors")  # as if the process had been killed in between
    with pytest.raises(DamagedFileError, match=r"one\.safetensors: .*does not belong to the \.json file"):
        ANODEClassifier.load(tmp_path / "one")


def test_a_file_with_too_many_classes_is_damaged(tmp_path):
    path = ANODEClassifier(**QUICK).fit(IRIS.data, IRIS.target_names[IRIS.target]).save(tmp_path / "model")
    content = read_json(path)
    content["fitted"]["classes_"]["texts"].append("rose")
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match="classes_ does not have 3 values"):
        ANODEClassifier.load(path)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.bool_, np.float16, np.float32])
@pytest.mark.parametrize("frame", [False, True])
def test_numbers_of_few_bits_are_computed_in_single_precision(kind, frame):
    values = np.random.default_rng(0).integers(0, 2, (40, 16)).astype(kind)
    X, y = pd.DataFrame(values) if frame else values, np.arange(40) % 2
    for model in (anode.ANODEClassifier(epochs=1, image=(1, 4, 4), filters=4), anode.ANODERegressor(epochs=1)):
        model.fit(X, y)
        assert next(model.model_.parameters()).dtype == torch.float32
        assert model.transform(X).dtype == np.float32


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
def test_numbers_of_many_bits_are_computed_in_double_precision(kind):
    X, y = np.random.default_rng(0).integers(0, 255, (40, 16)).astype(kind), np.arange(40) % 2
    model = anode.ANODEClassifier(epochs=1, image=(1, 4, 4), filters=4).fit(X, y)
    assert next(model.model_.parameters()).dtype == torch.float64


@pytest.mark.parametrize("dtype", ["S1000000000", "U100000000", "O", "M8[s]", "V1000000000"])
def test_an_array_of_something_else_than_numbers_is_refused(dtype, tmp_path):
    path = anode.ANODEClassifier(epochs=0).fit(np.eye(4), [0, 1, 0, 1]).save(tmp_path / "model")
    content = read_json(path)
    content["fitted"]["offset_"]["array"] = dtype
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match=r"model\.json: is not an ANODEClassifier that can be loaded"):
        anode.ANODEClassifier.load(path)


@pytest.mark.parametrize("where", [("fitted", "model_", "model", "members"), ("fitted", "n_features_in_", "value")])
def test_numbers_that_the_weights_do_not_have_are_refused(where, tmp_path):
    path = anode.ANODEClassifier(epochs=0).fit(np.eye(4), [0, 1, 0, 1]).save(tmp_path / "model")
    content = read_json(path)
    inner = content
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = 10**9
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match=r"model\.json: is not an ANODEClassifier that can be loaded"):
        anode.ANODEClassifier.load(path)


class Lift(anode.Augment):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(7, 3, dtype=torch.float64)

    def forward(self, x):
        return torch.cat([x, self.line(x)], dim=-1)


def test_mistakes_in_parameters_are_named():
    said = r"hiden: is not an argument of ANODEClassifier, .*lr, .*; did you mean 'hidden'"
    with pytest.raises(TypeError, match=said):
        ANODEClassifier(hiden=3)
    with pytest.raises(TypeError, match=r"rtol: is not an argument of .*; pass solver=anode\.Solver\(rtol=\.\.\.\)$"):
        ANODEClassifier(rtol=1e-5)
    with pytest.raises(ValueError, match=r"augment: does not fit x of shape \(1, 4\): mat1"):
        ANODEClassifier(augment=Lift()).fit(IRIS.data, IRIS.target)
