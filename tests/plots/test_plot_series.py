import numpy as np
import pytest
from matplotlib.colors import same_color

from anode.plots.series import band, compared, curves, paths
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


@pytest.mark.parametrize(
    ("values", "lowest"),
    [([[0.0, 10.0, 0.0]], 0.0), ([[1e-3, 10.0, 1e-3, np.nan]], 1e-3), ([[-1.0, 10.0, 0.0]], -1.9665)],
)
def test_the_band_goes_below_zero_only_if_values_do_and_else_ends_at_the_smallest(values, lowest):
    _, shade = band(axes(), [1], values, "NODE", "red")
    assert edges(shade, 1)[0] == pytest.approx(lowest, abs=1e-4)


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


def test_curves_may_have_values_at_different_places():
    ax = axes()
    curves(ax, {"training": [1, 2, 3], "validation": [2, 3]}, {"training": [3, 2, 1], "validation": [5, 4]})
    assert [line.get_xdata().tolist() for line in ax.lines] == [[1, 2, 3], [2, 3]]


def test_there_are_colours_for_any_number_of_curves():
    ax = axes()
    curves(ax, X, {str(i): VALUES for i in range(40)})
    assert len(ax.lines) == 40


def test_a_single_curve_needs_no_legend():
    ax = axes()
    curves(ax, X, {"NODE": VALUES})
    assert ax.get_legend() is None


def test_a_logarithmic_axis_shows_a_band_whole_unless_it_nearly_reaches_zero():
    ax = figure().axes[0]
    curves(ax, [1, 2], {"NODE": [[5.0, 5.0], [1.0, 3.0]]}, log=True)  # the band ends at 2 - 1
    low, high = ax.get_ylim()
    assert 0.5 < low < 1
    assert 5 < high < 10


@pytest.mark.parametrize("log", [False, True])
def test_a_line_that_others_cover_is_wider_than_they_are(log):
    ax = figure().axes[0]
    covered = [1.0, 2.0, 3.0, 4.0]
    curves(ax, [1, 2, 3, 4], {"a": covered, "b": covered, "c": [4.0, 3.0, 2.0, 1.0], "d": covered}, log=log)
    a, b, c, d = (line.get_linewidth() for line in ax.lines)
    assert a > b > c == d


def test_lines_that_are_apart_on_a_logarithmic_axis_do_not_cover_each_other():
    ax = figure().axes[0]
    curves(ax, [1, 2, 3], {"a": [1.0, 1e-4, 1e-5], "b": [1.0, 1e-6, 1e-7]}, log=True)
    assert ax.lines[0].get_linewidth() == ax.lines[1].get_linewidth()


def test_a_logarithmic_axis_ends_near_the_lowest_mean():
    ax = axes()
    curves(ax, [1, 2], {"NODE": [[1.0, 1.0], [1e-12, 0.2]]}, log=True)
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    assert 0.08 < low < 0.1
    assert 1.0 < high < 1.3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.3, 1.6], {"2"}),
        ([1.0, 0.1], {"0.1", "0.2", "0.5", "1"}),
        ([1.0, 1e-5], {"$\\mathdefault{10^{-3}}$"}),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers_unless_it_is_long(values, expected):
    made = figure()
    curves(made.axes[0], [1, 2], {"NODE": values}, log=True)
    made.draw_without_rendering()
    assert expected <= {label.get_text() for label in made.axes[0].get_yticklabels()}


def test_a_logarithmic_axis_without_anything_above_zero_is_still_drawn():
    made = figure()
    curves(made.axes[0], [1, 2], {"NODE": [[0.0], [np.nan]]}, log=True)
    assert made.axes[0].get_yscale() == "linear"
    np.testing.assert_array_equal(made.axes[0].lines[0].get_ydata(), [0, np.nan])
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


# One quantity against another


def test_a_path_goes_through_the_means_over_repeats_in_the_order_of_training():
    ax = axes()
    x, y = VALUES[::-1] * 10, VALUES
    paths(ax, {"NODE": (x, y), "ANODE": (x[:, 0], y[:, 0])}, xlabel="evaluations", ylabel="loss")
    node, anode = ax.lines
    np.testing.assert_allclose(node.get_xdata(), x.mean(1))
    np.testing.assert_allclose(node.get_ydata(), y.mean(1))
    np.testing.assert_allclose(anode.get_xdata(), x[:, 0])
    np.testing.assert_allclose(anode.get_ydata(), y[:, 0])
    assert [node.get_color(), anode.get_color()] == [MODEL_COLORS["NODE"], MODEL_COLORS["ANODE"]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["NODE", "ANODE"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("evaluations", "loss", "linear")


def test_paths_may_be_of_different_lengths_and_have_the_colours_that_are_asked_for():
    ax = axes()
    paths(ax, {"p = 0": ([1, 2], [3, 4]), "p = 1": ([1, 2, 3], [3, 4, 5])}, {"p = 1": "#000000"})
    assert [len(line.get_xdata()) for line in ax.lines] == [2, 3]
    assert ax.lines[1].get_color() == "#000000" != ax.lines[0].get_color()


def test_a_single_path_needs_no_legend():
    ax = axes()
    paths(ax, {"NODE": ([1, 2], [3, 4])})
    assert ax.get_legend() is None


def test_repeats_that_failed_are_left_out_of_a_path_and_where_all_did_there_is_a_gap():
    ax = axes()
    x = np.array([[20.0, 40.0], [30.0, np.nan], [np.nan, np.nan], [50.0, 60.0]])
    y = np.array([[1.0, 2.0], [0.5, np.nan], [np.nan, np.nan], [0.25, np.inf]])
    paths(ax, {"NODE": (x, y)})
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [30, 30, np.nan, 55])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1.5, 0.5, np.nan, 0.25])


