import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from anode.experiments.environment import environment
from anode.experiments.reproduce import FORMAT, draw
from anode.experiments.study import epochs
from anode.experiments.toy.flows import moments, trajectories
from anode.experiments.toy.studies import STUDIES
from anode.experiments.toy.studies.features import costs
from anode.experiments.toy.studies.flows import bends
from anode.report import write_report
from anode.storage import write_json
from helpers.tiny import NOWHERE, PAPER, RUNS

PANELS = {
    "fig01": ["2d", "3d"],
    "fig02": ["2d"],
    "fig03": ["2d"] * 4,
    "fig04": ["2d"],
    "fig05": ["2d"] * 3,
    "fig06": ["2d"] * 6,
    "fig07": ["2d"] * 5 + ["3d"],
    "fig08": ["3d"] * 6 + ["2d"],
    "fig09": ["2d"] * 5,  # with the bar of colours
    "fig15": ["2d"],
    "fig16": ["2d"],
    "fig17": ["2d"] * 12,
    "fig20": ["2d"],
    "fig25": ["2d", "2d", "3d", "3d"],
}
LEGENDS = {
    "fig03": [["solution of the ODE", "Euler, 3 steps"]],
    "fig05": [["ResNet", "NODE"]] * 3,
    "fig07": [["NODE", "ANODE"]] * 2,
    "fig08": [["NODE", "ANODE"]],
    "fig09": [["training", "validation"]] * 2,
    "fig20": [["ResNet", "NODE", "ANODE"]],
}
FILMS = {
    "fig01": ["node", "anode"],
    "fig06": ["features"],
    "fig08": ["features"],
    "fig17": ["separable"],
}
SCENES = {"fig01": 1, "fig07": 1, "fig25": 2}


@pytest.fixture(scope="module")
def results():
    return {name: run.train(None, NOWHERE) for name, run in RUNS.items()}


def short(study, frames=3):
    """A study whose films end after a few frames."""

    def draw(results):
        drawing = study.draw(results)
        drawing.animations = {name: islice(film, frames) for name, film in drawing.animations.items()}
        return drawing

    return replace(study, draw=draw)


def legends(figure) -> list[list[str]]:
    found = [ax.get_legend() for ax in figure.axes]
    return [[text.get_text() for text in legend.get_texts()] for legend in found if legend is not None]


def panels(figure) -> list[str]:
    return ["3d" if ax.name == "3d" else "2d" for ax in figure.axes]


def drawn_in(ax: Axes) -> int:
    return len(ax.lines) + len(ax.collections) + len(ax.patches) + len(ax.texts) + len(ax.images)


def test_every_figure_about_toy_data_has_a_study_in_the_order_of_the_paper():
    assert list(STUDIES) == list(PANELS) == sorted(STUDIES)
    assert all(study.id == name for name, study in STUDIES.items())


def test_studies_use_runs_that_there_are_and_every_run_is_used():
    used = {name for study in STUDIES.values() for name in study.runs}
    assert used == set(PAPER)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_its_panels_and_asks_for_no_other_runs(results, name):
    study = STUDIES[name]
    drawing = study.draw({run: results[run] for run in study.runs})
    assert panels(drawing.figure) == PANELS[name]
    assert legends(drawing.figure) == LEGENDS.get(name, [])
    assert list(drawing.animations) == FILMS.get(name, [])
    assert len(drawing.scenes) == SCENES.get(name, 0)
    assert all(drawn_in(ax) for ax in drawing.figure.axes)
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    titles = [ax.get_title() for ax in drawing.figure.axes]
    if study.runs and name != "fig09":
        assert all(titles)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_written_as_the_report_takes_it(results, name, tmp_path):
    folder = tmp_path / "figures"
    draw(short(STUDIES[name]), results, folder)
    films = [f"{name}-{film}.gif" for film in FILMS.get(name, [])]
    written = sorted(path.name for path in folder.iterdir())
    assert written == sorted([f"{name}.png", f"{name}.svg", f"{name}.json", *films])
    content = json.loads((folder / f"{name}.json").read_text())
    assert content["id"] == name
    assert content["images"] == [f"{name}.png", f"{name}.svg", *films]
    assert [run["run"] for run in content["protocol"]] == list(STUDIES[name].runs)
    for film in films:
        with Image.open(folder / film) as picture:
            assert 1 <= picture.n_frames <= 3
    with Image.open(folder / f"{name}.png") as picture:
        assert min(picture.size) > 200
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10
    marker = {
        "format": FORMAT,
        "title": "One",
        "seed": 0,
        "repeats": 2,
        "studies": [name],
        "claims": [],
        "environment": environment(),
        "timings": [{"name": run, "seconds": 1.0} for run in STUDIES[name].runs],
        "seconds": 1.0,
    }
    write_json(tmp_path / "anode-results.json", marker)
    page = write_report(tmp_path).read_text()
    assert page.count("<img") == 1 + len(films)
    assert page.count("<canvas") == SCENES.get(name, 0)
    assert STUDIES[name].caption[:40] in page


