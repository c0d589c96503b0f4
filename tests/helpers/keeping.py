"""Ways to keep a fitted estimator and to get it back."""

import copy
import pickle
from io import BytesIO

import joblib


def by_pickle(model, folder):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model, folder):
    file = BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def by_ourselves(model, folder):
    assert model.save(folder / "model") == folder / "model.json"
    return type(model).load(folder / "model")


def by_copying(model, folder):
    return copy.deepcopy(model)
