import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import anode
from anode.cli import app
from anode.cli.console import say, show_warning
from anode.experiments import workers
from anode.experiments.options import TrainOptions
from anode.experiments.reproduce import planned
from anode.experiments.runs import Place
from anode.experiments.settings import Settings
from anode.experiments.single import load_saved
from anode.experiments.study import Drawing
from anode.experiments.toy import protocols
from anode.experiments.toy.runs import ToyRun
from anode.experiments.toy.studies import STUDIES
from anode.ode.solver import SETTINGS
from anode.train.checkpoint.folder import last_history
from helpers.refusals import refused

COMMAND = str(Path(sys.executable).with_name("anode"))
QUICK = ["--epochs", "1", "--batch-size", "500"]
COMMANDS = ("reproduce", "train", "plot", "report")


@pytest.fixture
def invoke(monkeypatch):
    """The command, in this process, with room for long lines."""
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def small(monkeypatch):
    """The protocols of fig03 with few epochs."""
    few = {name: replace(run, epochs=5) for name, run in protocols.RUNS.items() if name.startswith("map")}
    monkeypatch.setattr(protocols, "RUNS", few)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert CliRunner().invoke(app, ["train", "moons", *QUICK, "--out", str(folder)]).exit_code == 0
    return folder


def process(*arguments, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=environment, **options
    )


