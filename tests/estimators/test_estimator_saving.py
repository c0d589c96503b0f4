import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import skops.io
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import anode
from anode import ANODEClassifier, ANODERegressor
from anode.files import DamagedFileError
from anode.storage import read_json
from helpers.editing import change
from helpers.keeping import by_copying, by_joblib, by_ourselves, by_pickle
from helpers.own_parts import Count, Lift, Private, Swirl, convolutions, halving, noisy_layers, sgd

X, Y = load_iris(return_X_y=True)
X_DIGITS, Y_DIGITS = (part[:64] for part in load_digits(return_X_y=True))
QUICK = {"epochs": 1, "random_state": 0}

FIXED = anode.Solver(method="rk4", step_size=0.5)
"""For fields with dropout, for which no step would be small enough."""
PARTS = {
    "class": {"field": Swirl},
    "function": {"field": noisy_layers, "solver": FIXED},
    "partial": {"field": partial(Swirl, speed=0.5)},
    "field of anode": {"field": anode.MLPField},
    "augmentation": {"augment": Lift(4, 3)},
    "both": {"field": Swirl, "augment": Lift(4, 2)},
    "training": {"optimizer": "adamw", "clip": 1.0, "device": "cpu"},
}
each_part = pytest.mark.parametrize("options", PARTS.values(), ids=PARTS)


def classifier(**options) -> ANODEClassifier:
    return ANODEClassifier(**{**QUICK, **options}).fit(X, Y)


def by_skops(model, folder):
    skops.io.dump(model, folder / "model.skops")
    types = skops.io.get_untrusted_types(file=folder / "model.skops")
    return skops.io.load(folder / "model.skops", trusted=types)


WAYS = [by_pickle, by_joblib, by_skops, by_ourselves, by_copying]
each_way = pytest.mark.parametrize("keep", WAYS)


@each_way
@each_part
def test_parts_of_ones_own_are_kept(options, keep, tmp_path):
    model = classifier(**options)
    again = keep(model, tmp_path)
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.transform(X), model.transform(X))
    refitted = [each.fit(X, Y).predict_proba(X) for each in (again, model)]
    assert np.array_equal(*refitted)


@each_way
def test_images_with_a_field_of_ones_own_are_kept(keep, tmp_path):
    model = ANODEClassifier(image=(1, 8, 8), field=convolutions, augment=2, **QUICK).fit(X_DIGITS, Y_DIGITS)
    again = keep(model, tmp_path)
    assert np.array_equal(again.predict_proba(X_DIGITS), model.predict_proba(X_DIGITS))


@each_way
def test_what_was_kept_can_be_kept_again(keep, tmp_path):
    model = classifier(field=noisy_layers, augment=Lift(4, 2), solver=FIXED)
    again = keep(keep(model, tmp_path), tmp_path)
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_a_field_is_saved_by_its_name(tmp_path):
    path = classifier(field=partial(Swirl, speed=0.5)).save(tmp_path / "model")
    assert read_json(path)["parameters"]["field"] == {"builder": "Swirl", "settings": {"speed": 0.5}}
    found = ANODEClassifier.load(path).field
    assert (found.func, found.keywords) == (Swirl, {"speed": 0.5})


def test_a_field_that_is_not_registered_when_it_is_loaded_is_named(tmp_path):
    path = classifier(field=Swirl).save(tmp_path / "model")
    change(path, '"Swirl"', '"Swirll"')
    with pytest.raises(DamagedFileError, match=r"'Swirll' is not registered; .*did you mean 'Swirl'"):
        ANODEClassifier.load(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"field": Private},
            r"field: cannot describe .*Private.*; decorate the class or function with @anode\.register",
        ),
        ({"field": lambda size: Swirl(size)}, "field: cannot describe .*lambda.*; decorate the class or function"),
        ({"augment": type("Mine", (Lift,), {})(4, 2)}, "cannot describe how to build a Mine; decorate the class"),
    ],
    ids=["class", "lambda", "augmentation"],
)
def test_a_part_that_cannot_be_described_is_refused_with_a_way_out(options, said, tmp_path):
    with pytest.raises(TypeError, match=said):
        classifier(**options).save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_only_training_needs_is_left_out_with_a_warning(tmp_path):
    model = classifier(optimizer=sgd, scheduler=halving, callbacks=[Count()])
    with pytest.warns(UserWarning, match=r"^callbacks, optimizer, scheduler: not saved, .*set them again") as caught:
        path = model.save(tmp_path / "model")
    assert caught[0].filename == __file__
    again = ANODEClassifier.load(path)
    assert (again.optimizer, again.scheduler, again.callbacks) == ("adam", None, ())
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_what_can_be_written_is_saved_without_a_warning(tmp_path):
    again = by_ourselves(classifier(optimizer="sgd", callbacks=[]), tmp_path)
    assert (again.optimizer, again.callbacks) == ("sgd", [])


