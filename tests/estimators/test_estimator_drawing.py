import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from matplotlib.figure import Figure
from sklearn.datasets import load_digits, load_iris, make_circles
from sklearn.exceptions import NotFittedError

from anode import ANODEClassifier, ANODERegressor
from anode.plots.style import CLASS_COLORS

CIRCLES = make_circles(60, factor=0.4, random_state=0)
IRIS = load_iris()
QUICK = {"epochs": 1, "random_state": 0}


def names_in(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def paths_in(ax) -> np.ndarray:
    """The paths that were drawn, [rows, times, 2]."""
    return np.stack([path.vertices for path in ax.collections[0].get_paths()])


def test_a_flow_of_two_classes_is_drawn_in_their_colours():
    ax = ANODEClassifier(**QUICK).fit(*CIRCLES).plot_flow(*CIRCLES)
    assert paths_in(ax).shape == (60, 40, 2)
    assert names_in(ax) == ["0", "1"]
    colors = ax.collections[0].get_colors()
    assert len({tuple(color) for color in colors[CIRCLES[1] == 0]}) == 1
    assert len({tuple(color) for color in colors}) == len(CLASS_COLORS[:2])


def test_the_plane_is_that_of_the_principal_components():
    model = ANODEClassifier(**QUICK).fit(*CIRCLES)
    paths = paths_in(model.plot_flow(*CIRCLES))
    variance = np.cov(paths.reshape(-1, 2), rowvar=False)
    assert abs(variance[0, 1]) < 1e-8 * variance[0, 0]
    features = model.transform(CIRCLES[0])
    assert np.linalg.norm(paths[:, -1].std(0)) < np.linalg.norm(features.std(0)) * 1.01
    assert variance[0, 0] >= variance[1, 1]


@pytest.mark.parametrize("labels", [IRIS.target, IRIS.target_names[IRIS.target]])
def test_any_number_of_classes_is_drawn_and_named(labels):
    ax = ANODEClassifier(**QUICK).fit(IRIS.data, labels).plot_flow(IRIS.data, labels)
    assert names_in(ax) == [str(each) for each in np.unique(labels)]
    assert len({tuple(color) for color in ax.collections[0].get_colors()}) == 3


def test_a_legend_names_at_most_ten_classes():
    labels = np.arange(60) % 30
    ax = ANODEClassifier(**QUICK).fit(CIRCLES[0], labels).plot_flow(CIRCLES[0], labels)
    assert names_in(ax) == ["0", "3", "6", "10", "13", "16", "19", "23", "26", "29"]
    assert len({tuple(color) for color in ax.collections[0].get_colors()}) == 30


@pytest.mark.parametrize("targets", [IRIS.data[:, 0], IRIS.data[:, :2]], ids=["one", "two"])
def test_a_regression_is_drawn_in_the_colours_of_its_first_target(targets):
    ax = ANODERegressor(**QUICK).fit(IRIS.data, targets).plot_flow(IRIS.data, targets)
    bar = ax.figure.axes[1]
    assert bar.get_ylabel() == "target"
    assert bar.get_ylim() == pytest.approx((IRIS.data[:, 0].min(), IRIS.data[:, 0].max()))


def test_a_flow_on_the_line_is_drawn_against_time():
    x = np.linspace(-1, 1, 20)[:, None]
    ax = ANODERegressor(**QUICK, augment=0).fit(x, x[:, 0]).plot_flow(x, x[:, 0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$t$", "$h(t)$")
    paths = paths_in(ax)
    assert np.allclose(paths[:, :, 0], np.linspace(0, 1, 40))
    assert np.allclose(paths[:, 0, 1], (x[:, 0] - x.mean()) / x.std())


def test_images_are_drawn_too():
    X, y = load_digits(n_class=3, return_X_y=True)
    model = ANODEClassifier(**QUICK, image=(1, 8, 8), filters=2).fit(X[:40], y[:40])
    assert paths_in(model.plot_flow(X[:40], y[:40])).shape == (40, 40, 2)


def test_of_many_rows_some_are_drawn_always_the_same():
    X, y = make_circles(1000, factor=0.4, random_state=0)
    model = ANODEClassifier(**QUICK).fit(X, y)
    first, second = (paths_in(model.plot_flow(X, y)) for _ in range(2))
    assert first.shape == (300, 40, 2)
    assert np.array_equal(first, second)


def test_a_flow_is_drawn_on_given_axes():
    ax = Figure().add_subplot()
    assert ANODEClassifier(**QUICK).fit(*CIRCLES).plot_flow(*CIRCLES, ax=ax) is ax


def test_sparse_rows_and_frames_are_drawn():
    frame = pd.DataFrame(CIRCLES[0], columns=["a", "b"])
    model = ANODEClassifier(**QUICK).fit(frame, CIRCLES[1])
    drawn = paths_in(model.plot_flow(frame, CIRCLES[1]))
    sparse = scipy.sparse.csr_array(CIRCLES[0])
    again = ANODEClassifier(**QUICK).fit(sparse, CIRCLES[1]).plot_flow(sparse, CIRCLES[1])
    assert np.allclose(paths_in(again), drawn)


def test_a_class_that_was_not_learned_is_refused():
    model = ANODEClassifier(**QUICK).fit(*CIRCLES)
    with pytest.raises(ValueError, match=r"y: takes the classes of the fit: \[0, 1\], got \[1, 2\]"):
        model.plot_flow(CIRCLES[0], CIRCLES[1] + 1)


def test_what_is_not_fitted_is_not_drawn():
    with pytest.raises(NotFittedError):
        ANODEClassifier().plot_flow(*CIRCLES)


def test_nothing_but_a_picture_needs_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib" or "anode.plots" in name]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "anode.estimators.drawing", raising=False)
    model = ANODEClassifier(**QUICK).fit(*CIRCLES)
    assert model.predict(CIRCLES[0]).shape == (60,)
    with pytest.raises(ImportError, match="matplotlib"):
        model.plot_flow(*CIRCLES)
