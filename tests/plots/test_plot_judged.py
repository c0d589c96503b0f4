import numpy as np
import pytest

from anode import plots
from anode.plots.judged import against, confusion


@pytest.fixture
def ax():
    return plots.figure().axes[0]


def test_a_confusion_matrix_has_names_and_counts(ax):
    confusion(ax, [[5, 1], [0, 7]], ["cat", "a very long name of a class"])
    assert sorted(text.get_text() for text in ax.texts) == ["0", "1", "5", "7"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cat", "a very long…"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[5 / 6, 1 / 6], [0, 1]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted", "true")


def test_of_more_than_a_few_classes_zeros_are_left_out(ax):
    confusion(ax, 3 * np.eye(6), list("abcdef"))
    assert [text.get_text() for text in ax.texts] == ["3"] * 6


def test_of_many_classes_only_the_shades_are_drawn(ax):
    confusion(ax, np.eye(30), [str(i) for i in range(30)])
    assert not ax.texts


def test_a_class_without_points_has_no_share(ax):
    confusion(ax, [[0, 0], [1, 1]], ["a", "b"])
    np.testing.assert_allclose(ax.images[0].get_array()[0], 0)


def test_counts_that_do_not_fit_the_names_are_refused(ax):
    with pytest.raises(ValueError, match=r"counts: takes an array of shape \[3, 3\]"):
        confusion(ax, [[1, 0], [0, 1]], ["a", "b", "c"])


def test_numbers_are_drawn_against_each_other_with_the_line_where_they_agree(ax):
    against(ax, [1.0, 2.0, 4.0], [1.5, 2.0, 3.0], "price")
    np.testing.assert_allclose(ax.collections[0].get_offsets(), [[1, 1.5], [2, 2], [4, 3]])
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[1, 1], [4, 4]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("true price", "predicted price")
