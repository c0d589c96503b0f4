import numpy as np
import pytest
from PIL import Image

from anode.plots.animate import COLORS, MANY_COLORS, feature_frames, gif, trajectory_frames
from anode.plots.style import CLASS_COLORS, FAINT, figure
from helpers.synthetic import TIMES, disc_and_annulus, lifting_flow, turning_flow

POINTS, LABELS = disc_and_annulus(20, 40)


def squares(count, size=32):
    """Pictures of a square that moves."""
    pictures = np.full((count, size, size, 3), 255, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        picture[4:12, 2 * i : 2 * i + 8] = tuple(bytes.fromhex(CLASS_COLORS[0][1:]))
    return pictures


def frames_of(path):
    """All frames as arrays, and how long they are shown."""
    with Image.open(path) as image:
        pictures, durations = [], []
        for i in range(image.n_frames):
            image.seek(i)
            pictures.append(np.asarray(image.convert("RGB")))
            durations.append(image.info["duration"])
    return pictures, durations


def exact(colors):
    """Colours as they are in a frame."""
    return {tuple(bytes.fromhex(color[1:])) for color in colors}


def test_an_animation_has_all_frames_repeats_for_ever_and_rests_at_its_end(tmp_path):
    path = gif(squares(8), tmp_path / "squares.gif", fps=20)
    pictures, durations = frames_of(path)
    np.testing.assert_array_equal(pictures, squares(8))
    assert durations == [50] * 7 + [1000]
    with Image.open(path) as image:
        assert image.info["loop"] == 0


def test_frames_may_be_figures_that_are_made_one_by_one(tmp_path):
    path = gif(feature_frames([POINTS, POINTS / 2, POINTS / 3], LABELS), tmp_path / "features.gif")
    pictures, _ = frames_of(path)
    assert [picture.shape for picture in pictures] == [(480, 480, 3)] * 3


def test_one_frame_is_an_animation(tmp_path):
    pictures, _ = frames_of(gif(squares(1), tmp_path / "one.gif"))
    np.testing.assert_array_equal(pictures, squares(1))


def test_all_frames_share_a_small_palette_with_the_exact_colours_of_the_classes(tmp_path):
    path = gif(trajectory_frames(turning_flow(POINTS)[::6], LABELS), tmp_path / "paths.gif")
    colors = {tuple(color) for picture in frames_of(path)[0] for color in np.unique(picture.reshape(-1, 3), axis=0)}
    assert len(colors) <= COLORS
    assert exact(CLASS_COLORS[:2]) | {(255, 255, 255)} <= colors


def test_thin_lines_of_a_view_of_space_are_grey(tmp_path):
    paths = lifting_flow(POINTS, LABELS)[::6]
    pictures, _ = frames_of(gif(trajectory_frames(paths, LABELS), tmp_path / "paths.gif"))
    assert exact([FAINT]) <= {tuple(color) for color in np.unique(pictures[0].reshape(-1, 3), axis=0)}
    walls = pictures[0][60:90, 100:400].astype(int)  # above all points: wall, ground and lines alone
    assert np.ptp(walls, axis=2).max() < 16


def test_many_classes_have_a_larger_palette_with_their_exact_colours(tmp_path):
    points = np.random.default_rng(0).normal(size=(300, 2))
    path = gif(trajectory_frames(turning_flow(points)[::6], np.arange(300) % 10), tmp_path / "paths.gif")
    colors = {tuple(color) for picture in frames_of(path)[0] for color in np.unique(picture.reshape(-1, 3), axis=0)}
    assert COLORS < len(colors) <= MANY_COLORS
    assert exact(CLASS_COLORS) | {(255, 255, 255)} <= colors


def test_the_same_frames_give_the_same_bytes(tmp_path):
    paths = [
        gif(trajectory_frames(turning_flow(POINTS)[::10], LABELS), tmp_path / f"{name}.gif") for name in ("a", "b")
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("dims", [2, 3])
def test_thirty_frames_stay_below_500_kilobytes(tmp_path, dims):
    points, labels = disc_and_annulus(60, 120)
    paths = turning_flow(points) if dims == 2 else lifting_flow(points, labels)
    path = gif(trajectory_frames(paths[1:], labels, TIMES[1:]), tmp_path / "paths.gif")
    assert len(frames_of(path)[0]) == 30
    assert path.stat().st_size < 500_000


def test_a_snapshot_of_features_is_a_frame_with_its_title_and_the_limits_of_all():
    frames = list(feature_frames([POINTS, 3 * POINTS], LABELS, ["epoch 0", "epoch 1"]))
    assert [frame.axes[0].get_title() for frame in frames] == ["epoch 0", "epoch 1"]
    assert frames[0].axes[0].get_xlim() == frames[1].axes[0].get_xlim()


def test_a_frame_of_trajectories_ends_at_its_time():
    paths = turning_flow(POINTS)
    for i, frame in enumerate(trajectory_frames(paths, LABELS, TIMES)):
        lines, dots = frame.axes[0].collections
        assert {len(segment) for segment in lines.get_segments()} == {i + 1}
        drawn, expected = np.asarray(dots.get_offsets()), paths[i]
        np.testing.assert_allclose(drawn[np.lexsort(drawn.T)], expected[np.lexsort(expected.T)])
        assert frame.axes[0].get_title() == f"$t = {TIMES[i]:.2f}$"


def test_the_camera_turns_around_paths_in_space():
    frames = list(trajectory_frames(lifting_flow(POINTS, LABELS)[::10], LABELS, turn=40))
    assert frames[-1].axes[0].azim - frames[0].axes[0].azim == pytest.approx(40)


def test_of_many_points_some_are_drawn():
    points, labels = disc_and_annulus(1000, 2000)
    (frame,) = feature_frames([points], labels)
    assert len(frame.axes[0].collections[-1].get_offsets()) == 500


def test_what_cannot_be_animated_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="path:"):
        gif(squares(2), tmp_path / "squares.png")
    with pytest.raises(ValueError, match="fps:"):
        gif(squares(2), tmp_path / "squares.gif", fps=100)
    with pytest.raises(ValueError, match="frames: takes at least one frame"):
        gif([], tmp_path / "squares.gif")
    with pytest.raises(ValueError, match=r"frames: takes figures, or arrays of uint8 .* got \('float64', \(4, 4\)\)"):
        gif([np.zeros((4, 4))], tmp_path / "squares.gif")
    with pytest.raises(ValueError, match="frames: takes frames of one size"):
        gif([squares(1)[0], figure(1, 1)], tmp_path / "squares.gif")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="snapshots: takes arrays of one shape"):
        feature_frames([POINTS, POINTS[1:]], LABELS)
    with pytest.raises(ValueError, match="labels:"):
        feature_frames([POINTS], LABELS[1:])
    with pytest.raises(ValueError, match="titles:"):
        feature_frames([POINTS], LABELS, [])
    with pytest.raises(ValueError, match="paths:"):
        trajectory_frames(np.zeros((3, 60, 4)), LABELS)
    with pytest.raises(ValueError, match="times:"):
        trajectory_frames(turning_flow(POINTS), LABELS, TIMES[1:])
