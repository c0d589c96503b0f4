import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from anode import History
from anode.cli import app
from anode.experiments import single
from anode.experiments.options import TrainOptions
from anode.experiments.show_words import model_line, summary
from anode.experiments.single import load_saved
from anode.files import locked
from anode.plots.style import MODEL_COLORS
from anode.storage import read_json, read_tensors
from helpers.refusals import refused
from helpers.slow_command import SLOW

FILES = ["checkpoint", "data.json", "held_out.safetensors", "history.csv", "history.json"]
FILES += ["model.json", "model.safetensors", "result.json", "run.json"]
TINY = ["digits", "--train-size", "128", "--filters", "4", "--augment", "1", "--side", "4"]
QUICK_POINTS = ["--epochs", "1", "--batch-size", "500", "--hidden", "4"]
SHORT = ["--batch-size", "32", "--evaluate-every", "3"]  # four iterations an epoch
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
SERIES = ("loss", "nfe", "accepted", "rejected", "nfe_backward", "accuracy")
LOOKS = ("validation", "validation_accuracy", "validation_nfe", "validation_at")


pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def train(folder, *arguments):
    """Train, and fail if that fails."""
    result = run("train", *arguments, "--out", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_thread):
    """Two epochs without an interruption."""
    folder = tmp_path_factory.mktemp("train") / "whole"
    train(folder, *TINY, *SHORT, "--epochs", 2)
    return folder


def same(ours: Path, theirs: Path, looks: bool = True) -> None:
    """Fails unless two folders hold the same model and history to the bit, but for the time it took."""
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    assert (ours / "model.json").read_bytes() == (theirs / "model.json").read_bytes()
    mine, others = (History.load(folder / "history.json") for folder in (ours, theirs))
    for name in (*SERIES, *(LOOKS if looks else ())):
        np.testing.assert_array_equal(getattr(mine, name), getattr(others, name), err_msg=name, strict=True)
    assert (mine.batches, mine.stopped, mine.failures) == (others.batches, others.stopped, others.failures)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", [("train", "digits"), ("reproduce", "images", "--scale", "smoke")], ids=" ".join)
