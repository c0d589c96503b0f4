import json
import re
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from matplotlib.figure import Figure

from anode.data import images
from anode.experiments import workers
from anode.experiments.halves import HALVES, Half, Protocols, image_protocols
from anode.experiments.images.runs import ImageRun
from anode.experiments.images.scales import SCALES
from anode.experiments.images.studies import STUDIES
from anode.experiments.reproduce import MARKER, planned, reproduce
from anode.experiments.runs import load
from anode.experiments.settings import Settings
from anode.experiments.study import Drawing
from anode.report import write_report
from helpers.editing import change
from helpers.folders import state
from helpers.tiny import quiet

SMOKE = image_protocols(SCALES["smoke"])
FIG13 = {"overfit-node", "overfit-anode"}
SMALLER = {"side": 4, "filters": 2, "train_size": 32, "batch_size": 32, "test_size": 16}


def smaller(name: str, repeats: int, seed: int) -> ImageRun:
    """A run of the smoke scale, with even less to do."""
    return replace(SMOKE.run(name, repeats, seed), **SMALLER)


@pytest.fixture
def small(monkeypatch) -> None:
    """Let the scale be less than smoke, and the figures have nothing in them."""
    for name, study in STUDIES.items():
        monkeypatch.setitem(STUDIES, name, replace(study, draw=lambda _: Drawing(Figure(figsize=(1, 1)))))
    half: Half = HALVES["images"]
    smoke = Protocols(2, half.scales["smoke"].note, smaller)
    monkeypatch.setitem(HALVES, "images", replace(half, scales={**half.scales, "smoke": smoke}))


