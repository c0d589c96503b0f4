import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from PIL import Image

from anode.experiments.certificates import Certificates
from anode.experiments.images import panels
from anode.experiments.images.curves import COLUMNS, percent, windows
from anode.experiments.images.reported import TABLE1
from anode.experiments.images.studies import STUDIES
from anode.experiments.reproduce import draw
from anode.experiments.study import mean_std
from anode.plots.style import MODEL_COLORS
from anode.train.record import Failure
from helpers.made_up import RUNS, made, result_of

PANELS = {
    "fig10": 6,
    "fig11": 3,
    "fig12": 4,
    "fig13": 2,
    "fig14": 2,
    "fig18": 6,
    "fig19": 2,
    "fig21": 3,
    "fig22": 2,
    "fig23": 3,
    "fig24": 3,
    "svhn": 3,
    "channels": 3,
    "heads": 4,
    "table1": 1,
}
PAIR = ["NODE", "ANODE"]
PS = [f"p = {p}" for p in (0, 1, 2, 5, 10)]
MODELS = {
    "fig10": PS,
    "fig19": ["NODE", "NODE, weight decay", "ANODE", "ANODE, weight decay"],
    "svhn": PS,
    "channels": ["p = 0", "p = 10", "p = 100"],
    "heads": [*PAIR, "ANODE with a NODE's linear layer"],
    "table1": [*PAIR, "ANODE with a NODE's linear layer", "paper"],
}
ROWS = {
    "fig10": [f"{data}, {p}" for data in ("MNIST", "CIFAR10") for p in PS],
    "fig11": [f"{data}, {model}" for data in ("MNIST", "CIFAR10", "SVHN") for model in PAIR],
    "fig12": [f"{data}, {model}" for data in ("MNIST", "CIFAR10") for model in PAIR],
    "fig13": ["a few images of MNIST, NODE", "a few images of MNIST, ANODE"],
    "fig14": ["Tiny ImageNet, NODE", "Tiny ImageNet, ANODE"],
    "fig18": [f"{data}, {model}" for data in ("MNIST", "CIFAR10") for model in PAIR],
    "fig19": [f"MNIST, {model}" for model in MODELS["fig19"]],
    "fig21": [f"{data}, {model}" for data in ("MNIST", "CIFAR10", "SVHN") for model in PAIR],
    "fig22": ["SVHN, NODE", "SVHN, ANODE"],
    "fig23": ["SVHN, NODE", "SVHN, ANODE"],
    "svhn": [f"SVHN, {p}" for p in PS],
    "fig24": ["Tiny ImageNet, NODE", "Tiny ImageNet, ANODE"],
    "channels": [f"MNIST, {p}" for p in MODELS["channels"]],
    "heads": [f"{data}, {model}" for data in ("MNIST", "CIFAR10") for model in MODELS["heads"]],
    "table1": [f"{data}, {model}" for data in ("MNIST", "CIFAR10", "SVHN") for model in MODELS["heads"]],
}
each_study = pytest.mark.parametrize("name", STUDIES)


def noisy(name: str, seed: int):
    """A result with other numbers in every place."""
    draws = np.random.default_rng(seed)
    result = result_of(name, [made()] * 3)
    history = result.history
    for series, low, high in (
        ("loss", 0.1, 2.0),
        ("accuracy", 0.1, 0.9),
        ("validation", 0.1, 2.0),
        ("validation_accuracy", 0.1, 0.9),
    ):
        values = getattr(history, series)
        values[:] = draws.uniform(low, high, values.shape)
    history.nfe[:] = 2 + 6 * draws.integers(2, 30, history.nfe.shape)
    return result


@pytest.fixture(scope="module")
def results():
    return {name: noisy(name, seed) for seed, name in enumerate(RUNS)}


@pytest.fixture(scope="module")
def drawn(results):
    """Draws a study from the runs it asks for, once for all tests."""
    return cache(lambda name: STUDIES[name].draw({run: results[run] for run in STUDIES[name].runs}))


def hurt(result, repeats, iterations=slice(None)):
    """A result some of whose repeats failed in some iterations, and at the end on the test images."""
    history = replace(
        result.history,
        **{name: getattr(result.history, name).copy() for name in ("loss", "accuracy", "validation")},
        validation_accuracy=result.history.validation_accuracy.copy(),
        failures=[Failure(repeat, 3, "MAX_STEPS: too many", "MAX_STEPS") for repeat in repeats],
    )
    for repeat in repeats:
        history.loss[iterations, repeat] = history.accuracy[iterations, repeat] = np.nan
        history.validation[-1, repeat] = history.validation_accuracy[-1, repeat] = np.nan
    return replace(result, history=history)