@pytest.mark.parametrize("device", ["cuda:99", "meta", "nonsense"])
def test_a_device_that_cannot_compute_is_refused_in_a_line_and_nothing_is_made(tmp_path, command, device):
    result = CliRunner().invoke(app, [*command, "--device", device, "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    takes = "a device that torch can use here, such as cpu, cuda or cuda:1"
    assert line.startswith(f"error: device: takes {takes}, got {device!r}")
    assert not any(tmp_path.iterdir())


def test_images_kept_from_training_are_looked_at_in_place_of_the_test_images(tmp_path):
    options = ("--epochs", 3, "--train-size", 128, "--filters", 2, "--validation", 0.25, "--patience", 1, "--lr", 1.0)
    options = (*options, "--batch-size", 96)
    train(tmp_path / "run", "digits", *options)
    history = load_saved(tmp_path / "run").history
    said = " ".join(summary(load_saved(tmp_path / "run")))
    best = int(history.validation.argmin())
    assert f"the model of epoch {best + 1} was kept, with a validation loss of {history.validation.min():.4g}" in said
    assert history.batches == 1  # 96 of 128 images
    assert history.settings["patience"] == 1
    assert 1 <= len(history.validation) <= 3


def test_the_toy_half_refuses_a_device_that_it_would_not_use(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "fig03", "--device", "cuda", "--out", str(tmp_path / "out")])
    refused(result, "device: takes cpu for 'toy'", "got 'cuda'")
    assert not any(tmp_path.iterdir())


# What is written and said


def test_training_on_images_writes_its_files_and_says_what_was_trained(tmp_path):
    out = train(tmp_path / "run", "digits", "--epochs", 1, "--train-size", 128, "--filters", 4, "--augment", 1)
    first, second, third, last = out.splitlines()
    assert first == "ANODE on digits: 1,502 parameters, 42 of which multiply the time t"
    assert re.fullmatch(r"trained for 1 epochs, 1 iterations, \d+\.\d+ s: loss 2\.\d+", second)
    assert re.fullmatch(r"accuracy \d+\.\d% on 355 test images; guessing the largest class: \d+\.\d%", third)
    assert last == f"saved: {tmp_path / 'run'}"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    found = load_saved(tmp_path / "run")
    history = found.history
    assert sum(p.numel() for p in found.model.parameters()) == 1502
    assert (found.single.train_size, found.single.filters, found.single.augment) == (128, 4, 1)
    assert history.accuracy.shape == (1,)
    assert (history.validation_at.tolist(), history.validation_accuracy.shape) == ([1], (1,))
    assert found.model(torch.rand(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--augment", 0, "--no-time"], "NODE on digits: 811 parameters; the field does not use time"),
        (["--augment", 0], "NODE on digits: 852 parameters, 41 of which multiply the time t"),
        ([], "ANODE on digits: 4,102 parameters, 46 of which multiply the time t"),
        (["--augment", 5, "--no-time"], "ANODE on digits: 4,056 parameters; the field does not use time"),
        (["--augment", 0, "--side", 4], "NODE on digits: 372 parameters, 41 of which multiply the time t"),
        (["--augment", 5, "--head-channels", 1], "ANODE on digits: 902 parameters, 46 of which multiply the time t"),
    ],
    ids=str,
)
def test_the_parameters_are_counted_with_and_without_time(tmp_path, options, said):
    out = train(tmp_path / "run", "digits", "--epochs", 0, "--train-size", 10, "--filters", 4, *options)
    assert out.splitlines()[0] == said
    assert sum(p.numel() for p in load_saved(tmp_path / "run").model.parameters()) == int(
        re.search(r"([\d,]+) param", said)[1].replace(",", "")
    )


def described(single: TrainOptions) -> str:
    return model_line(single, single.build())


def test_the_papers_models_have_the_papers_parameters():
    assert described(TrainOptions("mnist")) == "ANODE on mnist: 85,462 parameters, 646 of which multiply the time t"
    assert (
        described(TrainOptions("mnist", augment=0, filters=92, time=False))
        == "NODE on mnist: 84,395 parameters; the field does not use time"
    )
    assert (
        described(TrainOptions("cifar10", augment=0, filters=125))
        == "NODE on cifar10: 173,611 parameters, 1,253 of which multiply the time t"
    )
    expected = "ANODE on tiny_imagenet: 6,592,472 parameters, 648 of which multiply the time t"
    assert described(TrainOptions("tiny_imagenet", augment=5)) == expected


def test_points_have_no_parameters_of_time_to_count(tmp_path):
    out = train(tmp_path / "run", "moons", "--epochs", 0, "--hidden", 4)
    assert re.fullmatch(r"ANODE on moons: \d+ parameters", out.splitlines()[0])


def test_images_are_reduced_to_the_side_that_is_asked_for(whole):
    found = load_saved(whole)
    assert found.single.side == 4
    assert found.model(torch.rand(2, 1, 4, 4)).shape == (2, 10)
    assert found.history.validation_at.tolist() == [3, 6, 8]
    assert len(found.history) == 8


def test_the_same_command_elsewhere_gives_the_same_bits(whole, tmp_path):
    train(tmp_path / "again", *TINY, *SHORT, "--epochs", 2)
    same(tmp_path / "again", whole)
    train(tmp_path / "other", *TINY, *SHORT, "--epochs", 2, "--seed", 1)
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (whole / "model.safetensors").read_bytes()


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "--hidden", "8"], ["hidden: does not apply to images (digits); leave it out"]),
        (["digits", "--layers", "2"], ["layers: does not apply to images (digits); leave it out"]),
        (["digits", "--dim", "2"], ["dim: does not apply to images (digits); leave it out"]),
        (["digits", "--model", "resnet"], ["model: does not apply to images (digits); leave it out"]),
        (["digits", "--loss", "mse"], ["loss: does not apply to images (digits); leave it out"]),
        (["digits", "--patience", "2"], ["patience: takes no value without --validation"]),
        (["digits", "--repeats", "2"], ["repeats: does not apply to images (digits); leave it out"]),
        (["moons", "--filters", "8"], ["filters: does not apply to points (moons); leave it out"]),
        (["moons", "--side", "8"], ["side: does not apply to points (moons); leave it out"]),
        (["moons", "--train-size", "8"], ["train_size: does not apply to points (moons); leave it out"]),
        (
            ["moons", "--head-channels", "1"],
            ["head_channels: does not apply to points (moons); leave it out"],
        ),
        (["digit"], ["data: takes one of", "digits", "did you mean 'digits'?"]),
        (["digits", "--side", "9"], ["side: takes at most 8"]),
        (["digits", "--side", "0"], ["side: takes a whole number above 0, got 0"]),
        (["digits", "--train-size", "5000"], ["train_size: takes at most 1,442, the number of images, got 5000"]),
        (["digits", "--filters", "0"], ["filters: takes a whole number above 0, got 0"]),
        (["digits", "--augment", "0", "--head-channels", "2"], ["head_channels: takes", "2"]),
        (["digits", "--train-size", "64", "--batch-size", "65"], ["batch_size: takes at most the 64", "65"]),
        (["digits", "--on-failure", "skipp"], ["on_failure: takes one of", "did you mean 'skip'?"]),
        (["digits", "--evaluate-every", "0"], ["evaluate_every: takes a whole number above 0, got 0"]),
        (["digits", "--minutes", "0"], ["minutes: takes a number above 0, got 0"]),
        (["digits", "--train-size", "0"], ["train_size: takes a whole number above 0, got 0"]),
        (["digits", "--lr", "nan"], ["lr: takes", "nan"]),
        (["moons", "--weight-decay", "inf"], ["weight_decay: takes a finite number, got inf"]),
        (["moons", "--seed", str(2**70)], ["seed: takes a whole number from 0 to 2**40 - 1"]),
    ],
    ids=lambda value: " ".join(value) if value[0] in ("digits", "digit", "moons") else "",
)
def test_an_option_that_has_no_meaning_is_one_line_and_creates_nothing(tmp_path, arguments, words):
    refused(run("train", *arguments, "--out", tmp_path / "new" / "run"), *words)
    assert not any(tmp_path.iterdir())