def again(folder: Path, *figures: str, **changes) -> dict:
    settings = Settings(figures, folder, scale="smoke", jobs=1)
    return reproduce(planned(replace(settings, **changes)), quiet())[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A figure, as it is at the smoke scale: the content of the results file, and the folder."""
    folder = tmp_path_factory.mktemp("images") / "results"
    return again(folder, "fig13", repeats=1), folder


def test_a_figure_about_images_is_made_with_its_claims_and_a_report(made):
    content, folder = made
    assert json.loads((folder / MARKER).read_text()) == content
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, "figures", "report.html", "runs"]
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["fig13.json", "fig13.png", "fig13.svg"]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == sorted(
        f"{name}.{suffix}" for name in FIG13 for suffix in ("json", "safetensors")
    )
    assert content["title"] == HALVES["images"].title
    assert {key: content[key] for key in ("half", "scale", "repeats", "seed")} == {
        "half": "images",
        "scale": "smoke",
        "repeats": 1,
        "seed": 0,
    }
    assert (content["studies"], content["failures"]) == (["fig13"], [])
    assert {timing["name"] for timing in content["timings"]} == FIG13
    (claim,) = content["claims"]
    assert (claim["number"], claim["figure"], claim["verdict"]) == (15, "fig13", "inconclusive")
    assert claim["test"].startswith("true in 0 of 1 repeats")
    page = (folder / "report.html").read_text()
    assert 'id="fig13"' in page
    assert "Overfitting" in page


def test_the_numbers_of_a_figure_are_those_of_its_runs(made):
    _, folder = made
    found = json.loads((folder / "figures" / "fig13.json").read_text())
    assert [run["run"] for run in found["protocol"]] == ["overfit-node", "overfit-anode"]
    for row, name in zip(found["numbers"]["rows"], ("overfit-node", "overfit-anode"), strict=True):
        run = SMOKE.run(name, 1, 0)
        result = load(run, folder / "runs")
        assert row[1] == f"{run.parameters:,}"
        assert row[2] == f"{float(result.history.loss[-1, 0]):.3g}"
        cells = dict(zip(found["numbers"]["columns"], row, strict=True))
        assert cells["certified tolerance"] != "not certified"
        assert cells["test accuracy"] == f"{100 * result.history.validation_accuracy[-1, 0]:.1f} %"


def test_the_results_say_how_they_differ_from_the_paper(made):
    content, _ = made
    assert content["note"] == SCALES["smoke"].reduced


def test_the_report_says_how_the_results_differ_from_the_paper(made):
    _, folder = made
    assert "Every dataset is replaced by scikit-learn" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "change", [{"scale": "small"}, {"scale": "paper"}, {"scale": None}, {"repeats": 2}, {"figures": ["fig03"]}], ids=str
)
def test_results_of_something_else_are_refused_in_the_same_folder(made, change):
    _, folder = made
    before = state(folder)
    if "figures" in change:
        change = {**change, "scale": None}
    with pytest.raises(ValueError, match=r"out: .* has results of images at scale smoke \(repeats 1"):
        again(folder, **{"figures": ["fig13"], "repeats": 1, **change})
    assert state(folder) == before


def test_done_again_nothing_is_trained(made, tmp_path, monkeypatch):
    first, folder = made[0], copytree(made[1], tmp_path / "copy")
    before = state(folder / "runs")
    monkeypatch.setattr(workers, "do_run", lambda *_: 1 / 0)
    second = again(folder, "fig13", repeats=1)
    assert state(folder / "runs") == before
    assert second["claims"] == first["claims"]
    assert write_report(folder).exists()


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (
            ["fig13", "fig03"],
            "figure: takes figures of the same half of the paper as fig13, which is 'images', got 'fig03'",
        ),
        (["toy", "images"], "figure: takes figures of the same half of the paper as toy, which is 'toy', got 'images'"),
        (
            ["fig07", "table1"],
            "figure: takes figures of the same half of the paper as fig07, which is 'toy', got 'table1'",
        ),
    ],
    ids=str,
)
def test_figures_of_both_halves_are_refused_together(tmp_path, figures, message):
    with pytest.raises(ValueError) as error:
        again(tmp_path / "out", *figures, scale=None)
    assert str(error.value) == message
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("repeats", [None, 2])
@pytest.mark.parametrize(
    ("figure", "scale", "message"),
    [
        ("fig13", "smok", "scale: takes one of small, smoke, medium, paper, got 'smok'; did you mean 'smoke'"),
        ("fig03", "smoke", "scale: takes one of paper, got 'smoke'"),
    ],
    ids=["images", "toy"],
)
def test_a_scale_that_there_is_not_is_refused(tmp_path, repeats, figure, scale, message):
    with pytest.raises(ValueError, match=message):
        again(tmp_path / "out", figure, scale=scale, repeats=repeats)
    assert not any(tmp_path.iterdir())


def test_what_is_not_said_is_as_the_scale_has_it():
    work = planned(Settings(("images",)))
    assert (work.half.name, work.scale, work.repeats, work.out) == ("images", "small", 5, Path("results/mine/images"))
    assert [study.id for study in work.studies] == list(HALVES["images"].studies)
    assert list(work.claims) == list(HALVES["images"].claims)
    work = planned(Settings(("table1", "FIG13"), scale="smoke"))
    assert (work.repeats, [study.id for study in work.studies]) == (2, ["table1", "fig13"])
    assert [claim.number for claim in work.claims] == [14, 15]
    assert SMOKE.run("mnist-node", 2, 0) in work.runs


@pytest.mark.usefixtures("small")
def test_runs_read_the_images_of_the_root_that_was_given(tmp_path, monkeypatch):
    asked = []
    real = images.load
    monkeypatch.setattr(images, "load", lambda name, split, root: asked.append(root) or real(name, split, root))
    again(tmp_path / "out", "fig13", root=tmp_path)
    assert set(asked) == {tmp_path}


def interrupt_in_training(monkeypatch, after: int) -> None:
    """Ctrl-C after so many reports of all runs."""
    reports = []
    real = workers.do_run

    def interrupted(run, tell, folder, place):
        def told(report):
            reports.append(report)
            if len(reports) == after:
                raise KeyboardInterrupt

        return real(run, told, folder, place)

    monkeypatch.setattr(workers, "do_run", interrupted)


@pytest.fixture
def reports(monkeypatch) -> list:
    """All reports of progress."""
    seen = []
    real = workers.do_run

    def noted(run, tell, folder, place):
        return real(run, lambda report: (seen.append((run.name, report.done)), tell(report)), folder, place)

    monkeypatch.setattr(workers, "do_run", noted)
    return seen


@pytest.mark.usefixtures("small")
def test_interrupted_in_the_middle_of_a_run_it_goes_on_there_to_the_same_bits(tmp_path, monkeypatch, reports):
    with monkeypatch.context() as patch:
        interrupt_in_training(patch, 8)  # in the second repeat of the first run
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path / "out", "fig13")
    runs = tmp_path / "out" / "runs"
    assert [path.name for path in runs.iterdir()] == ["overfit-node.part"]
    assert not (tmp_path / "out" / "report.html").exists()
    reports.clear()
    content = again(tmp_path / "out", "fig13")
    assert reports[0] == ("overfit-node", 9)
    assert len(reports) == 2 * 12 - 8
    assert not list(runs.glob("*.part"))
    whole = again(tmp_path / "whole", "fig13")
    assert content["claims"] == whole["claims"]
    for name in FIG13:
        one, other = (load(smaller(name, 2, 0), tmp_path / folder / "runs").history for folder in ("out", "whole"))
        for series in ("loss", "nfe", "accuracy", "validation", "validation_accuracy"):
            np.testing.assert_array_equal(getattr(one, series), getattr(other, series))


@pytest.mark.usefixtures("small")
def test_without_resuming_what_was_unfinished_is_begun_again(tmp_path, monkeypatch, reports):
    with monkeypatch.context() as patch:
        interrupt_in_training(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path, "fig13")
    reports.clear()
    again(tmp_path, "fig13", resume=False)
    assert [done for name, done in reports if name == "overfit-node"] == list(range(1, 13))


def test_nothing_is_removed_or_made_if_data_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("ANODE_DATA", str(tmp_path / "empty"))
    smoke = Settings(("fig13",), tmp_path / "out", repeats=1, scale="smoke", jobs=1)
    reproduce(planned(smoke), quiet())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    small = replace(smoke, scale="small", resume=False)
    with pytest.raises(FileNotFoundError, match=r"mnist: needs .*; anode data fetch mnist downloads it"):
        reproduce(planned(small), quiet())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(FileNotFoundError, match="anode data fetch mnist --root nowhere downloads it"):
        reproduce(planned(replace(small, out=tmp_path / "new", root=Path("nowhere"))), quiet())
    assert not (tmp_path / "new").exists()


def test_a_run_of_another_protocol_is_refused_and_kept(tmp_path):
    smoke = Settings(("fig13",), tmp_path, repeats=1, scale="smoke", jobs=1)
    reproduce(planned(smoke), quiet())
    path = tmp_path / "runs" / "overfit-node.json"
    change(path, '"lr": 0.001', '"lr": 0.002')
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"overfit-node\.json has another protocol than this version; give another"):
        reproduce(planned(smoke), quiet())
    assert path.read_bytes() == before
    reproduce(planned(replace(smoke, resume=False)), quiet())
    assert path.read_bytes() != before


def test_other_epochs_are_another_experiment(made, tmp_path):
    content, folder = made
    assert content["epochs"] is None
    with pytest.raises(ValueError, match=r"seed 0\), not of images at .* \(repeats 1, seed 0, epochs 3\); "):
        again(folder, "fig13", repeats=1, epochs=3)
    work = planned(Settings(("table1",), tmp_path, scale="smoke", epochs=3))
    assert {run.epochs for run in work.runs} == {3}
    assert work.identity["epochs"] == 3
    assert work.protocols.note.endswith("With --epochs 3, models train for 3 epochs, except those that overfit.")


@pytest.mark.parametrize(
    ("figure", "scale", "epochs", "message"),
    [
        ("fig03", None, 3, "epochs: takes no value for 'toy', got 3; only images have them"),
        ("fig13", "smoke", 0, "epochs: takes a whole number above 0, got 0"),
    ],
)
def test_epochs_that_cannot_be_are_refused(tmp_path, figure, scale, epochs, message):
    with pytest.raises(ValueError) as error:
        again(tmp_path / "out", figure, scale=scale, epochs=epochs)
    assert str(error.value) == message
    assert not any(tmp_path.iterdir())


def test_results_of_earlier_versions_which_have_no_epochs_are_added_to(made, tmp_path, monkeypatch):
    folder = copytree(made[1], tmp_path / "copy")
    content = json.loads((folder / MARKER).read_text())
    del content["epochs"]
    (folder / MARKER).write_text(json.dumps(content))
    monkeypatch.setattr(workers, "do_run", lambda *_: 1 / 0)
    assert again(folder, "fig13", repeats=1)["claims"] == made[0]["claims"]


@pytest.fixture
def fewer(monkeypatch) -> None:
    """Let a table of the smoke scale ask for all digits, of which the training file has only 100."""
    digits = images.IMAGES["digits"]

    def part(folder, split):
        x, y = digits.read(folder, split)
        return (x[:100], y[:100]) if split == "train" else (x, y)

    monkeypatch.setitem(images.IMAGES, "digits", replace(digits, read=part))
    half = HALVES["images"]

    def whole(name: str, repeats: int, seed: int) -> ImageRun:
        return replace(smaller(name, repeats, seed), train_size=1442, epochs=1)

    scales = {**half.scales, "smoke": Protocols(1, "a note.", whole)}
    monkeypatch.setitem(HALVES, "images", replace(half, scales=scales))


@pytest.mark.usefixtures("small", "fewer")
def test_where_a_file_has_fewer_images_those_are_used_and_the_results_say_so(tmp_path):
    content = again(tmp_path / "out", "fig13", repeats=1)
    assert content["note"] == "a note. The train split of digits used here has 100 images, not the official 1,442."
    study = json.loads((tmp_path / "out" / "figures" / "fig13.json").read_text())
    assert {run["data"] for run in study["protocol"]} == {"digits, 4x4, 100 of 1442 images, 16 of 355 to test"}
    protocol = json.loads((tmp_path / "out" / "runs" / "overfit-node.json").read_text())["protocol"]
    assert protocol["train_size"] == 100


@pytest.mark.usefixtures("small", "fewer")
def test_what_an_earlier_command_lacked_is_still_said_after_a_command_that_lacks_nothing(tmp_path, monkeypatch):
    first = again(tmp_path / "out", "fig13", repeats=1)
    real = ImageRun.with_data
    monkeypatch.setattr(ImageRun, "with_data", lambda run, root: (real(run, root)[0], ""))
    assert again(tmp_path / "out", "fig12", repeats=1)["note"] == first["note"]


@pytest.mark.usefixtures("small")
def test_the_same_command_says_a_forecast_and_a_line_for_every_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr("anode.experiments.images.runs.WORTH_MEASURING", 0)
    bars = quiet()
    settings = Settings(("fig13",), tmp_path / "out", scale="smoke", jobs=1, repeats=1)
    reproduce(planned(settings), bars)
    lines = bars.console.file.getvalue().splitlines()
    assert re.fullmatch(r"about [\d.]+ s for all runs: overfit-(a?)node [\d.]+ s, overfit-(a?)node [\d.]+ s", lines[0])
    looked = [line for line in lines if ": iteration " in line]
    assert len(looked) == 2 * planned(settings).runs[0].evaluations
    assert looked[-1].endswith("about 0 s left, 0 s for all runs")