def lines(ax) -> dict:
    """The lines that the legend names."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_every_figure_and_table_about_images_has_a_study():
    assert {name for name in STUDIES if name.startswith("fig")} == {
        f"fig{number}" for number in (10, 11, 12, 13, 14, 18, 19, 21, 22, 23, 24)
    }
    assert set(STUDIES) == set(PANELS) == set(ROWS)
    for name, study in STUDIES.items():
        assert study.id == name
        assert study.title
        assert study.caption.endswith(".")


@each_study
def test_a_study_of_images_has_its_panels_and_asks_for_no_other_runs(drawn, name):
    study, drawing = STUDIES[name], drawn(name)
    assert len(set(study.runs)) == len(study.runs)
    assert len(drawing.figure.axes) == PANELS[name]
    for ax in drawing.figure.axes:
        assert list(lines(ax)) == MODELS.get(name, PAIR)
        assert ax.get_ylabel()
    legends = [ax.get_legend() for ax in drawing.figure.axes] if name == "table1" else drawing.figure.legends
    (legend,) = legends
    assert [text.get_text() for text in legend.get_texts()] == MODELS.get(name, PAIR)
    if name != "table1":
        assert all(ax.get_legend() is None for ax in drawing.figure.axes)
        assert all(ax.get_title() and ax.get_xlabel() for ax in drawing.figure.axes)


@each_study
def test_the_table_of_a_study_has_a_row_for_every_run(results, drawn, name):
    study, drawing = STUDIES[name], drawn(name)
    assert [row[0] for row in drawing.rows] == ROWS[name]
    assert len(study.runs) == len(drawing.rows)
    expected = [*COLUMNS, "paper"] if name == "table1" else COLUMNS
    assert drawing.columns == expected
    for row, run in zip(drawing.rows, study.runs, strict=True):
        result = results[run]
        history = result.history
        assert row[1:10] == [
            f"{result.run.parameters:,}",
            mean_std(history.loss[-10:].astype(float).mean(0)),
            mean_std(history.nfe[:10].mean(0)),
            mean_std(history.nfe[-10:].mean(0)),
            "not certified",
            "",
            mean_std(history.validation[-1]),
            percent(history.validation_accuracy[-1]),
            "0",
        ]


def test_the_table_has_the_evaluations_at_the_tolerance_that_models_of_the_same_data_share(results):
    study = STUDIES["fig18"]
    certified = {}
    for i, name in enumerate(study.runs):
        made = Certificates((1e-2, 1e-3), np.full(3, 1e-2 if i else 1e-3), np.full((2, 3), [[20.0], [30.0 + i]]))
        certified[name] = replace(results[name], certificates={"last": made})
    at = COLUMNS.index("certified tolerance")
    assert [row[at : at + 2] for row in study.draw(results | certified).rows] == [
        ["1e-03 (1e-03 to 1e-03)", "median 30; 30 ± 0"],
        ["1e-03 (1e-03 to 1e-03)", "median 31; 31 ± 0"],
        ["1e-02 (1e-02 to 1e-02)", "median 20; 20 ± 0"],
        ["1e-02 (1e-02 to 1e-02)", "median 20; 20 ± 0"],
    ]


def test_parameters_in_the_table_are_those_with_time_and_of_all_classes(drawn):
    rows = {row[0]: row[1] for name in ("fig14", "fig18") for row in drawn(name).rows}
    assert rows == {
        "MNIST, NODE": "85,316",
        "MNIST, ANODE": "85,462",
        "CIFAR10, NODE": "173,611",
        "CIFAR10, ANODE": "172,452",
        "Tiny ImageNet, NODE": "2,702,822",
        "Tiny ImageNet, ANODE": "6,592,472",
    }


def test_curves_of_training_are_means_over_stretches_and_repeats(results, drawn):
    loss, nfe, against = drawn("svhn").figure.axes
    for p in (0, 1, 2, 5, 10):
        result = results[f"svhn-p{p}"]
        history = result.history
        mean = history.loss.reshape(25, 4, 3).mean(1, dtype=float)
        evaluations = history.nfe.reshape(25, 4, 3).mean(1)
        line = lines(loss)[f"p = {p}"]
        assert line.get_xdata().tolist() == list(range(4, 101, 4))
        np.testing.assert_allclose(line.get_ydata(), mean.mean(1))
        np.testing.assert_allclose(lines(nfe)[f"p = {p}"].get_ydata(), evaluations.mean(1))
        np.testing.assert_allclose(lines(against)[f"p = {p}"].get_xdata(), evaluations.mean(1))
        np.testing.assert_allclose(lines(against)[f"p = {p}"].get_ydata(), mean.mean(1))
    assert [ax.get_yscale() for ax in (loss, nfe, against)] == ["log", "linear", "log"]
    assert (nfe.get_xlabel(), against.get_xlabel()) == ("iteration", "function evaluations")


def test_curves_on_test_images_are_what_was_seen_when(results, drawn):
    loss, accuracy = drawn("fig22").figure.axes
    for label, run in (("NODE", "svhn-node"), ("ANODE", "svhn-p10")):
        history = results[run].history
        assert lines(loss)[label].get_xdata().tolist() == [34, 68, 100]
        np.testing.assert_allclose(lines(loss)[label].get_ydata(), history.validation.mean(1), rtol=1e-6)
        np.testing.assert_allclose(lines(accuracy)[label].get_ydata(), history.validation_accuracy.mean(1), rtol=1e-6)
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("test loss", "test accuracy")


def test_accuracies_are_drawn_where_they_are_asked_for(results, drawn):
    for ax, data, p in zip(drawn("fig21").figure.axes, TABLE1, (5, 10, 10), strict=True):
        for label, run in (("NODE", f"{data}-node"), ("ANODE", f"{data}-p{p}")):
            np.testing.assert_allclose(lines(ax)[label].get_ydata(), windows(results[run], "accuracy")[1].mean(1))


def test_more_channels_are_other_colours_and_none_is_a_nodes(drawn):
    ax = drawn("fig10").figure.axes[0]
    colors = [line.get_color() for line in lines(ax).values()]
    assert len(set(colors)) == 5
    assert colors[0] == MODEL_COLORS["NODE"]
    assert lines(drawn("fig18").figure.axes[0])["NODE"].get_color() == MODEL_COLORS["NODE"]


def test_the_table_is_drawn_beside_the_papers_numbers(results, drawn):
    drawing = drawn("table1")
    assert [row[-1] for row in drawing.rows if row[-1]] == [f"{value} %" for pair in TABLE1.values() for value in pair]
    assert [row[0] for row in drawing.rows if not row[-1]] == [row for row in ROWS["table1"] if "linear layer" in row]
    ax = drawing.figure.axes[0]
    diamonds = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "D" and len(line.get_ydata())]
    assert diamonds == [96.4, 98.2, 53.7, 60.6, 81.0, 83.5]
    found = [line.get_ydata() for line in ax.lines if line.get_marker() == "o"]
    runs = [results[run].history.validation_accuracy[-1] for run in STUDIES["table1"].runs]
    np.testing.assert_allclose(found, 100 * np.array(runs), rtol=1e-6)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["MNIST", "CIFAR10", "SVHN"]


@pytest.mark.parametrize("name", ["fig12", "fig13", "fig24", "table1"])  # with all kinds of panels
@pytest.mark.parametrize("failed", ["one repeat", "all repeats", "all repeats of all runs", "a stretch"])
def test_what_failed_is_counted_and_leaves_the_rest_to_be_drawn(results, name, failed):
    study = STUDIES[name]
    whom = study.runs if failed == "all repeats of all runs" else study.runs[:1]
    repeats = [1] if failed == "one repeat" else [0, 1, 2]
    iterations = slice(40, 48) if failed == "a stretch" else slice(None)
    broken = results | {run: hurt(results[run], repeats, iterations) for run in whom}
    drawing = study.draw(broken)
    drawing.figure.draw_without_rendering()
    skipped = COLUMNS.index("skipped")
    assert [row[skipped] for row in drawing.rows] == [str(len(repeats)) if run in whom else "0" for run in study.runs]
    assert not any("nan" in value for row in drawing.rows for value in row)
    if failed in ("all repeats", "all repeats of all runs"):
        assert drawing.rows[0][2] == "in none of 3 repeats"


@pytest.mark.parametrize("name", ["fig13", "table1"])
def test_a_study_of_images_is_written_as_the_report_takes_it(results, name, tmp_path):
    draw(STUDIES[name], results, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.json", f"{name}.png", f"{name}.svg"]
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert [run["run"] for run in content["protocol"]] == list(STUDIES[name].runs)
    assert [row[0] for row in content["numbers"]["rows"]] == ROWS[name]
    with Image.open(tmp_path / f"{name}.png") as picture:
        assert min(picture.size) > 200
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10


def test_a_run_that_several_panels_show_is_listed_once_as_it_is_first_called(results):
    study = panels.panelled(
        "any",
        "Any",
        "Any.",
        [
            [
                panels.Panel("loss", "left", {"first": "mnist-p0", "other": "mnist-p1"}),
                panels.Panel("NFE", "right", {"second": "mnist-p0"}),
            ]
        ],
    )
    assert study.runs == ("mnist-p0", "mnist-p1")
    drawing = study.draw(results)
    assert sorted(row[0] for row in drawing.rows) == ["left, first", "left, other"]
    assert [ax.get_title() for ax in drawing.figure.axes] == ["left", "right"]
