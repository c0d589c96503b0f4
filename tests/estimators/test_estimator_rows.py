import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_digits

import anode
from anode import ANODEClassifier, ANODERegressor
from anode.estimators import trained

RNG = np.random.default_rng(0)
X = np.where(RNG.random((60, 12)) < 0.3, RNG.random((60, 12)), 0.0)
Y = (X.sum(1) > np.median(X.sum(1))).astype(int)
QUICK = {"epochs": 2, "hidden": 8, "random_state": 0}

KINDS = [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix, scipy.sparse.csr_array]
each_sparse_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


# Sparse rows


@each_sparse_kind
def test_sparse_rows_give_what_dense_ones_give(kind):
    dense, sparse = ANODEClassifier(**QUICK).fit(X, Y), ANODEClassifier(**QUICK).fit(kind(X), Y)
    assert np.array_equal(sparse.predict_proba(kind(X)), dense.predict_proba(X))
    assert np.array_equal(sparse.transform(kind(X)), dense.transform(X))


def test_sparse_rows_are_regressed_weighted_and_validated():
    sparse, weights = scipy.sparse.csr_array(X), np.arange(60.0)
    a = ANODERegressor(**QUICK).fit(sparse[:40], X.sum(1)[:40], weights[:40], (sparse[40:], X.sum(1)[40:]))
    b = ANODERegressor(**QUICK).fit(X[:40], X.sum(1)[:40], weights[:40], (X[40:], X.sum(1)[40:]))
    assert np.array_equal(a.predict(sparse), b.predict(X))
    assert np.array_equal(a.history_.validation, b.history_.validation)


@each_sparse_kind
def test_sparse_rows_are_computed_in_their_precision(kind):
    for dtype, computed in ((np.float32, torch.float32), (np.float64, torch.float64), (np.uint8, torch.float32)):
        model = ANODEClassifier(**QUICK).fit(kind(X.round().astype(dtype)), Y)
        assert model.model_.head.weight.dtype == computed


def test_sparse_rows_are_made_dense_some_at_a_time_where_they_are_used(monkeypatch):
    model, sizes = ANODEClassifier(**QUICK).fit(X, Y), []
    whole = model.predict_proba(X)

    def dense(part):
        sizes.append(part.shape[0])
        return part.toarray()

    monkeypatch.setattr(trained, "ROWS_AT_ONCE", 25)
    monkeypatch.setattr(trained, "dense", dense)
    assert np.allclose(model.predict_proba(scipy.sparse.csr_array(X)), whole, rtol=1e-12)
    assert sizes == [25, 25, 10]


# Images of bytes


class Dtypes(anode.Callback):
    """Looks at what the model computes with in training."""

    def __init__(self):
        self.seen = set()

    def begin(self, training):
        training.model.flow.field.register_forward_hook(lambda module, given, out: self.seen.add(out.dtype))


def test_images_of_bytes_are_trained_and_used_in_single_precision():
    images, labels = load_digits(return_X_y=True)
    images, labels = (images[:64] * 15).astype(np.uint8), labels[:64]
    dtypes = Dtypes()
    model = ANODEClassifier(image=(1, 8, 8), filters=4, epochs=1, random_state=0, callbacks=[dtypes])
    model.fit(images, labels, validation=(images, labels))
    assert dtypes.seen == {torch.float32}
    assert model.predict_proba(images).dtype == model.transform(images).dtype == np.float32
    as_floats = ANODEClassifier(image=(1, 8, 8), filters=4, epochs=1, random_state=0)
    as_floats.fit(images.astype(np.float32), labels)
    assert np.allclose(model.predict_proba(images), as_floats.predict_proba(images), atol=1e-5)
