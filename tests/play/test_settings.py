import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anode.play.settings import DATA, OWN, POINTS, Settings, dataset

POINT = st.tuples(st.floats(-10, 10), st.floats(-10, 10), st.sampled_from([0, 1])).map(list)


@pytest.mark.parametrize("name", DATA)
def test_every_dataset_fits_into_the_plane_and_has_both_classes(name):
    data = dataset(Settings(data=name), None)
    assert len(data) <= POINTS
    assert data.x.abs().max() < 2
    assert data.labels.unique().tolist() == [0, 1]


@given(st.lists(POINT, min_size=2, max_size=50))
def test_points_of_a_page_become_a_dataset_if_they_are_of_both_classes(points):
    if len({label for *_, label in points}) < 2:
        with pytest.raises(ValueError, match=r"^points: takes points of both classes"):
            dataset(Settings(data=OWN), points)
        return
    data = dataset(Settings(data=OWN), points)
    torch.testing.assert_close(data.x, torch.tensor([point[:2] for point in points]))
    assert data.labels.tolist() == [label for *_, label in points]


@pytest.mark.parametrize(
    "points",
    [
        None,
        [],
        "points",
        [[0, 0, 0]],
        [[0, 0, 0], [1, 1]],
        [[0, 0, 0], [1, 1, 2]],
        [[0, 0, 0], [11, 1, 1]],
        [[0, 0, 0], [math.nan, 1, 1]],
        [[0, 0, 0], [True, 1, 1]],
        [[0, 0, 0], ["1", 1, 1]],
        [[0, 0, 0], [[1], 1, 1]],
        [[0, 0, i % 2] for i in range(POINTS + 1)],
    ],
    ids=repr,
)
def test_points_that_do_not_fit_are_refused(points):
    with pytest.raises(ValueError, match=r"^points: takes"):
        dataset(Settings(data=OWN), points)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"data": "../etc"}, "data"),
        ({"p": 0}, "p"),
        ({"p": 6}, "p"),
        ({"p": 1.5}, "p"),
        ({"width": 1000}, "width"),
        ({"activation": "exp"}, "activation"),
        ({"lr": math.inf}, "lr"),
        ({"lr": "0.1"}, "lr"),
        ({"tolerance": 1e-9}, "tolerance"),
        ({"seed": -1}, "seed"),
        ({"tolerence": 1e-3}, "settings"),
        (None, "settings"),
        ([], "settings"),
    ],
    ids=repr,
)
def test_settings_that_do_not_fit_are_refused_by_name(given, named):
    with pytest.raises(ValueError, match=f"^{named}: takes"):
        Settings.of(given)


def test_only_learning_rate_and_tolerance_let_training_go_on():
    now = Settings()
    assert now.trains_like(Settings(lr=0.1, tolerance=1e-5))
    for change in ({"data": "moons"}, {"p": 2}, {"width": 16}, {"activation": "tanh"}, {"seed": 1}):
        assert not now.trains_like(Settings(**change))
