import numpy as np
import pytest

from anode.plots.densities import SEQUENTIAL, density, samples
from anode.plots.style import figure

XS, YS = np.linspace(-2, 2, 21), np.linspace(-1, 1, 11)
VALUES = np.exp(-np.add.outer(YS**2, XS**2))
POINTS = np.random.default_rng(0).normal(size=(50, 2))


def axes():
    return figure().axes[0]


def test_the_ground_is_nothing_and_nearly_the_largest_value_is_the_darkest():
    ax = axes()
    mesh = density(ax, XS, YS, VALUES)
    low, high = mesh.get_clim()
    assert low == 0
    assert 0.95 < high <= 1
    assert SEQUENTIAL(0.0)[:3] == (1, 1, 1)
    lightness = [sum(SEQUENTIAL(at)[:3]) for at in np.linspace(0, 1, 20)]
    assert lightness == sorted(lightness, reverse=True)
    assert (ax.get_xlim(), ax.get_ylim()) == ((-2, 2), (-1, 1))
    np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(VALUES.shape), VALUES)


def test_densities_that_are_compared_share_their_top():
    assert density(axes(), XS, YS, VALUES, top=2.5).get_clim() == (0, 2.5)


@pytest.mark.parametrize("values", [np.zeros((11, 21)), np.full((11, 21), np.nan)], ids=["zeros", "nothing"])
def test_a_density_without_values_has_a_scale_all_the_same(values):
    assert density(axes(), XS, YS, values).get_clim() == (0, 1)


def test_points_are_drawn_on_top():
    ax = axes()
    mesh = density(ax, XS, YS, VALUES, POINTS)
    (dots,) = [drawn for drawn in ax.collections if drawn is not mesh]
    np.testing.assert_allclose(dots.get_offsets(), POINTS)
    assert dots.get_zorder() > mesh.get_zorder()


def test_samples_fill_a_square_that_is_given_or_holds_them_all():
    ax = axes()
    dots = samples(ax, POINTS)
    np.testing.assert_allclose(dots.get_offsets(), POINTS)
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_xlim()[1] >= np.abs(POINTS).max()
    samples(ax, POINTS, reach=3)
    assert ax.get_xlim() == (-3, 3)
    assert samples(axes(), np.zeros((1000, 2))).get_sizes()[0] < samples(axes(), POINTS).get_sizes()[0]


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"values: takes an array of shape \[11, 21\], got \(21, 11\)"):
        density(axes(), XS, YS, VALUES.T)
    with pytest.raises(ValueError, match=r"points: takes an array of shape \[points, 2\]"):
        samples(axes(), np.zeros((3, 3)))
    with pytest.raises(ValueError, match="reach: takes a number above 0"):
        samples(axes(), POINTS, reach=-1)