@pytest.mark.parametrize("lowest", [0.05, 0.0])
def test_a_path_on_a_logarithmic_axis_ends_near_the_lowest_mean_above_zero(lowest):
    made = figure()
    paths(made.axes[0], {"NODE": ([1, 2, 3], [1.0, 0.1, lowest]), "ANODE": ([1, 2], [np.nan, 1.0])}, log=True)
    assert made.axes[0].get_yscale() == "log"
    assert 0.7 < made.axes[0].get_ylim()[0] / (lowest or 0.1) < 1
    made.draw_without_rendering()


def test_a_path_without_anything_above_zero_is_still_drawn():
    made = figure()
    paths(made.axes[0], {"NODE": ([1, 2], [np.nan, 0.0])}, log=True)
    assert made.axes[0].get_yscale() == "linear"
    made.draw_without_rendering()


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_a_path_of_wrong_shape_is_refused_by_the_name_of_the_model(shape):
    with pytest.raises(ValueError, match="NODE: takes an array of shape"):
        paths(axes(), {"NODE": (np.ones(shape), np.ones(shape))})


def test_no_paths_are_refused_as_no_curves_are():
    with pytest.raises(ValueError, match="series: takes at least one"):
        paths(axes(), {})


# Found and reported

FOUND = {"MNIST": {"NODE": [95.0, 96.0, 98.5], "ANODE": [97.0, 99.0, 98.0]}, "SVHN": {"NODE": [80.0], "ANODE": [85.0]}}
REPORTED = {"MNIST": {"NODE": 96.4, "ANODE": 98.2}, "SVHN": {"ANODE": 83.5}, "other": {"NODE": 1.0}}


def drawn(ax, marker: str) -> list[tuple[str, list, list]]:
    """What is drawn with a marker: colours, and where."""
    return [
        (line.get_color(), list(line.get_xdata()), list(line.get_ydata()))
        for line in ax.lines
        if line.get_marker() == marker and len(line.get_xdata())
    ]


def test_every_repeat_is_drawn_beside_what_was_reported():
    ax = axes()
    compared(ax, FOUND, REPORTED, ylabel="accuracy, %")
    node, anode = MODEL_COLORS["NODE"], MODEL_COLORS["ANODE"]
    dots, diamonds = drawn(ax, "o"), drawn(ax, "D")
    assert [(color, y) for color, _, y in dots] == [
        (node, [95.0, 96.0, 98.5]),
        (anode, [97.0, 99.0, 98.0]),
        (node, [80.0]),
        (anode, [85.0]),
    ]
    assert [(color, y) for color, _, y in diamonds] == [(node, [96.4]), (anode, [98.2]), (anode, [83.5])]
    bars = [line for line in ax.lines if line.get_marker() in ("None", "")]
    assert [list(line.get_ydata()) for line in bars] == [[96.5] * 2, [98.0] * 2, [80.0] * 2, [85.0] * 2]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["MNIST", "SVHN"]
    assert ax.get_xticks().tolist() == [0, 1]
    assert ax.get_ylabel() == "accuracy, %"


def test_models_stand_side_by_side_at_their_group_and_what_was_reported_to_the_right():
    ax = axes()
    compared(ax, FOUND, REPORTED)
    places = [{*x} for _, x, _ in drawn(ax, "o")]
    assert all(len(each) == 1 for each in places)
    np.testing.assert_allclose([each.pop() for each in places], [-0.1, 0.1, 0.9, 1.1])
    np.testing.assert_allclose([x[0] for _, x, _ in drawn(ax, "D")], [0.0, 0.2, 1.2])
    assert ax.get_xlim() == pytest.approx((-0.6, 1.6))


def test_the_legend_has_every_model_once_and_the_paper():
    ax = axes()
    compared(ax, FOUND, REPORTED)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["NODE", "ANODE", "paper"]


def test_nothing_to_compare_is_refused_and_so_are_wrong_shapes():
    with pytest.raises(ValueError, match="found: takes at least one group"):
        compared(axes(), {}, {})
    with pytest.raises(ValueError, match=r"NODE: takes an array of shape \[repeats\]"):
        compared(axes(), {"MNIST": {"NODE": [[1.0]]}}, {})


def test_the_mean_of_a_comparison_leaves_out_what_failed():
    ax = axes()
    compared(ax, {"MNIST": {"NODE": [95.0, np.nan, 97.0]}}, {})
    (bar,) = [line for line in ax.lines if line.get_marker() in ("None", "")]
    assert list(bar.get_ydata()) == [96.0, 96.0]


def test_the_legend_has_models_that_the_first_group_does_not():
    ax = axes()
    compared(ax, {"MNIST": {"NODE": [95.0]}, "SVHN": {"ANODE": [85.0]}}, {})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["NODE", "ANODE", "paper"]