def test_a_dataset_that_is_not_there_is_one_line_that_says_how_to_get_it(tmp_path):
    (tmp_path / "data").mkdir()
    result = run("train", "mnist", "--root", tmp_path / "data", "--out", tmp_path / "run")
    refused(result, "mnist: needs ", f"anode data fetch mnist --root {tmp_path / 'data'} downloads it")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_dataset_that_a_figure_needs_is_one_line_that_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ANODE_DATA", str(tmp_path / "nothing"))
    result = run("reproduce", "fig13", "--jobs", 1, "--repeats", 1, "--out", tmp_path / "out")
    refused(result, "mnist: needs ", "anode data fetch mnist")


# Going on


def test_done_again_it_stays_as_it_is(whole, tmp_path):
    folder = copytree(whole, tmp_path / "run")
    before = contents(folder)
    out = train(folder, *TINY, *SHORT, "--epochs", 2)
    assert "8 iterations" in out
    assert "resuming" not in out
    assert f"{folder} is already trained; pass another --out to train anew" in out.replace("\n", "")
    assert contents(folder) == before


def test_more_epochs_go_on_to_the_same_bits_as_all_at_once(tmp_path):
    train(tmp_path / "run", *TINY, "--batch-size", 32, "--epochs", 1)
    assert len(History.load(tmp_path / "run" / "history.json")) == 4
    resumed = train(tmp_path / "run", *TINY, "--batch-size", 32, "--epochs", 2)
    assert "resuming from iteration 4 of 8" in resumed
    assert "already trained" not in resumed
    train(tmp_path / "once", *TINY, "--batch-size", 32, "--epochs", 2)
    same(tmp_path / "run", tmp_path / "once")
    refused(
        run("train", *TINY, "--batch-size", 32, "--epochs", 1, "--out", tmp_path / "run"),
        "epochs: takes at least 2",
        "got 1",
    )
    same(tmp_path / "run", tmp_path / "once")


