import numpy as np
import pytest

from anode.plots import diagrams
from anode.plots.shapes import blob, circle
from anode.plots.style import save

WORDS = {
    "fig02": ["ODE layer", "linear layer", "input", "features", "output"],
    "fig04": ["$r_1$", "$r_2$", "$r_3$", r"$g(\mathbf{x}) = +1$", r"$g(\mathbf{x}) = -1$"],
    "fig15": ["(a)", "(b)", "$A$", "$B$", r"$\phi(A)$", r"$\phi(B)$", "hyperplane"],
    "fig16": ["(a)", "(b)", "(c)", "$D$", r"$\partial D$", r"$L(\mathbf{x}) = C$"],
}


@pytest.mark.parametrize("name", WORDS)
def test_a_diagram_is_drawn_with_its_labels(name, tmp_path):
    made = getattr(diagrams, name)()
    assert set(WORDS[name]) <= {text.get_text() for text in made.axes[0].texts}
    for path in save(made, tmp_path / name):
        assert path.stat().st_size > 10_000


@pytest.mark.parametrize("name", WORDS)
def test_labels_are_within_the_picture_and_apart_from_each_other(name):
    made = getattr(diagrams, name)()
    made.draw_without_rendering()
    width, height = made.bbox.size
    boxes = [text.get_window_extent() for text in made.axes[0].texts]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_a_blob_is_closed_and_has_no_corners():
    outline = blob((1, 2), 0.5, {2: (0.2, 0.3), 3: (0.1, 1.0)})
    np.testing.assert_allclose(outline[0], outline[-1])
    steps = np.diff(np.concatenate([outline, outline[1:2]]), axis=0)
    turns = np.diff(np.unwrap(np.arctan2(*steps.T[::-1])))
    assert np.abs(turns).max() < 0.2


def test_a_circle_is_a_circle():
    np.testing.assert_allclose(np.linalg.norm(circle((1, 2), 0.5) - (1, 2), axis=1), 0.5)
