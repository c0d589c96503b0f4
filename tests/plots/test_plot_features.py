import numpy as np
import pytest
from matplotlib.colors import to_rgba_array

from anode.plots.features import scatter, strip
from anode.plots.style import CLASS_COLORS, figure
from helpers.synthetic import disc_and_annulus, lifting_flow, turning_flow

POINTS, LABELS = disc_and_annulus(20, 40)
FLAT, LIFTED = list(turning_flow(POINTS)[::6]), list(lifting_flow(POINTS, LABELS)[::6])


def rows(*arrays):
    """The rows of arrays side by side, in order: the same for points drawn in any order."""
    together = np.concatenate(arrays, 1).round(6)
    return together[np.lexsort(together.T)]


def test_every_point_is_drawn_in_the_colour_of_its_label():
    drawn = scatter(figure().axes[0], POINTS, LABELS)
    colors = to_rgba_array([CLASS_COLORS[label] for label in LABELS])[:, :3]
    np.testing.assert_allclose(rows(drawn.get_offsets(), drawn.get_facecolor()[:, :3]), rows(POINTS, colors))


def test_three_features_are_drawn_in_space():
    drawn = scatter(figure(three_d=[0]).axes[0], LIFTED[-1], LABELS)
    np.testing.assert_allclose(rows(np.stack(drawn._offsets3d, -1)), rows(LIFTED[-1]))


def test_neither_class_lies_on_top():
    drawn = scatter(figure().axes[0], POINTS, LABELS)
    red = np.flatnonzero(drawn.get_facecolor()[:, 0] > 0.5)
    assert red.min() < 20
    assert red.max() > 40


@pytest.mark.parametrize("panels", [FLAT, LIFTED], ids=["2-d", "3-d"])
def test_a_strip_has_a_tile_with_a_title_for_each_panel(panels):
    titles = [f"epoch {i}, NFE {20 + i}" for i in range(len(panels))]
    made = strip(panels, LABELS, titles)
    assert [ax.get_title() for ax in made.axes] == titles
    made.draw_without_rendering()


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 4), (5, 3), (6, 3), (8, 4), (10, 4)])
def test_rows_of_a_strip_are_even(count, columns):
    made = strip([POINTS] * count, LABELS)
    assert len(made.axes) == count
    assert made.axes[0].get_gridspec().ncols == columns


def test_columns_may_be_chosen():
    assert strip([POINTS] * 4, LABELS, columns=2).axes[0].get_gridspec().ncols == 2


def test_limits_are_shared_if_asked():
    panels = [POINTS, 3 * POINTS]
    own, shared = (strip(panels, LABELS, shared=shared) for shared in (False, True))
    assert own.axes[0].get_xlim() != own.axes[1].get_xlim()
    assert shared.axes[0].get_xlim() == shared.axes[1].get_xlim()
    np.testing.assert_allclose(shared.axes[0].get_xlim(), own.axes[1].get_xlim())


def test_panels_may_have_labels_of_their_own():
    made = strip([POINTS, POINTS[:2]], [LABELS, [0, 1]])
    assert len(made.axes[1].collections[0].get_offsets()) == 2


def test_wrong_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"features: takes an array of shape \[points, 2\], got \(60, 3\)"):
        scatter(figure().axes[0], LIFTED[0], LABELS)
    with pytest.raises(ValueError, match="labels:"):
        scatter(figure().axes[0], POINTS, LABELS[1:])
    with pytest.raises(ValueError, match=r"panels: takes an array of shape \[points, 2 or 3\]"):
        strip([np.zeros((5, 4))], [0] * 5)
    with pytest.raises(ValueError, match="panels:"):
        strip([], LABELS)
    with pytest.raises(ValueError, match="titles: takes a title for each of the 2 panels"):
        strip([POINTS] * 2, LABELS, ["one"])
    with pytest.raises(ValueError, match="labels: takes labels for each of the 2 panels"):
        strip([POINTS] * 2, [LABELS])
    with pytest.raises(ValueError, match="columns:"):
        strip([POINTS], LABELS, columns=-1)