def test_other_options_are_refused_and_named(whole, tmp_path):
    folder = copytree(whole, tmp_path / "run")
    before = contents(folder)
    command = ["train", *TINY, *SHORT, "--epochs", 2, "--out", folder]
    refused(run(*command, "--lr", 0.5), f"out: {folder} holds a run with lr 0.001 (now 0.5); pass a new folder")
    refused(run(*command, "--no-time"), "holds a run with time True")
    refused(run(*command, "--augment", -1), "augment: takes a whole number from 0, got -1")  # a mistake comes first
    refused(run(*command, "--check-every", 0), "check_every: takes a whole number above 0, got 0")
    assert contents(folder) == before


def test_when_time_is_up_it_ends_early_and_the_same_command_goes_on_to_the_same_bits(whole, tmp_path):
    command = [*TINY, *SHORT, "--epochs", 2]
    for done in (1, 2):
        out = train(tmp_path / "run", *command, "--minutes", 1e-9)
        assert f" {done} iterations" in out
        assert "stopped: time is up" in out
        assert "; run the same command again to continue" in out
        assert "already trained" not in out
        assert load_saved(tmp_path / "run").history.validation_at.tolist()[-1] == done
    train(tmp_path / "run", *command)
    same(tmp_path / "run", whole, looks=False)
    ours, theirs = (History.load(folder / "history.json") for folder in (tmp_path / "run", whole))
    assert set(theirs.validation_at) <= set(ours.validation_at)  # it was also looked at when time was up
    assert ours.validation[-1] == theirs.validation[-1]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": "anode train 1"}'], ids=["empty", "half", "other"])
def test_a_damaged_checkpoint_is_survived(whole, tmp_path, damage):
    command = [*TINY, *SHORT, "--epochs", 2]
    for _ in range(2):
        train(tmp_path / "run", *command, "--minutes", 1e-9)
    assert (tmp_path / "run" / "checkpoint" / "state-1.json").exists()
    (tmp_path / "run" / "checkpoint" / "state-2.json").write_bytes(damage)
    with pytest.warns(UserWarning, match=r"state-2\.json.*; training goes on from iteration 1"):
        result = run("train", *command, "--out", tmp_path / "run")
    assert result.exit_code == 0
    same(tmp_path / "run", whole, looks=False)


def test_if_all_checkpoints_are_damaged_that_is_one_line(whole, tmp_path):
    folder = copytree(whole, tmp_path / "run")
    for path in (folder / "checkpoint").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    before = contents(folder)
    refused(run("train", *TINY, *SHORT, "--epochs", 3, "--out", folder), "can be read", "remove")
    assert contents(folder) == before


