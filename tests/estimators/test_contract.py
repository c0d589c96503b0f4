"""scikit-learn's own checks."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import anode

REASON = (
    "rows are seen in batches, whose order and step size depend on how many rows there are; scikit-learn allows that "
    "of its own estimators with stochastic gradients as well"
)
ALLOWED = {f"check_sample_weight_equivalence_on_{kind}_data": REASON for kind in ("dense", "sparse")}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@parametrize_with_checks(
    [
        anode.ANODEClassifier(epochs=30),
        anode.ANODERegressor(epochs=30),
        anode.ANODEDensity(hidden=8, layers=1, epochs=3),
    ],
    expected_failed_checks=lambda _: ALLOWED,
)
def test_an_estimator_does_what_scikit_learn_asks_of_it(estimator, check):
    check(estimator)
