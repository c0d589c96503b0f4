"""``anode check``: how far the solves of a saved run can be trusted."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import anode
from anode.cli import app
from anode.experiments.checking import check_saved, inputs_of
from anode.experiments.options import TrainOptions
from anode.experiments.single import load_saved, train_single
from anode.models.flow import PAPER
from anode.storage import read_json

QUICK = TrainOptions("moons", epochs=1, batch_size=500, hidden=8)

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def saved(folder, **change):
    train_single(replace(QUICK, **change), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread):
    return saved(tmp_path_factory.mktemp("check") / "run")


def test_the_table_and_the_verdict_are_printed_and_drawn(folder):
    result = run("check", folder)
    model, x = anode.load(folder / "model"), QUICK.dataset(0).x[:256]
    certificate = model.flow.certify(x)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{certificate}\n")
    error = float(model.flow.check(x).overall)
    said = f"The run was trained with rtol = 1e-03, which passes: the reconstruction error is {error:.2%}."
    assert said in result.stdout.splitlines()
    assert f"picture: {folder / 'certificate.png'}" in result.stdout
    assert (folder / "certificate.png").read_bytes().startswith(b"\x89PNG")


def test_the_exit_code_is_1_if_nothing_passes(folder, tmp_path):
    result = run("check", folder, "--bound", "1e-12", "--points", 20, "--out", tmp_path / "other.svg")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "No tolerance down to 1e-06" in result.stdout
    assert "rtol = 1e-03, which does not pass" in result.stdout
    assert (tmp_path / "other.svg").exists()


def test_every_repeat_is_judged(tmp_path):
    found = check_saved(saved(tmp_path / "run", repeats=3, validation=0.25), 1e-2, 50, None, None)
    assert found.certificate.tolerance.shape == (3,)
    assert "which passes for 3 of 3: the median reconstruction error is" in found.trained


def test_a_run_whose_solves_fail_says_so(tmp_path):
    folder = saved(tmp_path / "run", solver=PAPER.but(max_steps=3))
    model = anode.load(folder / "model")
    with torch.no_grad():
        for parameter in model.flow.field.parameters():
            parameter.mul_(30)
    anode.save(model, folder / "model")
    result = run("check", folder)
    assert result.exit_code == 1
    assert "which does not pass: a solve failed." in result.stdout


def test_points_kept_from_training_are_taken_if_there_are_any(tmp_path):
    folder = saved(tmp_path / "run", validation=0.25)
    _, kept = QUICK.dataset(0).split(0.75, 0)
    assert torch.equal(inputs_of(load_saved(folder), 40, None), kept.x[:40])
    assert inputs_of(load_saved(folder), 10**6, None).shape == (250, 2)


def test_images_are_checked_on_the_test_images(tmp_path):
    single = TrainOptions("digits", filters=2, side=4, train_size=64, epochs=1, batch_size=64)
    train_single(single, tmp_path / "run")
    test = anode.images.load("digits", "test").resize(4)
    x = inputs_of(load_saved(tmp_path / "run"), 30, None)
    torch.testing.assert_close(
        x, test.images[:30].float() / 255 if test.images.dtype == torch.uint8 else test.images[:30]
    )
    assert check_saved(tmp_path / "run", 1e-2, 30, None, None).certificate.passes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "resnet", "augment": 0}, "has a ResNet, which has no ODE solve to check"),
        (
            {"solver": PAPER.but(method="rk4", step_size=0.25)},
            "was trained with step_size 0.25, so its solves have no tolerance",
        ),
    ],
)
def test_a_run_without_a_tolerance_is_one_line(tmp_path, change, said):
    result = run("check", saved(tmp_path / "run", **change))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bound", "0"], "bound: takes a number above 0"),
        (["--points", "0"], "points: takes a whole number above 0"),
        (["--out", "certificate.txt"], "out: takes a name that ends in .png, .svg or .pdf"),
    ],
)
def test_a_wrong_option_is_one_line(folder, arguments, said):
    result = run("check", folder, *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


def test_a_folder_that_holds_no_run_is_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        result = run("check", path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "is not a folder that anode train wrote" in result.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run.json", "model.json", "model.safetensors"])
def test_a_damaged_file_is_one_line_that_names_it(folder, tmp_path, name):
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes()[: 50 if path.name == name else None])
    result = run("check", tmp_path)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert name in result.stderr


def test_options_of_another_number_of_repeats_are_noticed_before_their_data_are_made(folder, tmp_path):
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    content = read_json(tmp_path / "run.json")
    content["options"]["repeats"] = 10**9
    (tmp_path / "run.json").write_text(json.dumps(content))
    result = run("check", tmp_path)
    assert result.exit_code == 2
    assert "its model.json and run.json are of different runs" in result.stderr


def test_training_checks_its_solves_if_it_is_asked_to(tmp_path):
    result = run("train", "moons", "--epochs", 1, "--batch-size", 250, "--check-every", 3, "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert "reconstruction error" in result.stdout
    assert load_saved(tmp_path / "run").history.check_at.tolist() == [0, 3, 4]


def test_a_resnet_has_no_solves_to_check_in_training(tmp_path):
    result = run("train", "moons", "--model", "resnet", "--check-every", 3, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "check_every: does not apply to a resnet, which has no flow" in result.stderr
