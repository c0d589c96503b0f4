from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
from typer.testing import CliRunner

from anode.cli import app
from anode.experiments.halves import HALVES
from anode.experiments.reproduce import SO_FAR, planned, reproduce
from anode.experiments.runs import save
from anode.experiments.settings import Settings
from anode.experiments.unfinished import certify_finished, progress_of, report_again, results_so_far
from anode.experiments.workers import do_runs
from anode.files import DamagedFileError
from anode.report.page import FORMAT, MARKER
from anode.storage import read_json, write_json
from anode.train.checkpoint.folder import last_history
from helpers.tiny import interrupt_at, quiet

ASKED_FOR = {"half": "images", "scale": "smoke", "repeats": 1, "seed": 0, "epochs": None}
BEGUN = {"format": FORMAT, "title": "Images", **ASKED_FOR}

pytestmark = pytest.mark.usefixtures("one_thread")


def run_of(name: str):
    return HALVES["images"].scales["smoke"].run(name, 1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread):
    """A folder with one run that is finished, one that was interrupted, and one that was not begun."""
    out = tmp_path_factory.mktemp("out")
    (out / "runs").mkdir()
    write_json(out / MARKER, BEGUN)
    save(run_of("mnist-p5").train(None, out / "runs"), out / "runs")
    with pytest.raises(KeyboardInterrupt):
        run_of("mnist-node").train(interrupt_at(4), out / "runs")
    return out


def test_runs_that_were_begun_are_found_with_what_they_have(folder):
    results, unfinished = results_so_far(folder / "runs", BEGUN)
    assert set(results) == {"mnist-p5", "mnist-node"}
    assert unfinished == {"mnist-node"}
    assert len(results["mnist-p5"].history) == 6
    node = results["mnist-node"].history
    assert 3 <= len(node) <= 5
    assert node.loss.shape == (len(node), 1)
    assert np.isfinite(node.loss).all()


def test_a_report_says_what_is_unfinished_and_leaves_the_results_file_alone(folder):
    before = (folder / MARKER).read_bytes()
    page = report_again(folder).read_text()
    assert (folder / MARKER).read_bytes() == before
    for words in (
        "1 of 2 started runs are finished",
        "of 2, unfinished",
        "2 of 2<",
        "98.2 ± 0.1 %",
        "98.05 ± 0.20 %",
        "not complete",
    ):
        assert words in page, words
    numbers = read_json(folder / "figures" / "progress.json")["numbers"]
    assert [row[0] for row in numbers["rows"]] == ["MNIST, NODE", "MNIST, ANODE"]
    assert all(len(row) == len(numbers["columns"]) for row in numbers["rows"])
    assert read_json(folder / SO_FAR)["studies"] == ["progress"]


def test_runs_that_overfit_are_reported_too(tmp_path):
    (tmp_path / "runs").mkdir()
    write_json(tmp_path / MARKER, BEGUN)
    with pytest.raises(KeyboardInterrupt):
        run_of("overfit-node").train(interrupt_at(4), tmp_path / "runs")
    report_again(tmp_path)
    numbers = read_json(tmp_path / "figures" / "progress.json")["numbers"]
    assert [row[0] for row in numbers["rows"]] == ["Overfitting MNIST, NODE"]


def test_the_command_that_began_it_still_goes_on(folder):
    work = planned(Settings(["table1"], folder, 1, "smoke"))
    assert work.identity == ASKED_FOR


def test_a_finished_run_is_described_with_the_data_that_it_had(folder, tmp_path):
    fewer = replace(run_of("svhn-p10"), train_size=64)
    save(fewer.train(None, tmp_path), tmp_path)
    results, unfinished = results_so_far(tmp_path, BEGUN)
    assert not unfinished
    assert results["svhn-p10"].run.train_size == 64


def test_a_report_says_which_data_finished_runs_lacked(folder, tmp_path):
    copytree(folder, tmp_path, dirs_exist_ok=True)
    whole = run_of("svhn-p10")
    fewer = replace(whole, train_size=64, test_pool=whole.test_size + 1)
    save(fewer.train(None, tmp_path / "runs"), tmp_path / "runs")
    report_again(tmp_path)
    note = read_json(tmp_path / SO_FAR)["note"]
    assert f"The train split of digits used here has 64 images, not the {whole.train_size} of this scale." in note
    assert f"The test split of digits used here has {whole.test_size + 1} of the official 355 images" in note
    assert note.count("used here") == 2  # nothing about the other finished run


@pytest.mark.parametrize("batches", [3, 2], ids=["all images", "fewer images"])
def test_the_repeat_that_has_come_furthest_is_shown_or_all_that_are_finished(tmp_path, batches):
    run = replace(run_of("mnist-node"), repeats=3, train_size=64 * batches)
    whole = 2 * batches
    stages = [(2, 1, 2, "unfinished"), (whole + 2, 1, whole, "1 repeat so far")]
    for stop, repeats, iterations, said in [*stages, (2 * whole + 2, 2, whole, "2 repeats so far")]:
        with pytest.raises(KeyboardInterrupt):
            run.train(interrupt_at(stop), tmp_path)
        results, unfinished = results_so_far(tmp_path, {**BEGUN, "repeats": 3})
        assert unfinished == {"mnist-node"}
        assert results["mnist-node"].history.loss.shape == (iterations, repeats)
        assert progress_of(results["mnist-node"], False).endswith(said)
    times = [last_history(run.unfinished(tmp_path, seed)).seconds.sum() for seed in run.seeds]
    assert results["mnist-node"].seconds == pytest.approx(sum(times))  # also of the one that is not shown