def test_captions_end_with_what_the_runs_show(results):
    nfe = [int(moments(results[name], 6)[0][-1].nfe) for name in ("g-d2-node", "separable-d2-node")]
    assert (
        f"takes {nfe[0]} evaluations on g and {nfe[1]} on the separable data" in STUDIES["fig17"].draw(results).remark
    )
    loss = results["g-d2-anode"].final_loss.mean()
    assert f"ANODE {loss:.2g}." in STUDIES["fig20"].draw(results).remark


@pytest.mark.parametrize(("separable", "says"), [(44, "more than on g"), (32, "32 on the separable data.")])
def test_it_is_said_if_separable_data_cost_more_than_g(separable, says):
    assert says in costs({"g": 38, "separable": separable})


def test_straight_paths_are_as_long_as_the_way_between_their_ends():
    straight = np.linspace(0, 1, 5)[:, None, None] * np.array([[1.0, 2.0], [3.0, 0.0]])
    corner = np.array([[[0.0, 0.0]], [[3.0, 0.0]], [[3.0, 4.0]]])
    assert bends({"a": straight, "b": corner, "c": corner * np.nan}).endswith("its ends: a 1.00; b 1.40; c none.")


def test_a_film_of_training_has_a_frame_for_every_moment(results, tmp_path):
    draw(STUDIES["fig06"], results, tmp_path)
    distinct = len(results["g-d2-node"].history.snapshots)
    with Image.open(tmp_path / "fig06-features.gif") as picture:
        assert picture.n_frames == distinct  # those that are alike are one longer frame


def test_drawing_the_same_results_gives_the_same_bytes(results, tmp_path):
    for folder in ("one", "two"):
        draw(STUDIES["fig05"], results, tmp_path / folder)
    for file in ("fig05.png", "fig05.svg"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_curves_show_the_mean_over_the_repeats(results):
    figure = STUDIES["fig20"].draw(results).figure
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    for label, run in (("ResNet", "g-d2-resnet"), ("NODE", "g-d2-node"), ("ANODE", "g-d2-anode")):
        np.testing.assert_allclose(lines[label].get_ydata(), results[run].history.per_epoch("loss").mean(1))
        np.testing.assert_array_equal(lines[label].get_xdata(), epochs(results[run]))


def test_the_table_of_losses_shows_no_evaluations_for_a_resnet(results):
    drawing = STUDIES["fig05"].draw(results)
    by_name = {row[0]: row[1:] for row in drawing.rows}
    assert by_name["g, d = 1, ResNet"][1:3] == ["", ""]
    assert all("±" in value for value in by_name["g, d = 1, NODE"][:3])
    assert [row[-1] for row in drawing.rows] == ["0"] * 6


def test_a_repeat_that_failed_is_counted_and_leaves_the_others_to_be_drawn(results, tmp_path):
    from anode.train.record import Failure

    hurt = {}
    for name, result in results.items():
        loss = result.history.loss.copy()
        loss[-2:, 1] = np.nan
        validation = result.history.validation.copy()
        validation[-1:, 1:] = np.nan
        failures = [Failure(1, len(loss) - 2, "MAX_STEPS: too many", "MAX_STEPS")]
        hurt[name] = replace(
            result, history=replace(result.history, loss=loss, validation=validation, failures=failures)
        )
    assert [row[-1] for row in STUDIES["fig05"].draw(hurt).rows] == ["1"] * 6
    for name in ("fig03", "fig05", "fig07", "fig09", "fig20"):
        figure = STUDIES[name].draw(hurt).figure
        assert panels(figure) == PANELS[name]


def test_a_run_all_of_whose_repeats_failed_can_be_drawn(results):
    result = results["g-d2-node"]
    loss = result.history.loss.copy()
    loss[-1] = np.nan
    hurt = results | {"g-d2-node": replace(result, history=replace(result.history, loss=loss))}
    assert panels(STUDIES["fig09"].draw(hurt).figure) == PANELS["fig09"]


def test_trajectories_start_at_the_inputs_and_end_at_the_features_of_the_typical_model(results):
    result = results["drawn-d2-anode"]
    paths, labels = trajectories(result, times=7)
    assert paths.shape == (7, 120, 3)
    assert labels.tolist() == [0] * 40 + [1] * 80
    assert not paths[0, :, 2].any()
    assert (np.linalg.norm(paths[0, :40, :2], axis=1) <= 0.5).all()


def test_moments_are_spread_from_the_first_to_the_last(results):
    chosen, titles, labels = moments(results["g-d2-node"], 4)
    assert [s.iteration for s in chosen][:: len(chosen) - 1] == [0, 6]
    assert titles[0].startswith("epoch 0, NFE ")
    assert titles[-1].startswith("epoch 2, NFE ")
    assert len(labels) == len(chosen[0].features) == 400
