import numpy as np
import pytest
from matplotlib.colors import same_color

from anode.plots.curves import band, curves
from anode.plots.style import MODEL_COLORS, figure

X = np.arange(1, 11)
VALUES = np.random.default_rng(0).normal(5, 1, (10, 20))


def axes():
    return figure().axes[0]


def edges(shade, x):
    """The lowest and the highest corner of a filled area at x."""
    corners = np.concatenate([path.vertices for path in shade.get_paths()])
    heights = corners[np.isclose(corners[:, 0], x), 1]
    return heights.min(), heights.max()


def test_the_line_is_the_mean_and_the_band_one_standard_deviation():
    line, shade = band(axes(), X, VALUES, "NODE", "red")
    np.testing.assert_allclose(line.get_ydata(), VALUES.mean(1))
    np.testing.assert_array_equal(line.get_xdata(), X)
    for i, x in enumerate(X):
        mean, std = VALUES[i].mean(), VALUES[i].std()
        np.testing.assert_allclose(edges(shade, x), (mean - std, mean + std))
    assert line.get_label() == "NODE"
    assert same_color(line.get_color(), "red")


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_failed_repeats_are_left_out_from_where_they_failed(missing):
    values = VALUES.copy()
    values[4:, :3] = missing
    line, shade = band(axes(), X, values, "NODE", "red")
    np.testing.assert_allclose(line.get_ydata()[:4], VALUES[:4].mean(1))
    np.testing.assert_allclose(line.get_ydata()[4:], VALUES[4:, 3:].mean(1))
    kept = VALUES[7, 3:]
    np.testing.assert_allclose(edges(shade, X[7]), (kept.mean() - kept.std(), kept.mean() + kept.std()))


def test_where_all_repeats_failed_there_is_a_gap():
    values = VALUES.copy()
    values[5] = np.nan
    line, _ = band(axes(), X, values, "NODE", "red")
    assert np.flatnonzero(np.isnan(line.get_ydata())).tolist() == [5]


@pytest.mark.parametrize(("values", "lowest"), [([[0.0, 10.0, 0.0]], 0.0), ([[-1.0, 10.0, 0.0]], -1.9665)])
def test_the_band_goes_below_zero_only_if_values_do(values, lowest):
    _, shade = band(axes(), [1], values, "NODE", "red")
    assert edges(shade, 1)[0] == pytest.approx(lowest, abs=1e-3)


def test_one_repeat_is_a_line():
    line, _ = band(axes(), X, VALUES[:, 0], "NODE", "red")
    np.testing.assert_allclose(line.get_ydata(), VALUES[:, 0])


def test_models_have_their_colours_and_others_have_others():
    ax = axes()
    curves(ax, X, {"ANODE": VALUES, "p = 1": VALUES, "NODE": VALUES, "p = 2": VALUES}, {"p = 2": "#000000"}, "loss")
    drawn = {line.get_label(): line.get_color() for line in ax.lines}
    assert drawn["NODE"] == MODEL_COLORS["NODE"]
    assert drawn["ANODE"] == MODEL_COLORS["ANODE"]
    assert drawn["p = 2"] == "#000000"
    assert len(set(drawn.values())) == 4
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ANODE", "p = 1", "NODE", "p = 2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "loss")


def test_there_are_colours_for_any_number_of_curves():
    ax = axes()
    curves(ax, X, {str(i): VALUES for i in range(40)})
    assert len(ax.lines) == 40


def test_a_single_curve_needs_no_legend():
    ax = axes()
    curves(ax, X, {"NODE": VALUES})
    assert ax.get_legend() is None


def test_a_logarithmic_axis_ends_near_the_lowest_mean():
    ax = axes()
    curves(ax, [1, 2], {"NODE": [[1.0, 1.0], [1e-12, 0.2]]}, log=True)
    assert ax.get_yscale() == "log"
    assert ax.get_ylim()[0] == pytest.approx(0.05)


def test_a_logarithmic_axis_without_anything_above_zero_is_still_drawn():
    made = figure()
    curves(made.axes[0], [1, 2], {"NODE": [[0.0], [np.nan]]}, log=True)
    made.draw_without_rendering()


def test_wrong_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"values: takes an array of shape \[10, repeats\], got \(9, 20\)"):
        band(axes(), X, VALUES[1:], "NODE", "red")
    with pytest.raises(ValueError, match="values:"):
        band(axes(), X, VALUES[None], "NODE", "red")
    with pytest.raises(ValueError, match="x:"):
        band(axes(), VALUES, VALUES, "NODE", "red")
    with pytest.raises(ValueError, match="series:"):
        curves(axes(), X, {})