def test_a_loss_that_is_not_finite_is_one_line_if_it_is_to_be_raised(tmp_path):
    arguments = ["--epochs", 1, "--model", "resnet", "--lr", 1e30, "--on-failure", "raise", "--out", tmp_path / "run"]
    result = run("train", "moons", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: in iteration 1 of training, the loss is not finite")


def test_a_run_that_ended_because_a_solve_failed_says_so_by_its_exit_code(tmp_path):
    command = ["train", "moons", "--epochs", 1, "--batch-size", 500, "--lr", 1e6, "--max-steps", 20]
    result = run(*command, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "failed: repeat 0" in result.stdout
    assert f"saved: {tmp_path / 'run'}" in result.stdout
    assert run(*command, "--on-failure", "skip", "--out", tmp_path / "skipped").exit_code == 0


def test_too_little_memory_is_one_line(tmp_path, monkeypatch):
    def huge(*_):
        return torch.empty(2**58, dtype=torch.uint8)

    monkeypatch.setattr(single, "train_single", huge)
    result = run("train", "moons", "--out", tmp_path / "run")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: not enough memory (")


# Other processes


def test_a_run_that_is_killed_is_taken_up_to_the_same_bits_and_nobody_else_may_have_its_folder(whole, tmp_path):
    folder, seen = tmp_path / "run", tmp_path / "seen"
    command = ["train", *TINY, *SHORT, "--epochs", "2", "--out", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(seen), *command], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + 60
        while not seen.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        second = run(*command)
        before = contents(folder)
        process.kill()
        error = process.communicate(timeout=20)[1]
    assert process.returncode == -signal.SIGKILL, error
    refused(second, f"out: {folder} is in use by another process")
    assert {"run.json", "checkpoint/state-5.json", "checkpoint/state-5.safetensors"} <= set(before)
    assert "model.json" not in before
    refused(run("plot", folder), f"{folder}: holds an unfinished run")
    with locked(folder, "out"):
        refused(run("plot", folder), f"{folder} is in use by another process")
    result = run(*command)
    assert (result.exit_code, result.stderr) == (0, "")
    same(folder, whole)
    assert sorted(path.name for path in folder.iterdir()) == FILES


def torchrun(*arguments) -> subprocess.CompletedProcess:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0"]
    return subprocess.run(
        [sys.executable, *launch, "-m", "anode", *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What two processes made, once for all workers: the folder, and what they said."""
    workers = tmp_path_factory.getbasetemp()
    root = (workers.parent if "PYTEST_XDIST_WORKER" in os.environ else workers) / "train-together"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "said").exists():
            result = torchrun("train", *TINY, *SHORT, "--epochs", 2, "--out", root / "run")
            assert result.returncode == 0, result.stderr
            (root / "said").write_text(result.stdout)
    return root / "run", (root / "said").read_text()


@pytest.mark.slow
def test_two_processes_make_what_one_makes(whole, together):
    folder, said = together
    assert said.splitlines()[0] == "ANODE on digits: 542 parameters, 42 of which multiply the time t"
    assert said.count("saved: ") == said.count(" 8 iterations") == 1
    assert sorted(path.name for path in folder.iterdir()) == FILES
    ours, theirs = (History.load(each / "history.json") for each in (folder, whole))
    for name in ("nfe", "accepted", "rejected", "nfe_backward", "validation_at"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name, strict=True)
    for name in ("loss", "accuracy", "validation", "validation_accuracy"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-4, err_msg=name)
    mine, others = (read_tensors(each / "model.safetensors") for each in (folder, whole))
    assert set(mine) == set(others)
    for name in mine:
        torch.testing.assert_close(mine[name], others[name], rtol=1e-5, atol=1e-5)
    assert read_json(folder / "run.json")["options"] == read_json(whole / "run.json")["options"]


@pytest.mark.slow
def test_what_two_processes_began_one_goes_on_with(together, tmp_path):
    folder = copytree(together[0], tmp_path / "run")
    train(folder, *TINY, *SHORT, "--epochs", 3)
    train(tmp_path / "once", *TINY, *SHORT, "--epochs", 3)
    ours, theirs = (History.load(each / "history.json") for each in (folder, tmp_path / "once"))
    assert len(ours) == len(theirs) == 12
    np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-4)
    np.testing.assert_array_equal(ours.nfe, theirs.nfe)


@pytest.mark.parametrize("first", [True, False], ids=["first", "other"])
def test_after_a_mistake_the_first_process_alone_clears_up(tmp_path, monkeypatch, first):
    folder = tmp_path / "new" / "run"

    def mistaken(*_, **__):
        if not first:  # what the first process has made meanwhile
            folder.mkdir(parents=True)
            (folder / "run.json").write_text("of the first process")
        raise ValueError("batch_size: takes less")

    monkeypatch.setattr(single, "fit", mistaken)
    monkeypatch.setattr(single, "Ranks", lambda _: SimpleNamespace(first=first))
    with pytest.raises(ValueError, match="batch_size: takes less"):
        single.train_single(TrainOptions("moons"), folder)
    assert list(contents(tmp_path)) == ([] if first else ["new/run/run.json"])
    assert (tmp_path / "new").exists() != first


# Pictures


def texts(picture: Path) -> str:
    """What can be read in an SVG picture."""
    return re.sub(r"<!--\s*(.*?)\s*-->", r"[\1]", picture.read_text())


def test_a_run_on_images_is_drawn_with_its_accuracies(whole, tmp_path):
    result = run("plot", whole, "--out", tmp_path / "plot.svg")
    assert (result.exit_code, result.stderr) == (0, "")
    found = texts(tmp_path / "plot.svg")
    for words in ("training loss", "function evaluations", "accuracy, %", "test images", "epoch"):
        assert words in found, words
    assert "inputs to features" not in found
    assert "98.2 %" not in found


def test_the_dots_of_runs_on_images_are_test_images_and_those_of_points_validation(whole, tmp_path):
    train(tmp_path / "moons", "moons", *QUICK_POINTS, "--loss", "cross_entropy", "--validation", 0.2)
    run("plot", whole, whole, tmp_path / "moons", "--out", tmp_path / "plot.svg")
    found = texts(tmp_path / "plot.svg")
    assert [found.count(f">{label}<") for label in ("test images", "validation")] == [1, 1]


def test_models_have_the_colours_that_they_have_in_all_figures(tmp_path):
    for p in (1, 0):
        train(tmp_path / f"p{p}", "moons", *QUICK_POINTS, "--augment", p)
    for names in (["p1"], ["p0"], ["p1", "p0"], ["p0", "p1"]):
        run("plot", *[tmp_path / name for name in names], "--out", tmp_path / "plot.svg")
        found = texts(tmp_path / "plot.svg")
        assert (MODEL_COLORS["NODE"] in found, MODEL_COLORS["ANODE"] in found) == ("p0" in names, "p1" in names)


def test_a_run_on_images_is_compared_with_an_accuracy(whole, tmp_path):
    result = run("plot", whole, "--reference", 98.2, "--out", tmp_path / "plot.svg")
    assert (result.exit_code, result.stdout) == (0, f"picture: {tmp_path / 'plot.svg'}\n")
    assert "98.2 %" in texts(tmp_path / "plot.svg")


@pytest.mark.parametrize("reference", [-1, 101, "nan"])
def test_an_accuracy_to_compare_with_is_a_percentage(whole, tmp_path, reference):
    result = run("plot", whole, "--reference", reference, "--out", tmp_path / "plot.svg")
    refused(result, "reference", "an accuracy in percent")


def test_runs_without_accuracies_have_none_to_compare_with(tmp_path):
    train(tmp_path / "moons", "moons", *QUICK_POINTS)
    refused(run("plot", tmp_path / "moons", "--reference", 98.2), "reference", "have no accuracies", "98.2")


def test_runs_on_images_and_on_points_are_drawn_into_one_picture(whole, tmp_path):
    train(tmp_path / "moons", "moons", *QUICK_POINTS)
    result = run("plot", whole, tmp_path / "moons", "--out", tmp_path / "both.png")
    assert (result.exit_code, result.stderr) == (0, "")
    with Image.open(tmp_path / "both.png") as picture:
        assert min(picture.size) > 300
