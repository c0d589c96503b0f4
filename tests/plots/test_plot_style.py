import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from anode.plots.features import scatter
from anode.plots.flows import flow_2d, flow_3d
from anode.plots.style import (
    CLASS_COLORS,
    MODEL_COLORS,
    STYLE,
    clean,
    figure,
    legend,
    save,
    shades,
    shared_legend,
    whole_ticks,
)
from helpers.synthetic import disc_and_annulus, lifting_flow, turning_flow

POINTS, LABELS = disc_and_annulus()

# Machado, Oliveira and Fernandes (2009), severity 1: what linear RGB looks like without one kind of cone.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def oklab(color, blindness):
    """Coordinates in which distances are differences as seen, after a simulation of colour blindness."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLINDNESS[blindness]) @ linear, 0, 1)
    to_cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    to_cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    to_lab = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
    to_lab.append([0.0259040371, 0.7827717662, -0.808675766])
    return np.array(to_lab) @ np.cbrt(np.array(to_cones) @ seen)


def flows():
    made = figure(7, 3.5, columns=2, three_d=[1])
    flow_2d(made.axes[0], turning_flow(POINTS), LABELS)
    flow_3d(made.axes[1], lifting_flow(POINTS, LABELS), LABELS)
    made.axes[0].set_title(r"$\phi(x)$")
    return made


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("colors", [CLASS_COLORS, tuple(MODEL_COLORS.values()), tuple(shades(4))])
def test_colours_stay_apart_for_colour_blind_readers(colors, blindness):
    seen = [oklab(color, blindness) for color in colors]
    for i, one in enumerate(seen):
        for other in seen[:i]:
            assert np.linalg.norm(one - other) > 0.1


def test_a_figure_has_the_axes_it_was_asked_for():
    made = figure(6, 4, 2, 3, three_d=[4])
    assert made.get_size_inches().tolist() == [6, 4]
    assert [ax.name for ax in made.axes] == ["rectilinear"] * 4 + ["3d"] + ["rectilinear"]
    assert figure(6, 4, rows=0).axes == []


def test_axes_have_no_top_and_right_spines_however_they_were_made():
    by_hand = figure(rows=0)
    for ax in (figure().axes[0], clean(by_hand.add_axes((0, 0, 1, 1)))):
        assert [side for side, spine in ax.spines.items() if spine.get_visible()] == ["left", "bottom"]


def test_many_figures_may_be_open():
    assert len([figure(1, 1) for _ in range(30)]) == 30


def test_a_legend_takes_options():
    (ax,) = figure().axes
    ax.plot([0, 1], label="$p$")
    legend(ax, title="title")
    assert ax.get_legend().get_title().get_text() == "title"


@pytest.mark.parametrize(("labels", "width"), [(["NODE", "ANODE"], 4), (["NODE", "ANODE with a NODE's layer", "p"], 4)])
def test_a_shared_legend_is_no_wider_than_its_figure(labels, width):
    made = figure(width, 3)
    for i, label in enumerate(labels):
        made.axes[0].plot([0, 1], [0, i], label=label)
    shared_legend(made)
    made.canvas.draw()
    (above,) = made.legends
    assert [text.get_text() for text in above.get_texts()] == labels
    assert above.get_window_extent().width <= width * made.dpi


def test_the_same_figure_is_saved_as_the_same_bytes_twice(tmp_path):
    made = flows()
    first, second = save(made, tmp_path / "first"), save(made, tmp_path / "second")
    assert [path.name for path in first] == ["first.png", "first.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_figure_made_again_is_saved_as_the_same_bytes(tmp_path):
    first, second = save(flows(), tmp_path / "first"), save(flows(), tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_name_with_a_dot_keeps_it(tmp_path):
    assert [path.name for path in save(figure(1, 1), str(tmp_path / "a.b"), ["svg"])] == ["a.b.svg"]


def test_the_suffix_of_a_path_is_the_format(tmp_path):
    assert save(figure(1, 1), tmp_path / "a.pdf") == [tmp_path / "a.pdf"]
    assert save(figure(1, 1), tmp_path / "b.png", ["png", "svg"]) == [tmp_path / "b.png", tmp_path / "b.svg"]
    with pytest.raises(ValueError, match=r"formats: takes a list, such as \['pdf'\], got 'pdf'"):
        save(figure(1, 1), tmp_path / "c", "pdf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pdf", "b.png", "b.svg"]


def test_text_in_svg_is_text_and_formulas_have_fonts_to_fall_back_to(tmp_path):
    made = figure(3, 3)
    made.axes[0].set(xlabel="epoch", ylabel=r"$\phi(x)$")
    (path,) = save(made, tmp_path / "text", ["svg"])
    content = path.read_text(encoding="utf-8")
    assert ">epoch</text>" in content
    assert "\N{GREEK PHI SYMBOL}" in content
    assert re.findall(r"font-family: '[^,;\"]*(?=[;\"])", content) == []


def test_big_scatters_are_images_in_svg_and_small_ones_are_not(tmp_path):
    for count, images in ((100, 0), (3000, 1)):
        points, labels = disc_and_annulus(count // 3, count - count // 3)
        made = figure(3, 3)
        scatter(made.axes[0], points, labels)
        (path,) = save(made, tmp_path / str(count), ["svg"])
        assert path.read_text(encoding="utf-8").count("<image") == images


def test_nothing_is_left_of_the_style_in_matplotlibs_settings(tmp_path):
    before = dict(mpl.rcParams)
    save(flows(), tmp_path / "flows", ["png"])
    assert dict(mpl.rcParams) == before
    assert set(STYLE) <= set(before)


def test_an_unknown_format_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="formats: takes one of png, svg, pdf, got 'pgn'; did you mean 'png'"):
        save(figure(1, 1), tmp_path / "a", ["pgn"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.jpg", "a.PNG", "a.tiff"])
def test_a_suffix_of_a_picture_that_is_not_written_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"path: takes a name that ends in \.png, \.svg or \.pdf, got"):
        save(figure(1, 1), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_dot_has_no_suffix(tmp_path):
    assert [path.name for path in save(figure(1, 1), tmp_path / "flow.v2", ["png"])] == ["flow.v2.png"]


def test_shades_need_a_count_and_a_model():
    with pytest.raises(ValueError, match="count:"):
        shades(0)
    with pytest.raises(ValueError, match="model:"):
        shades(2, "VGG")


@pytest.mark.parametrize("limits", [(0.2, 3.1), (13.3, 14.7), (0.0, 0.9), (0.0, 60_000.0)])
def test_whole_ticks_are_at_whole_numbers_alone(limits):
    ax = figure().axes[0]
    ax.set_xlim(*limits)
    whole_ticks(ax.xaxis)
    assert len(ax.get_xticks()) >= 1
    assert all(tick == round(tick) for tick in ax.get_xticks())