def plain(text: str) -> str:
    """A help text without frames and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []], ids=str)
def test_help_names_every_command(invoke, arguments):
    result = invoke(*arguments)
    assert result.exit_code in (0, 2 if not arguments else 0)
    for command in COMMANDS:
        assert command in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(invoke, command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "Usage: " in result.stdout
    assert result.stdout == invoke(command, "-h").stdout


def test_the_help_of_train_has_every_option_with_its_default_the_datasets_and_an_example(invoke):
    text = plain(invoke("train", "--help").stdout)
    defaults = {name: field.default for name, field in TrainOptions.__dataclass_fields__.items()}
    defaults |= {name: getattr(defaults["solver"], name) for name in SETTINGS}
    for name, default in defaults.items():
        if name in ("data", "solver"):
            continue
        assert f"--{name.replace('_', '-')} " in text, name
        if default is not None and not isinstance(default, bool):
            assert f"[default: {default}]" in text, name
    for name in (
        *anode.datasets.DATASETS,
        *anode.METHODS,
        "--no-time",
        "[default: (named after data and model, such as moons-anode5 or moons-node)]",
        "anode train g --augment 5",
        "anode plot run",
    ):
        assert name in text


def test_the_help_of_reproduce_has_every_option_with_its_default_and_examples(invoke):
    text = plain(invoke("reproduce", "--help").stdout)
    for part in (
        "--repeats",
        "[default: (20; 5 for images and beyond-images, 2 at scale smoke)]",
        "--out",
        "[default: (results/mine/toy, .../images, .../beyond or .../beyond-images)]",
        "--seed",
        "[default: 0]",
        "--no-resume",
        "--jobs",
        "one per core",
        "anode reproduce fig07 fig08 --repeats 5 --out quick",
        "anode reproduce beyond-images for the same on MNIST, which takes hours; beyond does not include it",
    ):
        assert part in text


def test_the_defaults_of_the_command_are_those_of_the_library(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr("anode.experiments.single.train_single", lambda *given: seen.append(given) or 1 / 0)
    monkeypatch.setattr("anode.experiments.reproduce.reproduce", lambda work, _: seen.append(work) or 1 / 0)
    invoke("train", "g")
    invoke("reproduce")
    assert seen == [(TrainOptions("g"), Path("g-anode5"), None, Place(), say), planned(Settings())]
    assert seen[1].out == Path("results/mine/toy")


def test_the_version_is_printed(invoke):
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"anode {anode.__version__}\n")


def test_the_version_does_not_need_torch():
    program = "import sys; sys.modules['torch'] = None; import anode_command; anode_command.run()"
    said = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"anode {anode.__version__}\n"


def test_the_installed_command_says_its_version_and_names_a_mistake_in_one_line(tmp_path):
    assert process("--version").stdout == f"anode {anode.__version__}\n"
    result = process("train", "moon", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.endswith("got 'moon'; did you mean 'moons'?")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_with_anode_debug_an_error_is_shown_with_its_traceback(invoke, monkeypatch, tmp_path, value, shown):
    monkeypatch.setenv("ANODE_DEBUG", value)
    result = invoke("plot", tmp_path)
    if shown:
        assert (type(result.exception), result.stderr) == (ValueError, "")
        assert result.exc_info[2].tb_next is not None
    else:
        refused(result, "is not a folder that anode train wrote")


def test_with_anode_debug_ctrl_c_is_still_one_line(invoke, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setenv("ANODE_DEBUG", "1")
    monkeypatch.setattr("anode.experiments.pictures.draw_saved", interrupted)
    result = invoke("plot", tmp_path)
    assert (result.exit_code, result.stderr) == (130, "interrupted; nothing was written\n")


def test_what_was_trained_can_be_read_and_drawn(invoke, tmp_path):
    folder = tmp_path / "run"
    result = invoke("train", "moons", *QUICK, "--augment", 1, "--no-time", "--repeats", 2, "--out", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "trained 2 repeats for 1 epochs, 2 iterations, " in result.stdout
    assert f"saved: {folder}" in result.stdout
    found = load_saved(folder)
    assert (found.single.augment, found.single.time, found.single.repeats) == (1, False, 2)
    result = invoke("plot", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"picture: {folder / 'plot.png'}\n"
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    result = invoke("plot", folder, folder, "--out", tmp_path / "both.svg")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "<svg" in (tmp_path / "both.svg").read_text()


def test_names_with_brackets_are_printed_as_they_are(invoke, tmp_path):
    folder = tmp_path / "[red]run[/red]"
    result = invoke("train", "moons", "--epochs", 0, "--out", folder)
    assert f"saved: {folder}" in result.stdout
    refused(invoke("train", "circles", "--epochs", 0, "--out", folder), str(folder))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["moon"], ["data: takes one of g_1d", "did you mean 'moons'?"]),
        (["moons", "--model", "resnt"], ["model: takes one of node, resnet", "did you mean 'resnet'?"]),
        (["moons", "--loss", "hubr"], ["loss: takes one of", "did you mean 'huber'?"]),
        (["moons", "--activation", "rel"], ["activation: takes one of", "did you mean 'relu'?"]),
        (["moons", "--method", "dopri55"], ["method: takes one of", "did you mean 'dopri5'?"]),
        (["moons", "--augment", "-1"], ["augment: takes a whole number from 0, got -1"]),
        (["moons", "--batch-size", "1001"], ["batch_size: takes at most the 1000 points", "1001"]),
        (["g", "--dim", "0"], ["dim: takes a whole number above 0, got 0"]),
        (["moons", "--dim", "2"], ["moons", "dim"]),
        (["moons", "--repeats", "0"], ["repeats: takes a whole number above 0, got 0"]),
        (["moons", "--validation", "1"], ["validation: takes a fraction", "1.0"]),
        (["moons", "--lr", "0"], ["lr: takes a number above 0, got 0.0"]),
        (["moons", "--seed", "-1"], ["seed: takes a whole number from 0 to 2**40 - 1, got -1"]),
        (["g_1d", "--batch-size", "64"], ["batch_size: takes at most the 2 points that there are, got 64"]),
    ],
    ids=str,
)
def test_a_mistake_in_what_to_train_is_one_line_and_creates_nothing(invoke, tmp_path, arguments, words):
    refused(invoke("train", *arguments, "--out", tmp_path / "new" / "run"), *words)
    assert not any(tmp_path.iterdir())


def test_a_method_of_fixed_steps_takes_its_step_size(invoke, tmp_path):
    refused(
        invoke("train", "moons", *QUICK, "--method", "rk4", "--out", tmp_path / "run"),
        "step_size: takes a number above 0",
    )
    assert not any(tmp_path.iterdir())
    result = invoke("train", "moons", *QUICK, "--method", "rk4", "--step-size", 0.25, "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_folder_with_another_run_is_refused_and_left_alone(invoke, trained):
    before = {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    other = invoke("train", "moons", *QUICK, "--lr", 0.5, "--out", trained)
    refused(other, f"out: {trained} holds a run with lr 0.001 (now 0.5); pass a new folder")
    assert {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["run.json", "history.json", "model.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["half", "empty", "missing"])
def test_a_damaged_run_is_named_in_one_line_and_no_picture_is_written(invoke, trained, tmp_path, name, kind):
    for path in trained.iterdir():
        if path.is_file() and path.suffix != ".png":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / name
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:60] if kind == "half" else b"")
    before = {path.name for path in tmp_path.iterdir()}
    refused(invoke("plot", tmp_path), str(tmp_path), name)
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_that_holds_no_run_is_named(invoke, tmp_path, exists):
    folder = tmp_path if exists else tmp_path / "missing"
    refused(invoke("plot", folder), f"{folder}: is not a folder that anode train wrote")
    assert not any(tmp_path.iterdir())


def test_a_picture_of_another_kind_is_refused(invoke, trained, tmp_path):
    refused(invoke("plot", trained, "--out", tmp_path / "picture.bmp"), "out: takes a name that ends in")
    assert not any(tmp_path.iterdir())


def test_a_run_that_failed_is_reported_without_a_traceback(invoke, tmp_path):
    result = invoke("train", "moons", *QUICK, "--lr", 1e6, "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "failed: repeat 0" in result.stdout
    assert invoke("plot", tmp_path / "run").exit_code in (0, 2)


def test_reproduce_prints_the_claims_and_where_the_report_is(invoke, small, tmp_path):
    folder = tmp_path / "out"
    result = invoke("reproduce", "fig03", "--repeats", 2, "--jobs", 1, "--out", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in ("A flow on the line cannot", "inconclusive", "of 2 repeats", "sign test", f"report: {folder}"):
        assert words in result.stdout
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    result = invoke("report", folder)
    assert (result.exit_code, result.stdout) == (0, f"report: {folder / 'report.html'}\n")
    assert (folder / "report.html").read_bytes() == page


def test_reproduce_lists_the_repeats_that_failed(invoke, small, tmp_path, monkeypatch):
    from anode.train.record import Failure

    real = ToyRun.train

    def hurt(run, tell, folder, place):
        result = real(run, tell, folder, place)
        result.history.failures.append(Failure(1, 3, "MAX_STEPS: too many", "MAX_STEPS"))
        return result

    monkeypatch.setattr(ToyRun, "train", hurt)
    result = invoke("reproduce", "fig03", "--repeats", 2, "--jobs", 1, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "failed: map-g, repeat 1 (first in iteration 3, 1 in total): MAX_STEPS: too many" in result.stdout


def diverging(monkeypatch, *names: str) -> None:
    """Let runs of fig03 fail, and leave its figure empty."""
    for name in names:
        monkeypatch.setitem(protocols.RUNS, name, replace(protocols.RUNS[name], lr=1e30))
    monkeypatch.setitem(STUDIES, "fig03", replace(STUDIES["fig03"], draw=lambda _: Drawing(Figure(figsize=(1, 1)))))


def test_reproduce_ends_with_an_error_if_training_failed_in_every_repeat_of_every_run(
    invoke, small, tmp_path, monkeypatch
):
    diverging(monkeypatch, "map-g", "map-identity")
    arguments = ["reproduce", "fig03", "--repeats", 2, "--jobs", 1, "--out", tmp_path / "out"]
    result = invoke(*arguments)
    for name in ("map-g", "map-identity"):
        assert f"failed: {name}, repeat 0" in result.stdout
        assert f"failed: {name}, repeat 1" in result.stdout
    assert (tmp_path / "out" / "report.html").exists()
    said = "error: training failed in every repeat of every run; the reasons are listed above\n"
    assert (result.exit_code, result.stderr) == (1, said)
    again = invoke(*arguments)  # nothing is trained again
    assert (again.exit_code, again.stderr) == (1, said)


def test_reproduce_ends_well_if_something_was_trained(invoke, small, tmp_path, monkeypatch):
    diverging(monkeypatch, "map-g")
    result = invoke("reproduce", "fig03", "--repeats", 1, "--jobs", 1, "--out", tmp_path / "out")
    assert "failed: map-g, repeat 0" in result.stdout
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig33"], ["figure: takes one of toy, fig01", "got 'fig33'; did you mean 'fig23'?"]),
        (["fig03", "nonsense"], ["figure: takes one of toy, fig01", "got 'nonsense'"]),
        (["fig03", "--repeats", "0"], ["repeats: takes a whole number above 0, got 0"]),
        (["fig03", "--jobs", "0"], ["jobs: takes a whole number above 0, got 0"]),
        (["fig03", "--seed", "-1"], ["seed: takes a whole number from 0, got -1"]),
    ],
    ids=str,
)
def test_a_mistake_in_what_to_reproduce_is_one_line_and_creates_nothing(invoke, tmp_path, arguments, words):
    refused(invoke("reproduce", *arguments, "--out", tmp_path / "out"), *words)
    assert not any(tmp_path.iterdir())


def test_a_figure_without_its_zero_is_understood(invoke, tmp_path):
    result = invoke("reproduce", "fig4", "--out", tmp_path)  # one that needs no training
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads((tmp_path / "anode-results.json").read_text())["studies"] == ["fig04"]


def test_a_folder_that_is_not_for_results_is_refused(invoke, tmp_path):
    (tmp_path / "notes.txt").write_text("keep me")
    refused(invoke("reproduce", "fig04", "--out", tmp_path), f"{tmp_path} has other files")
    refused(invoke("reproduce", "fig04", "--out", tmp_path / "notes.txt"), "takes a folder, got the file")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "keep me"


def test_other_settings_in_the_same_folder_are_refused(invoke, tmp_path):
    assert invoke("reproduce", "fig04", "--out", tmp_path).exit_code == 0
    refused(invoke("reproduce", "fig04", "--seed", 1, "--out", tmp_path), "repeats 20, seed 0", "--no-resume")
    assert invoke("reproduce", "fig04", "--seed", 1, "--no-resume", "--out", tmp_path).exit_code == 0
    assert json.loads((tmp_path / "anode-results.json").read_text())["seed"] == 1


def test_a_process_that_was_killed_is_one_line_and_another_exit_code(invoke, tmp_path, monkeypatch):
    def died(*_):
        raise workers.WorkerDiedError("a training process was killed")

    monkeypatch.setattr("anode.experiments.workers.do_runs", died)
    result = invoke("reproduce", "fig03", "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (1, "error: a training process was killed\n")


def test_a_report_of_nothing_is_refused(invoke, tmp_path):
    refused(invoke("report", tmp_path / "missing"), "anode-results.json", "is missing")
    assert not any(tmp_path.iterdir())


def test_a_report_of_interrupted_results_is_refused(invoke, small, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "do_run", interrupted)
    result = invoke("reproduce", "fig03", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 130
    assert result.stderr.splitlines() == [
        f"interrupted; finished work is saved in {tmp_path}; run the same command again to continue"
    ]
    refused(invoke("report", tmp_path), "anode-results.json", "unfinished", "run the same command again to continue")


def test_every_figure_can_be_asked_for_by_its_name(invoke, tmp_path, monkeypatch):
    asked = []
    note = lambda work, _: asked.extend(study.id for study in work.studies) or 1 / 0  # noqa: E731
    monkeypatch.setattr("anode.experiments.reproduce.reproduce", note)
    invoke("reproduce", *STUDIES)
    assert asked == list(STUDIES)


# The command, which says by a file that its first epoch is done.
WATCHED = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun without
from anode.train.evaluation import Evaluation
validate, seen = Evaluation.validate, Path(sys.argv.pop(1))
Evaluation.validate = lambda self, iterations: (validate(self, iterations), seen.touch())
from anode.cli import run
from anode.ode.solver import SETTINGS
run()
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
)
def test_ctrl_c_and_signals_that_end_a_process_end_training_early_and_save_what_there_is(tmp_path, number, code):
    folder, seen = tmp_path / "run", tmp_path / "seen"
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(seen), "train", "moons", "--epochs", "100000", "--out", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        end = time.monotonic() + 30
        while not seen.exists() and started.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        started.send_signal(number)
        try:
            out, err = started.communicate(timeout=60)
        finally:
            started.kill()
    assert (started.returncode, err) == (code, "")
    assert "stopped: interrupted" in out
    found = load_saved(folder)
    assert len(last_history(folder / "checkpoint")) == len(found.history)
    assert len(found.history) > 0
    assert found.history.stopped == "interrupted"


def test_a_warning_is_one_line_without_the_program_it_comes_from(capsys):
    show_warning(UserWarning("state-6 is damaged"), UserWarning, "resume.py", 44)
    assert capsys.readouterr().err == "warning: state-6 is damaged\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rtol", "inf"], ["rtol: takes a finite number, got inf"]),
        (["--atol", "inf"], ["atol: takes a finite number, got inf"]),
        (["--step-size", "inf"], ["step_size: takes a finite number, got inf"]),
        (["--lr", "inf"], ["lr: takes a finite number, got inf"]),
        (["--weight-decay", "inf"], ["weight_decay: takes a finite number, got inf"]),
        (["--max-steps", "0"], ["error: max_steps: takes a whole number above 0, got 0"]),
        (["--model", "resnet", "--hidden", "0"], ["error: hidden: takes a whole number above 0, got 0"]),
        (["--augment", "-1"], ["error: augment: takes a whole number from 0, got -1"]),
    ],
)
def test_a_number_that_training_cannot_have_is_refused_by_the_name_of_its_option(invoke, tmp_path, arguments, words):
    refused(invoke("train", "moons", *arguments, "--out", tmp_path / "run"), *words)
    assert not any(tmp_path.iterdir())


def test_data_that_is_not_there_is_named_with_what_there_is(invoke, tmp_path):
    result = invoke("train", "penguins", "--out", tmp_path / "run")
    kinds = (
        "data: takes one of g_1d",
        "digits, mnist",
        "iris, wine",
        "a file that ends in .csv",
        "a folder of pictures",
    )
    refused(result, *kinds, "got 'penguins', and there is no such file or folder")
    assert "did you mean" not in result.stderr


def test_without_a_folder_every_data_and_model_has_one_of_its_own(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["moons"], ["moons", "--augment", "1"], ["moons", "--model", "resnet"], ["circles"]):
        result = invoke("train", *arguments, *QUICK)
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"saved: {TrainOptions(arguments[0]).data}-" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "circles-anode5",
        "moons-anode1",
        "moons-anode5",
        "moons-resnet",
    ]
    assert invoke("train", "moons", "--augment", "1", *QUICK, "--out", "run").exit_code == 0  # as README has it


def test_a_folder_a_thousand_levels_deep_is_a_folder_like_any_other(invoke, tmp_path):
    folder = tmp_path / ("a/" * 1000)
    try:
        result = invoke("train", "moons", *QUICK, "--out", folder)
        assert (result.exit_code, result.stderr) == (0, "")
        assert (folder / "model.json").exists()
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "a")], check=True)  # pytest, which works recursively, could not


def test_a_path_that_is_too_long_is_one_line(invoke, tmp_path):
    refused(invoke("train", "moons", *QUICK, "--out", tmp_path / ("a" * 300)), "File name too long")
    refused(invoke("train", "moons", *QUICK, "--out", tmp_path / ("a/" * 3000)), "File name too long")
    assert not any(tmp_path.iterdir())


def test_without_a_compiled_engine_info_says_how_to_build_one(invoke, monkeypatch):
    monkeypatch.setattr("anode.engine.native.extension", None)
    result = invoke("info")
    assert result.exit_code == 0
    assert "pip install --no-cache-dir --force-reinstall --no-deps ." in result.stdout


def test_info_says_how_to_see_what_the_engine_does(invoke, monkeypatch):
    monkeypatch.setattr("anode.engine.native.instruction_sets", lambda: ["avx2"])
    result = invoke("info")
    assert "avx2 instructions" in result.stdout
    assert "anode.explain(f, y0)" in result.stdout


# What Python runs before anything else: Ctrl-C when a module is about to be imported.
INTERRUPTING = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun without

class Interrupting:
    def find_spec(self, name, *_):
        if name == os.environ["INTERRUPTED_BY"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("module", ["torch", "anode.cli.models"])
@pytest.mark.parametrize("start", [["-m", "anode"], ["-c", "import anode_command; anode_command.run()"]], ids=str)
def test_ctrl_c_during_the_imports_ends_the_command_quietly(tmp_path, start, module):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPTED_BY": module}
    done = subprocess.run(
        [sys.executable, *start, "info"], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("start", [["-c", "import anode"], ["-m", "package"]], ids=str)
def test_ctrl_c_while_another_program_imports_the_library_is_left_to_that(tmp_path, start):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import anode")
    (tmp_path / "package" / "__main__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPTED_BY": "torch"}
    done = subprocess.run(
        [sys.executable, *start, "anode"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")


def test_the_installed_command_begins_where_ctrl_c_is_quiet():
    (entry,) = entry_points(group="console_scripts", name="anode")
    assert entry.value == "anode_command:run"
