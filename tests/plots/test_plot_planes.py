import numpy as np
import pytest
from matplotlib.contour import QuadContourSet
from matplotlib.patches import Circle

from anode.plots.planes import colorbar, plane
from anode.plots.style import CLASS_COLORS, DIVERGING, figure
from helpers.synthetic import disc_and_annulus

XS, YS = np.linspace(-2, 2, 21), np.linspace(-1, 1, 11)
VALUES = np.hypot(*np.meshgrid(XS, YS)) * 2 - 1.5


def axes():
    return figure().axes[0]


def contours(ax):
    return [drawn for drawn in ax.collections if isinstance(drawn, QuadContourSet)]


def test_values_are_clipped_and_centred_at_zero():
    mesh = plane(axes(), XS, YS, VALUES)
    np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(VALUES.shape), np.clip(VALUES, -1.2, 1.2))
    assert mesh.get_clim() == (-1.2, 1.2)
    assert min(DIVERGING(0.5)[:3]) > 0.9


def test_the_ends_of_the_scale_are_the_colours_of_the_classes():
    for end, color in zip((0.0, 1.0), CLASS_COLORS[:2], strict=True):
        assert tuple(round(255 * part) for part in DIVERGING(end)[:3]) == tuple(bytes.fromhex(color[1:]))


def test_a_line_is_where_the_sign_changes():
    ax = axes()
    plane(ax, XS, YS, VALUES)
    (zero,) = contours(ax)
    corners = np.concatenate([path.vertices for path in zero.get_paths()])
    np.testing.assert_allclose(np.hypot(*corners.T), 0.75, atol=0.02)


@pytest.mark.parametrize("values", [np.ones_like(VALUES), -np.ones_like(VALUES), np.full_like(VALUES, np.nan)])
def test_without_a_change_of_sign_there_is_no_line_and_no_warning(values):
    ax = axes()
    plane(ax, XS, YS, values)
    assert contours(ax) == []
    ax.figure.draw_without_rendering()


def test_values_that_are_not_finite_are_left_out():
    ax = axes()
    values = VALUES.copy()
    values[3, 3] = np.nan
    values[4, 3] = np.inf
    mesh = plane(ax, XS, YS, values)
    drawn = np.asarray(mesh.get_array()).reshape(VALUES.shape)
    assert np.argwhere(np.isnan(drawn)).tolist() == [[3, 3], [4, 3]]
    ax.figure.draw_without_rendering()


def test_points_and_circles_are_drawn_on_top():
    ax = axes()
    points, labels = disc_and_annulus(5, 5)
    plane(ax, XS, YS, VALUES, points, labels, radii=(0.5, 1.0))
    np.testing.assert_allclose(ax.collections[-1].get_offsets(), points)
    assert [patch.radius for patch in ax.patches if isinstance(patch, Circle)] == [0.5, 1.0]
    assert (ax.get_xlim(), ax.get_ylim()) == ((-2, 2), (-1, 1))


def test_one_colour_bar_serves_several_planes():
    made = figure(columns=2)
    meshes = [plane(ax, XS, YS, VALUES) for ax in made.axes]
    bar = colorbar(meshes[0], made.axes, "output")
    made.draw_without_rendering()
    assert bar.ax.get_ylabel() == "output"
    assert len(bar.ax.get_yticks()) == 3


def test_wrong_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"values: takes an array of shape \[11, 21\], got \(21, 11\)"):
        plane(axes(), XS, YS, VALUES.T)
    with pytest.raises(ValueError, match="xs:"):
        plane(axes(), VALUES, YS, VALUES)
    with pytest.raises(ValueError, match="points:"):
        plane(axes(), XS, YS, VALUES, np.zeros((3, 3)), [0, 1, 1])
    with pytest.raises(ValueError, match="labels:"):
        plane(axes(), XS, YS, VALUES, np.zeros((3, 2)))
