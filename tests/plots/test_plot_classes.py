import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from anode.plots.animate import feature_frames, trajectory_frames
from anode.plots.classes import as_labels, class_legend, colors_of
from anode.plots.features import scatter, strip
from anode.plots.flows import flow_1d, flow_2d, flow_3d
from anode.plots.planes import plane, regions
from anode.plots.style import CLASS_COLORS, figure

SIX = np.array([0, 1, 2, 3, 4, 5])
POINTS = np.random.default_rng(0).normal(size=(6, 2))
PATHS = np.stack([POINTS, POINTS + 1.0, 2.0 * POINTS])
GRID = np.linspace(-1, 1, 5)


def drawn_colors(collection) -> set[str]:
    return {to_hex(color) for color in collection.get_facecolor()}


def names_in(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


# Labels


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1, 1], [0, 1, 1]),
        ([2, 0, 7], [2, 0, 7]),
        ([True, False, True], [1, 0, 1]),
        ([-1, 1, -1], [0, 1, 0]),
        ([-1.0, -1.0, -1.0], [0, 0, 0]),
        ([1, 1, 1], [1, 1, 1]),
        (np.array([1.0, 2.0, 0.0]), [1, 2, 0]),
        (np.array([3, 2, 255], dtype=np.uint8), [3, 2, 255]),
        (torch.tensor([1, 0, 2]), [1, 0, 2]),
    ],
)
def test_labels_are_classes_from_zero_truth_values_or_signs(labels, expected):
    found = as_labels(labels, 3)
    assert (found.dtype, found.tolist()) == (np.int64, expected)


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        ([0, 1, -1], r"got \[-1.0\]"),
        ([0.5, 1, 2], r"got \[0.5\]"),
        ([np.nan, 1, 2], r"got \[nan\]"),
        ([np.inf, 1, 2], r"got \[inf\]"),
        ([-2, -1, 1], r"got \[-2.0, -1.0\]"),
        (["cat", "dog", "owl"], r"number the classes first, got 'str"),
        ([0, 1], r"shape \[3\], one label per point, got \(2,\)"),
    ],
)
def test_other_labels_are_refused_by_name(labels, got):
    with pytest.raises(ValueError, match=f"labels: takes .*{got}"):
        as_labels(labels, 3)


# Colours


def test_ten_classes_have_colours_of_their_own_and_the_first_two_are_those_of_the_paper():
    assert colors_of(np.arange(10)) == list(CLASS_COLORS)
    assert len(set(CLASS_COLORS)) == 10
    assert colors_of(np.array([1, 0])) == ["#d9482f", "#2f6db5"]


@pytest.mark.parametrize("count", [11, 24, 200])
def test_each_of_many_classes_has_a_colour_of_its_own(count):
    assert len(set(colors_of(np.arange(count)))) == count


def test_a_huge_label_needs_no_colour_for_all_below_it():
    assert len(set(colors_of(np.array([0, 10**12])))) == 2


def test_no_points_have_no_colours():
    assert colors_of(np.empty(0, dtype=np.int64)) == []


# Every kind of plot


def flow_ends(draw, *arguments, three_d=False):
    (ax,) = figure(three_d=[0] if three_d else []).axes
    draw(ax, *arguments)
    ax.figure.draw_without_rendering()  # in space, matplotlib has the colours of all dots only then
    return ax.collections[-1]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: scatter(figure().axes[0], POINTS, SIX),
        lambda: strip([POINTS], SIX).axes[0].collections[-1],
        lambda: flow_ends(flow_2d, PATHS, SIX),
        lambda: flow_ends(flow_1d, [0, 1, 2], PATHS, SIX),
        lambda: flow_ends(flow_3d, np.concatenate([PATHS, PATHS[..., :1]], -1), SIX, three_d=True),
        lambda: flow_ends(plane, GRID, GRID, np.zeros((5, 5)), POINTS, SIX),
        lambda: flow_ends(regions, GRID, GRID, np.zeros((5, 5)), POINTS, SIX),
        lambda: next(feature_frames([POINTS], SIX)).axes[0].collections[-1],
        lambda: next(trajectory_frames(PATHS, SIX)).axes[0].collections[-1],
    ],
    ids=["scatter", "strip", "flow 2d", "flow 1d", "flow 3d", "plane", "regions", "features", "trajectories"],
)
def test_every_plot_draws_more_than_two_classes(draw):
    assert drawn_colors(draw()) == set(CLASS_COLORS[:6])