@pytest.mark.parametrize("keep", [by_pickle, by_joblib, by_copying])
def test_pickles_keep_what_only_training_needs(keep, tmp_path):
    model = classifier(optimizer=sgd, scheduler=halving, callbacks=[Count()], field=Private)
    again = keep(model, tmp_path)
    assert (again.optimizer, again.scheduler) == (sgd, halving)
    assert again.callbacks[0].seen == 5
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("keep", [by_pickle, by_skops, by_copying])
def test_an_estimator_that_is_not_fitted_keeps_its_parts(keep, tmp_path):
    lift = Lift(4, 2)
    again = keep(ANODERegressor(augment=lift, field=Swirl, solver=anode.Solver(rtol=1e-4)), tmp_path)
    assert torch.equal(again.augment.lift.weight, lift.lift.weight)
    assert (again.field, again.solver) == (Swirl, anode.Solver(rtol=1e-4))


@pytest.mark.parametrize("columns", [5, 63, 10**9])
def test_columns_that_the_model_does_not_take_are_refused(columns, tmp_path):
    model = ANODEClassifier(image=(1, 8, 8), field=convolutions, augment=2, **QUICK).fit(X_DIGITS, Y_DIGITS)
    path = model.save(tmp_path / "model")
    content = read_json(path)
    content["fitted"]["n_features_in_"]["value"] = columns
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match=rf"its offset_ does not have {columns} values"):
        ANODEClassifier.load(path)


def test_a_model_of_another_size_than_the_columns_is_refused(tmp_path):
    wide, narrow = classifier(field=Swirl), ANODEClassifier(**QUICK, field=Swirl).fit(X[:, :3], Y)
    wide.model_ = narrow.model_
    with pytest.raises(DamagedFileError, match="its n_features_in_ is 4, which its model does not take"):
        by_ourselves(wide, tmp_path)


# scikit-learn's tools


def test_a_clone_has_the_same_parts_and_is_not_fitted():
    model = classifier(field=Swirl, augment=Lift(4, 2), optimizer=sgd, callbacks=(Count(),))
    copied = clone(model)
    assert (copied.field, copied.optimizer) == (Swirl, sgd)
    assert torch.equal(copied.augment.lift.weight, model.augment.lift.weight)
    assert not hasattr(copied, "model_")


def test_fields_optimizers_and_clips_are_searched_in_a_pipeline():
    pipe = make_pipeline(StandardScaler(), ANODEClassifier(**QUICK, batch_size=75))
    grid = {
        "anodeclassifier__field": [None, Swirl],
        "anodeclassifier__optimizer": ["adam", "sgd"],
        "anodeclassifier__clip": [1.0],
    }
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(X, Y)
    assert len(search.cv_results_["params"]) == 4
    assert search.predict(X).shape == (150,)


def test_a_pipeline_passes_a_validation_set_on():
    pipe = make_pipeline(StandardScaler(), ANODEClassifier(**QUICK))
    pipe.fit(X, Y, anodeclassifier__validation=(X, Y))
    assert pipe[-1].history_.validation.shape == (1,)


def test_other_processes_send_fitted_fields_back():
    for field in (Swirl, noisy_layers, Private):
        model = ANODEClassifier(**QUICK, field=field, solver=FIXED)
        found, alone = (cross_validate(model, X, Y, cv=2, n_jobs=n, return_estimator=True) for n in (2, None))
        for a, b in zip(found["estimator"], alone["estimator"], strict=True):
            assert type(a.model_.flow.field) is type(field(9))
            assert np.allclose(a.predict_proba(X), b.predict_proba(X), atol=1e-6)


NOTEBOOK = """
import anode, torch
from sklearn.datasets import make_blobs
from sklearn.model_selection import cross_val_score

@anode.register
class Line(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.map = torch.nn.Linear(size, size)
    def forward(self, t, h):
        return self.map(h)

if __name__ == "__main__":
    X, y = make_blobs(40, random_state=0)
    model = anode.ANODEClassifier(field=Line, epochs=1, random_state=0).fit(X, y)
    print(len(cross_val_score(model, X, y, cv=2, n_jobs=2)))
"""


def test_a_fitted_estimator_with_a_field_of_a_script_goes_to_other_processes(tmp_path):
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run([sys.executable, tmp_path / "notebook.py"], capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr
