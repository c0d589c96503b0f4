import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from anode.experiments import workers
from anode.experiments.reproduce import MARKER, planned, reproduce
from anode.experiments.runs import Run, load
from anode.experiments.settings import Settings
from anode.experiments.study import Drawing
from anode.experiments.toy import protocols
from anode.experiments.toy.runs import ToyRun
from anode.experiments.toy.studies import STUDIES
from anode.files import DamagedFileError, locked, temporary
from anode.storage import read_json
from anode.train.record import Failure
from helpers.folders import state
from helpers.tiny import RUNS, quiet, same

FIG03 = {"map-identity", "map-g"}
FIG20 = {"g-d2-resnet", "g-d2-node", "g-d2-anode"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(protocols, "RUNS", RUNS)


@pytest.fixture(autouse=True)
def bare(request, monkeypatch):
    """Figures with nothing in them, which are quick to write, but for tests of the real ones."""
    if request.node.originalname != "test_figures_claims_and_report_are_written":
        for name, study in STUDIES.items():
            monkeypatch.setitem(STUDIES, name, replace(study, draw=lambda _: Drawing(Figure(figsize=(1, 1)))))


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of the runs that are trained, as they are begun."""
    names = []
    real = workers.do_run

    def noted(run, tell, folder, place):
        names.append(run.name)
        return real(run, tell, folder, place)

    monkeypatch.setattr(workers, "do_run", noted)
    return names


def again(folder: Path, *figures: str, **changes) -> dict:
    settings = Settings(figures, folder, repeats=2, jobs=1)
    return reproduce(planned(replace(settings, **changes)), quiet())[0]


def interrupt_after(monkeypatch, count: int) -> None:
    begun = []
    real = workers.do_run

    def interrupted(run: Run, tell, folder, place):
        begun.append(run.name)
        if len(begun) > count:
            raise KeyboardInterrupt
        return real(run, tell, folder, place)

    monkeypatch.setattr(workers, "do_run", interrupted)


def test_figures_claims_and_report_are_written(tmp_path, trained):
    content = again(tmp_path / "new" / "results", "fig03")
    folder = tmp_path / "new" / "results"
    assert set(trained) == FIG03
    assert read_json(folder / MARKER) == content
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, "figures", "report.html", "runs"]
    assert (content["seed"], content["repeats"], content["studies"]) == (0, 2, ["fig03"])
    assert [claim["number"] for claim in content["claims"]] == [1, 2]
    assert {timing["name"] for timing in content["timings"]} == FIG03
    assert content["failures"] == []
    assert "Trajectories in one dimension" in (folder / "report.html").read_text()
    assert not list(folder.rglob(".*"))


def test_a_figure_without_runs_trains_nothing(tmp_path, trained):
    content = again(tmp_path / "out", "fig02", "fig04")
    assert trained == []
    assert content["studies"] == ["fig02", "fig04"]
    assert content["claims"] == []


def test_runs_that_several_figures_or_claims_need_are_trained_once(tmp_path, trained):
    again(tmp_path / "out", "fig20", "fig05", "fig20")
    assert sorted(trained) == sorted(set(trained))
    assert set(trained) >= FIG20


def test_the_longest_runs_are_begun_first(tmp_path, trained):
    again(tmp_path / "out", "fig20")
    assert trained == ["g-d2-node", "g-d2-anode", "g-d2-resnet"]


def test_done_again_nothing_is_trained_and_the_runs_stay_as_they_are(tmp_path, trained):
    first = again(tmp_path, "fig20")
    before = state(tmp_path / "runs")
    trained.clear()
    second = again(tmp_path, "fig20")
    assert trained == []
    assert state(tmp_path / "runs") == before
    assert second["claims"] == first["claims"]
    assert second["timings"] == first["timings"]


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_after_an_interruption_only_what_is_missing_is_trained(tmp_path, monkeypatch, trained, finished):
    with monkeypatch.context() as patch:
        interrupt_after(patch, finished)
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path / "out", "fig20")
    done = list(trained)
    assert len(done) == finished
    before = state(tmp_path / "out" / "runs")
    assert len(before) == 2 * finished
    assert not (tmp_path / "out" / "report.html").exists()
    trained.clear()
    again(tmp_path / "out", "fig20")
    assert set(trained) == FIG20 - set(done)
    after = state(tmp_path / "out" / "runs")
    assert {name: after[name] for name in before} == before
    again(tmp_path / "whole", "fig20")
    for name in FIG20:
        run = protocols.protocol(name, 2, 0)
        same(load(run, tmp_path / "out" / "runs"), load(run, tmp_path / "whole" / "runs"))


@pytest.mark.parametrize("change", [{"seed": 1}, {"repeats": 3}], ids=str)
def test_other_settings_are_refused_in_a_folder_with_results_and_nothing_is_touched(tmp_path, trained, change):
    again(tmp_path, "fig03")
    before = state(tmp_path)
    trained.clear()
    with pytest.raises(ValueError, match=r"repeats 2, seed 0.*--no-resume"):
        again(tmp_path, "fig03", **change)
    assert trained == []
    assert state(tmp_path) == before


def test_without_resuming_files_of_a_users_own_stay(tmp_path):
    again(tmp_path, "fig20")
    own = [tmp_path / "figures" / "notes.txt", tmp_path / "figures" / "mine.png", tmp_path / "runs" / "mine.json"]
    for path in own:
        path.write_text("{}")
    again(tmp_path, "fig20", resume=False, seed=1)
    assert all(path.read_text() == "{}" for path in own)


@pytest.mark.parametrize("change", [{}, {"seed": 1}], ids=str)
def test_without_resuming_results_are_replaced(tmp_path, trained, change):
    again(tmp_path, "fig20")
    before = state(tmp_path / "runs")
    trained.clear()
    content = again(tmp_path, "fig03", "fig20", resume=False, **change)
    assert set(trained) == FIG03 | FIG20
    after = state(tmp_path / "runs")
    assert all(after[name][1] > before[name][1] for name in before)
    assert content["seed"] == change.get("seed", 0)
    assert content["studies"] == ["fig03", "fig20"]


def test_without_resuming_what_is_not_asked_for_again_is_no_longer_reported(tmp_path):
    again(tmp_path, "fig03", "fig04")
    content = again(tmp_path, "fig04", resume=False, seed=1)
    assert content["studies"] == ["fig04"]
    assert content["claims"] == []
    assert "Trajectories in one dimension" not in (tmp_path / "report.html").read_text()


def test_without_resuming_old_runs_are_not_taken_up_after_an_interruption(tmp_path, monkeypatch, trained):
    again(tmp_path, "fig03")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path, "fig03", resume=False)
    done = trained[2:]
    trained.clear()
    again(tmp_path, "fig03")
    assert set(trained) == FIG03 - set(done)


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path, trained):
    (tmp_path / "thesis.txt").write_text("do not lose me")
    for resume in (True, False):
        with pytest.raises(ValueError, match="has other files"):
            again(tmp_path, "fig03", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert trained == []


def test_a_file_in_place_of_a_folder_is_refused_and_left_alone(tmp_path, trained):
    (tmp_path / "file").write_text("do not lose me")
    with pytest.raises(ValueError, match="takes a folder, got the file"):
        again(tmp_path / "file", "fig03")
    assert (tmp_path / "file").read_text() == "do not lose me"
    assert trained == []


def test_an_empty_folder_is_taken(tmp_path):
    assert again(tmp_path, "fig04")["studies"] == ["fig04"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"format": "anode results 0"}', '{"title": "other"}', '"text"']
)
def test_a_damaged_results_file_is_named_and_nothing_is_touched(tmp_path, trained, content):
    again(tmp_path, "fig04")
    (tmp_path / MARKER).write_text(content)
    before = state(tmp_path)
    with pytest.raises(DamagedFileError) as error:
        again(tmp_path, "fig03")
    assert str(tmp_path / MARKER) in str(error.value)
    assert "\n" not in str(error.value)
    assert trained == []
    assert state(tmp_path) == before


@pytest.mark.parametrize("change", [{"claims": [{}]}, {"timings": [3]}, {"studies": 7}, {"claims": None}], ids=str)
def test_a_results_file_with_odd_entries_is_named_before_anything_is_trained(tmp_path, trained, change):
    again(tmp_path, "fig04")
    marker = tmp_path / MARKER
    marker.write_text(json.dumps(read_json(marker) | change))
    with pytest.raises(DamagedFileError, match=MARKER):
        again(tmp_path, "fig03")
    assert trained == []


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_damaged_run_is_named_and_nothing_is_trained_or_touched(tmp_path, trained, suffix):
    again(tmp_path, "fig03")
    path = tmp_path / "runs" / f"map-g.{suffix}"
    path.write_bytes(path.read_bytes()[:100])
    before = state(tmp_path)
    trained.clear()
    with pytest.raises(DamagedFileError) as error:
        again(tmp_path, "fig03")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert trained == []
    assert state(tmp_path) == before


def test_a_run_that_was_removed_is_done_again(tmp_path, trained):
    again(tmp_path, "fig03")
    before = state(tmp_path / "runs")
    (tmp_path / "runs" / "map-g.json").unlink()
    trained.clear()
    again(tmp_path, "fig03")
    assert trained == ["map-g"]
    after = state(tmp_path / "runs")
    assert {k: v for k, v in after.items() if "identity" in k} == {k: v for k, v in before.items() if "identity" in k}


def test_figures_asked_for_one_after_the_other_are_all_in_the_report(tmp_path, trained):
    first = again(tmp_path, "fig03")
    trained.clear()
    again(tmp_path, "fig20")
    assert set(trained) == FIG20
    content = again(tmp_path, "fig05")
    assert content["studies"] == ["fig03", "fig05", "fig20"]
    assert [claim["number"] for claim in content["claims"]] == [1, 2, 3, 4, 5]
    assert content["claims"][:2] == first["claims"]
    assert {timing["name"] for timing in content["timings"]} >= FIG03 | FIG20
    page = (tmp_path / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in ("fig03", "fig05", "fig20"))


def test_what_a_killed_process_left_is_removed(tmp_path):
    again(tmp_path, "fig03")
    for name in ("results.json", "runs/fig03-node.json", "figures/fig03.png"):
        temporary(tmp_path / name).write_text("half")
    again(tmp_path, "fig03")
    assert not list(tmp_path.rglob(".*"))


def test_hidden_files_of_the_user_stay(tmp_path):
    mine = [tmp_path / ".backup-20260101" / "kept", tmp_path / ".notes-20251231.txt", tmp_path / "runs" / ".a-00000000"]
    for again_ in (mine[:2], mine):
        for path in again_:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        again(tmp_path, "fig03")
        assert all(path.read_text() == "mine" for path in again_)


def test_failures_of_earlier_figures_are_kept(tmp_path, monkeypatch):
    real = ToyRun.train

    def hurt(run, tell, folder, place):
        result = real(run, tell, folder, place)
        result.history.failures.append(Failure(0, 3, "MAX_STEPS: too many", "MAX_STEPS"))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ToyRun, "train", hurt)
        first = again(tmp_path, "fig03")
    assert {failure["run"] for failure in first["failures"]} == FIG03
    assert again(tmp_path, "fig04")["failures"] == first["failures"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"figures": ["fig33"]}, "figure: takes one of toy, fig01.*got 'fig33'; did you mean 'fig23'"),
        ({"repeats": 0}, "repeats: takes a whole number above 0, got 0"),
        ({"seed": -1}, "seed: takes a whole number from 0, got -1"),
        ({"jobs": 0}, "jobs: takes a whole number above 0, got 0"),
    ],
    ids=str,
)
def test_a_mistake_is_named_before_anything_is_created(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        again(tmp_path / "out", "fig03", **change)
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path, trained):
    with locked(tmp_path, "out"), pytest.raises(BlockingIOError, match="is in use by another process"):
        again(tmp_path, "fig03", resume=False)
    assert (trained, list(tmp_path.iterdir())) == ([], [])


def test_results_of_earlier_versions_are_certified_and_not_trained_again(tmp_path, trained):
    folder = tmp_path / "results"
    again(folder, "fig06")
    file = folder / "runs" / "g-d2-node.json"
    content = read_json(file)
    stored = content.pop("certificates")
    file.write_text(json.dumps(content))
    trained.clear()
    (claim,) = again(folder, "fig06")["claims"]
    assert trained == []
    assert read_json(file)["certificates"] == stored
    assert claim["certified"]["verdict"] in ("held", "not held", "inconclusive")
    names = [number["name"] for number in claim["certified"]["numbers"]]
    assert "certified tolerance, median" in names