def test_a_class_has_one_colour_in_all_tiles_of_a_strip():
    few, many = np.array([0, 3]), np.array([0, 3, 20])
    made = strip([POINTS[:2], POINTS[:3]], [few, many])
    left, right = (drawn_colors(ax.collections[-1]) for ax in made.axes)
    assert len(left) == 2
    assert left < right


# Legends


def test_a_legend_names_the_classes_that_are_there_in_their_colours():
    (ax,) = figure().axes
    class_legend(ax, [2, 0, 2], ["cat", "dog", "owl"])
    assert names_in(ax.get_legend()) == ["cat", "owl"]
    colors = [handle.get_color() for handle in ax.get_legend().legend_handles]
    assert colors == [CLASS_COLORS[0], CLASS_COLORS[2]]


def test_classes_without_names_are_numbered():
    (ax,) = figure().axes
    class_legend(ax, [-1, 1], title="side")
    assert names_in(ax.get_legend()) == ["class 0", "class 1"]
    assert ax.get_legend().get_title().get_text() == "side"


def test_a_legend_of_many_classes_has_ten_of_them_evenly_spaced():
    (ax,) = figure().axes
    class_legend(ax, range(91))
    assert names_in(ax.get_legend()) == [f"class {i}" for i in range(0, 91, 10)]


def test_labels_of_a_legend_may_be_a_tensor():
    (ax,) = figure().axes
    class_legend(ax, torch.tensor([0, 1, 1]))
    assert names_in(ax.get_legend()) == ["class 0", "class 1"]


@pytest.mark.parametrize("classes", [2, 10])
def test_the_legend_of_a_figure_is_above_its_axes_and_within_its_width(classes):
    made = strip([POINTS] * 4, SIX)
    class_legend(made, range(classes))
    made.draw_without_rendering()
    (legend,) = made.legends
    box = legend.get_window_extent()
    assert len(names_in(legend)) == classes
    assert 0 <= box.x0 < box.x1 <= made.bbox.width
    assert box.y0 >= max(ax.get_window_extent().y1 for ax in made.axes)


def test_too_few_names_are_refused():
    with pytest.raises(ValueError, match=r"names: takes a name for each class, at least 3, got \['cat', 'dog'\]"):
        class_legend(figure().axes[0], [0, 2], ["cat", "dog"])


# Regions of the plane


def test_regions_are_light_tones_of_the_colours_of_their_classes():
    classes = np.zeros((5, 5), dtype=int)
    classes[:, 3:] = 2
    mesh = regions(figure().axes[0], GRID, GRID, classes)
    tones = np.asarray(mesh.get_array())
    for column, label in ((0, 0), (4, 2)):
        color = np.array([int(CLASS_COLORS[label][i : i + 2], 16) for i in (1, 3, 5)]) / 255
        np.testing.assert_allclose(tones[0, column], 0.65 + 0.35 * color, atol=1e-6)


def test_regions_of_a_wrong_shape_or_of_no_classes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"classes: takes an array of shape \[5, 5\], got \(4, 5\)"):
        regions(figure().axes[0], GRID, GRID, np.zeros((4, 5)))
    with pytest.raises(ValueError, match=r"classes: takes whole numbers from 0, or -1 and 1, got \[0.5\]"):
        regions(figure().axes[0], GRID, GRID, np.full((5, 5), 0.5))
    with pytest.raises(ValueError, match="labels: takes labels if points are given"):
        regions(figure().axes[0], GRID, GRID, np.zeros((5, 5)), POINTS)
