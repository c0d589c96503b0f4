import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color, to_rgba_array
from matplotlib.patches import FancyArrowPatch
from matplotlib.quiver import Quiver

from anode.plots.flows import flow_1d, flow_2d, flow_3d, project_3d, vector_field_1d
from anode.plots.marks import far_apart, limits
from anode.plots.style import CLASS_COLORS, figure
from helpers.synthetic import TIMES, disc_and_annulus, lifting_flow, turning_flow

POINTS, LABELS = disc_and_annulus(20, 40)
FLAT, LIFTED = turning_flow(POINTS), lifting_flow(POINTS, LABELS)
COLORS = to_rgba_array([CLASS_COLORS[label] for label in LABELS])[:, :3]


def axes(three_d=False):
    return figure(three_d=[0] if three_d else []).axes[0]


def arrows(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def test_paths_in_the_plane_are_drawn_from_hollow_to_full_dots():
    ax = axes()
    flow_2d(ax, FLAT, LABELS)
    lines, starts, ends = ax.collections
    assert isinstance(lines, LineCollection)
    np.testing.assert_allclose(lines.get_segments(), FLAT.swapaxes(0, 1))
    np.testing.assert_allclose(starts.get_offsets(), FLAT[0])
    np.testing.assert_allclose(ends.get_offsets(), FLAT[-1])
    assert same_color(starts.get_facecolor()[0], "white")
    assert ax.get_aspect() == 1


def test_labels_decide_the_colours_of_lines_dots_and_arrowheads():
    ax = axes()
    flow_2d(ax, FLAT, LABELS)
    lines, starts, ends = ax.collections
    np.testing.assert_allclose(lines.get_colors()[:, :3], COLORS)
    np.testing.assert_allclose(starts.get_edgecolor()[:, :3], COLORS)
    np.testing.assert_allclose(ends.get_facecolor()[:, :3], COLORS)
    assert [patch.get_facecolor()[:3] for patch in arrows(ax)] == [tuple(COLORS[i]) for i in far_apart(FLAT, 24)]


def test_paths_without_labels_have_one_colour():
    flat, line, space = axes(), axes(), axes(three_d=True)
    flow_2d(flat, FLAT)
    flow_1d(line, TIMES, FLAT)
    flow_3d(space, LIFTED)
    for ax in (flat, line, space):
        colors = ax.collections[0].get_colors()
        assert same_color(colors[0][:3], CLASS_COLORS[0])
        assert len(np.unique(colors, axis=0)) == 1


def test_all_of_the_paths_are_within_the_axes():
    ax = axes()
    flow_2d(ax, FLAT, LABELS)
    for (low, high), (least, most) in zip(limits(FLAT, 0.0), (ax.get_xlim(), ax.get_ylim()), strict=True):
        assert least < low
        assert high < most


def test_an_arrowhead_points_where_its_path_goes_halfway():
    ax = axes()
    path = np.stack([np.linspace(0, 2, 11), np.zeros(11)], -1)[:, None]
    flow_2d(ax, path, [1])
    ((tail, tip),) = (patch._posA_posB for patch in arrows(ax))
    assert tip == pytest.approx((1, 0))
    assert 0 < tail[0] < 1


def test_the_shape_of_an_arrowhead_shows_which_corner_is_its_tip():
    ax = axes()
    path = np.stack([np.linspace(0, 2, 11), np.linspace(0, -2, 11)], -1)[:, None]
    flow_2d(ax, path, [1])
    (*_, head), _ = arrows(ax)[0]._get_path_in_displaycoord()
    one, tip, other = head.vertices[:3]
    assert np.linalg.norm(tip - one) > 1.5 * np.linalg.norm(other - one)


def test_some_paths_that_move_carry_arrowheads():
    resting = np.repeat(FLAT[:1], len(FLAT), 0)
    for paths, count in ((FLAT, 7), (resting, 0)):
        ax = axes()
        flow_2d(ax, paths, LABELS, arrows=7)
        assert len(arrows(ax)) == count


def test_arrowheads_are_spread_over_the_starting_points():
    in_a_row = np.stack([np.linspace(0, 10, 101), np.zeros(101)], -1)
    paths = np.stack([in_a_row, in_a_row + np.array([0, 3])])
    assert sorted(far_apart(paths, 5)) == [0, 25, 50, 75, 100]


def test_paths_in_space_are_drawn_in_space():
    ax = axes(three_d=True)
    flow_3d(ax, LIFTED, LABELS, elev=30, azim=45)
    assert (ax.elev, ax.azim) == (30, 45)
    np.testing.assert_allclose(np.stack(ax.collections[2]._offsets3d, -1), LIFTED[-1])
    assert len(arrows(ax)) == 24
    ax.figure.draw_without_rendering()


def test_arrowheads_in_space_follow_the_camera():
    ax = axes(three_d=True)
    flow_3d(ax, LIFTED, LABELS, arrows=1)
    seen = []
    for azim in (0, 60):
        ax.view_init(20, azim)
        ax.figure.draw_without_rendering()
        seen.append(list(arrows(ax)[0]._posA_posB))
    assert not np.allclose(*seen)


def test_paths_on_the_line_are_drawn_against_time():
    ax = axes()
    paths = np.random.default_rng(0).normal(size=(len(TIMES), 5, 3))
    flow_1d(ax, TIMES, paths, [0, 1, 0, 1, 1])
    segments = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(segments[:, :, 0], np.broadcast_to(TIMES, (5, len(TIMES))))
    np.testing.assert_allclose(segments[:, :, 1], paths[:, :, 0].T)


def test_paths_may_be_a_tensor_with_a_gradient():
    ax = axes()
    flow_2d(ax, torch.tensor(FLAT, requires_grad=True), torch.tensor(LABELS))
    np.testing.assert_allclose(ax.collections[0].get_segments(), FLAT.swapaxes(0, 1))


def test_a_vector_field_has_arrows_of_one_length_along_its_slopes():
    ax = axes()
    times, states = np.linspace(0, 1, 4), np.linspace(-1, 1, 3)
    slopes = np.arange(12.0).reshape(4, 3) - 5
    vector_field_1d(ax, times, states, slopes)
    (field,) = ax.collections
    assert isinstance(field, Quiver)
    np.testing.assert_allclose(np.hypot(field.U, field.V), 1)
    np.testing.assert_allclose(field.V / field.U, slopes.ravel())
    np.testing.assert_allclose(field.XY, [(t, h) for t in times for h in states])


def test_states_that_are_not_finite_leave_gaps_and_no_warnings():
    for paths, draw, three_d in ((FLAT, flow_2d, False), (LIFTED, flow_3d, True)):
        broken, gaps = paths.copy(), paths.copy()
        broken[10:, 3], gaps[10:, 3] = np.inf, np.nan
        broken[5, 4] = gaps[5, 4] = np.nan
        ax = axes(three_d)
        draw(ax, broken, LABELS)
        lines = ax.collections[0]
        drawn = np.array(lines._segments3d if three_d else [path.vertices for path in lines.get_paths()])
        np.testing.assert_array_equal(drawn, gaps.swapaxes(0, 1))
        ax.figure.draw_without_rendering()


@pytest.mark.parametrize("count", [1, 2])
def test_a_few_points_that_rest_are_drawn(count):
    ax = axes()
    flow_2d(ax, np.ones((2, count, 2)), [1] * count)
    lines, starts, ends = ax.collections
    assert [len(lines.get_segments()), len(starts.get_offsets()), len(ends.get_offsets())] == [count] * 3
    assert ax.get_xlim()[0] < 1 < ax.get_xlim()[1]
    assert ax.get_ylim()[0] < 1 < ax.get_ylim()[1]
    ax.figure.draw_without_rendering()


# Projection to three dimensions


def test_the_projection_keeps_the_input_and_finds_the_direction_of_largest_variance():
    generator = np.random.default_rng(0)
    direction = np.array([0.0, 0.6, 0.0, 0.8, 0.0])
    along = generator.normal(size=50) * 3
    ends = along[:, None] * direction + 0.01 * generator.normal(size=(50, 5))
    paths = np.zeros((2, 50, 7))
    paths[..., :2] = generator.normal(size=(2, 50, 2))
    paths[1, :, 2:] = ends
    projected = project_3d(paths, input_dims=2)
    np.testing.assert_array_equal(projected[..., :2], paths[..., :2])
    np.testing.assert_allclose(projected[1, :, 2], along, atol=0.1)
    np.testing.assert_array_equal(projected[0, :, 2], 0)


def test_the_projection_of_one_input_has_the_two_directions_of_largest_variance():
    generator = np.random.default_rng(0)
    paths = generator.normal(size=(3, 400, 5)) * [1, 1, 9, 3, 0.1]
    projected = project_3d(paths, input_dims=1)
    np.testing.assert_allclose(projected[..., 1:], paths[..., 2:4], atol=2)
    assert np.corrcoef(projected[-1, :, 1], paths[-1, :, 2])[0, 1] > 0.99
    assert np.corrcoef(projected[-1, :, 2], paths[-1, :, 3])[0, 1] > 0.99


def test_few_dimensions_are_kept_and_filled_with_zeros():
    np.testing.assert_array_equal(project_3d(LIFTED), LIFTED)
    np.testing.assert_array_equal(project_3d(FLAT), np.concatenate([FLAT, 0 * FLAT[..., :1]], -1))
    np.testing.assert_array_equal(project_3d(FLAT[..., :1], 1)[..., 1:], 0)


@pytest.mark.parametrize("points", [1, 2])
def test_one_augmented_dimension_of_few_points_can_be_projected(points):
    assert project_3d(np.ones((4, points, 4)), input_dims=3).shape == (4, points, 3)


def test_wrong_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"paths: takes an array of shape \[times, points, 2\], got"):
        flow_2d(axes(), LIFTED, LABELS)
    with pytest.raises(ValueError, match="paths:"):
        flow_3d(axes(three_d=True), FLAT, LABELS)
    with pytest.raises(ValueError, match="ax:"):
        flow_3d(axes(), LIFTED, LABELS)
    with pytest.raises(ValueError, match=r"labels: takes an array of shape \[60\]"):
        flow_2d(axes(), FLAT, LABELS[1:])
    with pytest.raises(ValueError, match=r"labels: takes whole numbers from 0, or -1 and 1, got \[0.5\]"):
        flow_2d(axes(), FLAT, LABELS / 2)
    with pytest.raises(ValueError, match="paths:"):
        flow_1d(axes(), TIMES[1:], FLAT, LABELS)
    with pytest.raises(ValueError, match="slopes:"):
        vector_field_1d(axes(), [0, 1], [0, 1, 2], np.zeros((3, 2)))
    with pytest.raises(ValueError, match="input_dims: takes a number from 1 to 3, got 4"):
        project_3d(np.zeros((2, 2, 6)), input_dims=4)