def test_a_claim_whose_runs_are_finished_is_judged_and_drawn(tmp_path):
    begun = {**BEGUN, "repeats": 1}
    (tmp_path / "runs").mkdir()
    write_json(tmp_path / MARKER, begun)
    names = ("overfit-node", "overfit-anode", "tiny_imagenet-node", "mnist-p1", "mnist-p10")
    do_runs([run_of(name) for name in names], tmp_path / "runs", 1, quiet())
    page = report_again(tmp_path).read_text()
    content = read_json(tmp_path / SO_FAR)
    assert (content["studies"], [claim["number"] for claim in content["claims"]]) == (["progress", "fig13"], [15])
    assert "Claim 15" in page
    rows = read_json(tmp_path / "figures" / "progress.json")["numbers"]["rows"]
    assert [row[0] for row in rows if "added" in row[0]] == [f"MNIST, added channels, p = {p}" for p in (1, 10)]


def test_what_was_begun_after_a_report_is_in_the_next_one(tmp_path):
    settings = Settings(["fig13"], tmp_path, 1, "smoke", jobs=1)
    reproduce(planned(settings), quiet())
    assert "started runs are finished" not in report_again(tmp_path).read_text()
    with pytest.raises(KeyboardInterrupt):
        run_of("mnist-node").train(interrupt_at(4), tmp_path / "runs")
    assert "2 of 3 started runs are finished" in report_again(tmp_path).read_text()
    reproduce(planned(settings), quiet())
    assert not (tmp_path / SO_FAR).exists()
    assert not list((tmp_path / "figures").glob("progress*"))


def test_a_folder_in_which_nothing_was_trained_is_refused(tmp_path):
    write_json(tmp_path / MARKER, BEGUN)
    with pytest.raises(ValueError, match="has no training state yet"):
        report_again(tmp_path)


def test_finished_models_without_certificates_are_certified_on_request(folder, tmp_path):
    copy = tmp_path / "copy"
    copytree(folder, copy)
    assert "not certified" in report_again(copy).read_text()
    done = CliRunner().invoke(app, ["report", str(copy), "--certify"])
    assert done.exit_code == 0, done.output
    assert results_so_far(copy / "runs", BEGUN)[0]["mnist-p5"].certificates["last"].nfe.shape[1] == 1
    assert "not certified" not in (copy / "report.html").read_text()


def test_models_that_are_no_image_models_are_not_certified_again(tmp_path):
    write_json(tmp_path / MARKER, {**BEGUN, "half": "toy"})
    with pytest.raises(ValueError, match="certify: takes a folder of image results"):
        certify_finished(tmp_path, None, None)


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"protocol": {}}', b"half of it"])
def test_a_damaged_result_is_named_in_one_line(folder, tmp_path, content):
    copy = tmp_path / "copy"
    copytree(folder, copy)
    (copy / "runs" / "mnist-p5.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"mnist-p5.json: .*") as caught:
        report_again(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"scale": "huge"}, {"repeats": "many"}, {"epochs": []}])
def test_a_damaged_results_file_is_named(folder, tmp_path, change):
    copy = tmp_path / "copy"
    copytree(folder, copy)
    write_json(copy / MARKER, {**BEGUN, **change})
    with pytest.raises(DamagedFileError, match=f"{MARKER}: is damaged"):
        report_again(copy)


def test_files_that_are_no_runs_are_left_alone(folder, tmp_path):
    copy = tmp_path / "copy"
    copytree(folder, copy)
    (copy / "runs" / "notes.json").write_text("mine")
    assert set(results_so_far(copy / "runs", BEGUN)[0]) == {"mnist-p5", "mnist-node"}


def test_the_family_on_images_has_a_report_of_what_is_unfinished_too(tmp_path):
    begun = {**BEGUN, "half": "beyond-images"}
    (tmp_path / "runs").mkdir()
    write_json(tmp_path / MARKER, begun)
    runs = HALVES["beyond-images"].scales["smoke"].run
    for name in ("mnist-zeros", "mnist-heavy-ball", "pooled-node"):
        with pytest.raises(KeyboardInterrupt):
            runs(name, 1, 0).train(interrupt_at(4), tmp_path / "runs")
    assert "0 of 3 started runs are finished" in report_again(tmp_path).read_text()
    rows = read_json(tmp_path / "figures" / "progress.json")["numbers"]["rows"]
    names = ["The family on MNIST, zeros (ANODE)", "The family on MNIST, heavy ball", "Architecture, pooled, NODE"]
    assert [row[0] for row in rows] == names
