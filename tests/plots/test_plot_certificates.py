import pytest

from anode import plots
from anode.plots.certificates import certificate

ERRORS = {"forward and back": [0.05, 2.0, 9.0], "against a tighter solve": [0.04, 1.0, 3.0]}


def test_the_legend_is_beside_the_axes_so_that_it_hides_no_point():
    made = certificate([1e-2, 1e-3, 1e-4], ERRORS, [14, 20, 26], bound=0.01)
    assert [text.get_text() for text in made.legends[0].get_texts()] == [*ERRORS, "bound, 1 %"]
    assert [ax.get_legend() for ax in made.axes] == [None, None]


def test_on_axes_of_others_the_legend_is_on_them():
    ax = plots.figure().axes[0]
    made = certificate([1e-2, 1e-3, 1e-4], ERRORS, [14, 20, 26], bound=0.01, ax=ax)
    assert (made.legends, len(ax.get_legend().get_texts())) == ([], 3)


@pytest.mark.parametrize("nfe", [[14, 14, 14], [1, 2, 2], [200, 3000, 40000]])
def test_numbers_of_evaluations_are_whole(nfe):
    right = certificate([1e-2, 1e-3, 1e-4], ERRORS, nfe, bound=0.01).axes[1]
    assert all(tick == round(tick) for tick in right.get_yticks())


def test_dots_of_the_numbers_of_evaluations_are_not_cut_off():
    right = certificate([1e-2, 1e-3, 1e-4], ERRORS, [14, 20, 20], bound=0.01).axes[1]
    bottom, top = right.get_ylim()
    assert (bottom, top > 21) == (0, True)
