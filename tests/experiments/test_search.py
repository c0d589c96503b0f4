import json
import math
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import optuna
import pytest
import torch
from typer.testing import CliRunner

import anode
from anode.cli import app
from anode.experiments.runs import load
from anode.experiments.search import spaces, tpe
from anode.experiments.search.grid import Judged, best, markdown, ranked, search
from anode.experiments.search.runs import Cross, SearchRun, groups, losses
from anode.experiments.search.spaces import PAPER_GRIDS, PAPERS_BEST, Setting, settings
from anode.experiments.search.tpe import found_in, opened, optimise
from anode.files import DamagedFileError
from anode.train.progress import Bars

QUICK = Cross(epochs=1, folds=3)
SMALL = {"batch_size": (128,), "lr": (1e-3, 1e-2), "hidden": (4,)}


@pytest.fixture(autouse=True)
def _few_points(monkeypatch):
    """A tenth of the points."""
    real = anode.datasets.load
    monkeypatch.setattr(anode.datasets, "load", lambda name, **options: real(name, **options).split(0.1)[0])


# Spaces


def test_the_papers_grids_have_84_settings():
    counts = {model: len(list(settings(model, space))) for model, space in PAPER_GRIDS.items()}
    assert counts == {"ResNet": 36, "NODE": 12, "ANODE": 36}
    assert all(PAPERS_BEST[model] in list(settings(model, space)) for model, space in PAPER_GRIDS.items())


def test_a_setting_is_described_by_what_is_searched():
    assert str(PAPERS_BEST["ANODE"]) == "batch size 64, lr 0.001, hidden 32, augment 5"
    assert str(PAPERS_BEST["NODE"]) == "batch size 64, lr 0.001, hidden 32"


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ([], "grid: takes a table of models"),
        ({}, "grid: takes a table of models"),
        ({"NODES": SMALL}, "grid: takes one of ResNet, NODE, ANODE, got 'NODES'; did you mean 'NODE'"),
        ({"NODE": []}, "grid, NODE: takes a table of hyperparameters"),
        ({"NODE": {**SMALL, "depth": [1]}}, "grid, NODE: takes one of batch_size, lr, hidden, got 'depth'"),
        ({"NODE": {**SMALL, "augment": [1]}}, "grid, NODE: takes one of batch_size, lr, hidden, got 'augment'"),
        ({"NODE": {**SMALL, "lr": []}}, "grid, NODE, lr: takes a list of at least one number"),
        ({"NODE": {**SMALL, "lr": 0.1}}, "grid, NODE, lr: takes a list of at least one number"),
        ({"NODE": {**SMALL, "lr": "fast"}}, "grid, NODE, lr: takes a list"),
        ({"NODE": {**SMALL, "lr": [-1]}}, "grid, NODE, lr: takes a number above 0"),
        ({"NODE": {**SMALL, "lr": [0.1, 0.1]}}, "grid, NODE, lr: takes different numbers"),
        ({"NODE": {**SMALL, "hidden": [1.5]}}, "grid, NODE, hidden: takes a whole number"),
    ],
    ids=str,
)
def test_a_grid_that_is_none_is_named(tmp_path, grid, said):
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    with pytest.raises(ValueError, match=said):
        spaces.read(tmp_path / "grid.json")


def test_a_grid_is_read(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps({"NODE": dict(reversed(SMALL.items()))}))
    assert spaces.read(tmp_path / "grid.json") == {"NODE": SMALL}


# Runs


def test_settings_of_one_shape_are_one_run():
    every = [one for model, space in PAPER_GRIDS.items() for one in settings(model, space)]
    runs = groups(every, Cross())
    assert len(runs) == 28
    assert all(len(run.settings) == 3 and run.repeats == 9 for run in runs)
    assert len({run.name for run in runs}) == 28
    assert sorted(map(str, every)) == sorted(str(setting) for run in runs for setting in run.settings)


def test_every_fold_is_kept_apart_once():
    parts = Cross(folds=3).parts()
    apart = torch.cat([x for _, (x, _) in parts])
    assert len(apart.unique(dim=0)) == len(apart) == 300
    for (x, y), (other, _) in parts:
        assert (len(x), len(y), len(other)) == (200, 200, 100)
        assert not set(map(tuple, x.tolist())) & set(map(tuple, other.tolist()))


def test_folds_are_of_one_size_though_the_points_cannot_be_divided():
    assert {(len(a[0]), len(b[0])) for a, b in Cross(folds=7).parts()} == {(257, 42)}


@pytest.mark.parametrize("model", ["ResNet", "NODE", "ANODE"])
def test_together_settings_get_the_losses_they_would_get_alone(model, tmp_path):
    extra = {"ResNet": {"layers": 2}, "NODE": {}, "ANODE": {"augment": 2}}[model]
    both = tuple(Setting(model, 64, lr, 8, **extra) for lr in (1e-3, 1e-2))
    cross = replace(QUICK, repeats=2, folds=2)
    together = losses(SearchRun(both, cross).train(None, tmp_path))
    for setting in both:
        for i, ((x, y), apart) in enumerate(cross.parts()):
            seed = cross.trials[i][1]
            torch.manual_seed(seed)
            alone = SearchRun((setting,), cross).build()
            history = anode.fit(alone, (x, y), epochs=1, batch_size=64, lr=setting.lr, validation=apart, seed=seed)
            assert together[setting][i] == pytest.approx(history.validation[-1], rel=1e-3)


def test_a_run_is_kept_and_read(tmp_path):
    run = SearchRun(tuple(settings("NODE", SMALL)), QUICK)
    result = run.train(None, tmp_path)
    anode.experiments.runs.save(result, tmp_path)
    again = load(run, tmp_path)
    assert {k: v.tolist() for k, v in losses(again).items()} == {k: v.tolist() for k, v in losses(result).items()}
    assert load(replace(run, cross=replace(QUICK, epochs=2)), tmp_path) is None


# Grids


def judged(model: str, lr: float, *values: float, dim: int = 1) -> Judged:
    return Judged(replace(PAPERS_BEST[model], lr=lr), dim, list(values))


def test_settings_are_ranked_by_their_mean_loss_and_those_that_failed_come_last():
    found = ranked(
        [
            judged("NODE", 1.0, 0.3, 0.5),
            judged("NODE", 2.0, math.nan, 0.0),
            judged("NODE", 1e-3, 0.2, 0.4),
            judged("ANODE", 1.0, 9.0),
            judged("NODE", 1.0, 7.0, dim=2),
        ]
    )
    assert [(each.dim, each.setting.model, each.setting.lr, each.rank) for each in found] == [
        (1, "NODE", 1e-3, 1),
        (1, "NODE", 1.0, 2),
        (1, "NODE", 2.0, 3),
        (1, "ANODE", 1.0, 1),
        (2, "NODE", 1.0, 1),
    ]
    assert [(ours.setting.lr, theirs and theirs.rank) for ours, theirs in best(found)] == [
        (1e-3, 1),
        (1.0, None),
        (1.0, None),
    ]
    text = markdown(found)
    assert "| 1 | NODE | batch size 64, lr 0.001, hidden 32 | 0.3 ± 0.1 |" in text
    assert "not tried" in text
    assert "| 3 | batch size 64, lr 2, hidden 32 | failed |" in text


def test_a_search_goes_on_where_it_was(tmp_path, monkeypatch):
    done = []
    real = SearchRun.train

    def train(run, tell, folder, place):
        done.append(run.name)
        if len(done) == 2:
            raise KeyboardInterrupt
        return real(run, tell, folder, place)

    monkeypatch.setattr(SearchRun, "train", train)
    crosses = [replace(QUICK, dim=dim) for dim in (1, 2)]
    arguments = ({"NODE": SMALL}, crosses, tmp_path, 1, Bars())
    with pytest.raises(KeyboardInterrupt):
        search(*arguments)
    found = search(*arguments)
    assert len(done) == 3
    assert len(found) == 4
    assert [each.rank for each in found] == [1, 2, 1, 2]
    search(*arguments)
    assert len(done) == 3


def test_another_search_does_not_overwrite_what_was_found(tmp_path):
    search({"NODE": SMALL}, [QUICK], tmp_path, 1, Bars())
    before = {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    for space, cross in (({**SMALL, "lr": (0.1,)}, QUICK), (SMALL, replace(QUICK, epochs=2))):
        with pytest.raises(ValueError, match=r"out: takes a folder without it, .*node-d2-batch128-hidden4\.json"):
            search({"NODE": space}, [cross], tmp_path, 1, Bars())
    assert {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()} == before


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"format": "anode search 1"}', '{"format": "anode search 1", "settings": [3]}']
)
def test_a_damaged_file_of_results_is_named(tmp_path, text):
    (tmp_path / "search.json").write_text(text)
    with pytest.raises(DamagedFileError, match=r"search\.json: is"):
        search({"NODE": SMALL}, [QUICK], tmp_path, 1, Bars())
    assert (tmp_path / "search.json").read_text() == text


def test_a_damaged_run_is_named(tmp_path):
    search({"NODE": SMALL}, [QUICK], tmp_path, 1, Bars())
    path = next((tmp_path / "runs").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=path.stem):
        search({"NODE": SMALL}, [QUICK], tmp_path, 1, Bars())


@pytest.mark.slow
def test_processes_find_what_one_finds(tmp_path, monkeypatch):
    monkeypatch.undo()  # other processes would not know of it
    space = {"ResNet": {**SMALL, "layers": (1, 2)}}
    one, two = (search(space, [QUICK], tmp_path / str(jobs), jobs, Bars()) for jobs in (1, 2))
    assert [(each.setting, each.losses) for each in one] == [(each.setting, each.losses) for each in two]


# The command


def run(*arguments):
    return CliRunner().invoke(app, ["search", *map(str, arguments)])


def test_the_command_searches_a_grid_and_draws_it(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps({"ResNet": {**SMALL, "layers": [1]}, "NODE": SMALL}))
    out = tmp_path / "out"
    result = run("--grid", tmp_path / "grid.json", "--epochs", 1, "--jobs", 1, "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Best settings" in result.stdout
    content = json.loads((out / "search.json").read_text())
    assert [entry["rank"] for entry in content["settings"]] == [1, 2, 1, 2, 1, 2, 1, 2]
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == [
        "search-d1.png",
        "search-d1.svg",
        "search-d2.png",
        "search-d2.svg",
        "search.json",
        "search.md",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["NODES"], "models: takes ResNet, NODE, ANODE, got 'NODES'"),
        (["--folds", 100000], "folds: takes at most the"),
        (["--trials", 5], "trials: takes no value with --sampler grid"),
        (["--sampler", "tpe", "--jobs", 2], "jobs: takes no value with --sampler tpe"),
        (["--sampler", "tpe", "--storage", "sqlite://"], "storage: takes sqlite:///FILE"),
        (["--sampler", "tpe", "--storage", "sqlite:///:memory:"], "storage: takes sqlite:///FILE"),
        (["--data", "moons"], "data: takes one of g, separable, got 'moons'"),
        (["--dim", 0], "dim: takes a whole number above 0, got 0"),
        (["--folds", 1], "folds: takes at least 2, got 1"),
        (["--epochs", 0], "epochs: takes a whole number above 0, got 0"),
        (["--jobs", 0], "jobs: takes a whole number above 0, got 0"),
        (["--sampler", "random"], "sampler: takes one of grid, tpe, got 'random'"),
        (["--storage", "sqlite:///x.db"], "storage: takes no value with --sampler grid"),
        (["--sampler", "tpe", "--trials", 0], "trials: takes a whole number above 0, got 0"),
        (["--sampler", "tpe", "--storage", "nonsense"], "storage: takes sqlite:///FILE, journal:FILE"),
        (["--sampler", "tpe", "--storage", "sqlite:////missing/folder/x.db"], "storage: takes sqlite:///FILE"),
        (["--sampler", "tpe", "--storage", "postgresql://localhost/none"], "storage: takes sqlite:///FILE"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(tmp_path, arguments, said):
    result = run(*arguments, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {said}")


# Optuna


def storages(folder):
    return {"sqlite": f"sqlite:///{folder / 'study.db'}", "journal": f"journal:{folder / 'study.log'}"}


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_optuna_tries_settings_within_the_limits(tmp_path, kind):
    space = {**SMALL, "hidden": (2, 5), "augment": (1, 3)}
    study = optimise("ANODE", space, QUICK, storages(tmp_path)[kind], 3, Bars())
    found = found_in(study, "ANODE", QUICK)
    assert len(study.trials) == 3
    for each in found:
        assert each.setting.batch_size == 128
        assert 1e-3 <= each.setting.lr <= 1e-2
        assert 2 <= each.setting.hidden <= 5
        assert 1 <= each.setting.augment <= 3
        assert len(each.losses) == 3
    assert study.best_value == pytest.approx(min(each.mean for each in found))
    again = optimise("ANODE", space, QUICK, storages(tmp_path)[kind], 3, Bars())
    assert len(again.trials) == 3


def test_choices_with_a_seed_are_the_same_every_time(tmp_path):
    space = {**SMALL, "hidden": (2, 9)}
    tried = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        study = optimise("NODE", space, QUICK, f"journal:{tmp_path / name}", 3, Bars(), seed)
        tried.append([trial.params for trial in study.trials])
    assert tried[0] == tried[1] != tried[2]


def test_a_study_of_another_space_is_refused(tmp_path):
    storage = storages(tmp_path)["sqlite"]
    opened("NODE", SMALL, QUICK, storage)
    for space, cross in ((PAPER_GRIDS["NODE"], QUICK), (SMALL, replace(QUICK, folds=2))):
        with pytest.raises(ValueError, match="has a study 'anode-NODE-d2' with another grid"):
            opened("NODE", space, cross, storage)


def test_a_trial_that_does_worse_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("anode.experiments.search.tpe.STARTUP", 1)
    space = {**SMALL, "lr": (1e-2,)}
    storage, cross = storages(tmp_path)["sqlite"], replace(QUICK, epochs=5)
    optimise("NODE", space, cross, storage, 1, Bars())
    study = opened("NODE", space, cross, storage)
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: True)
    study = optimise("NODE", space, cross, storage, 2, Bars())
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert len(study.trials[1].intermediate_values) == 1


def test_the_command_lets_optuna_search(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps({"NODE": SMALL}))
    options = ["--dim", 1, "--epochs", 1, "--sampler", "tpe", "--trials", 2, "--out", tmp_path / "out"]
    result = run("--grid", tmp_path / "grid.json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (tmp_path / "out" / "study.db").exists()
    assert len(json.loads((tmp_path / "out" / "tpe.json").read_text())["settings"]) >= 1
    assert not (tmp_path / "out" / "search.json").exists()


WORKER = """
import sys
import threading
from anode.experiments.search import tpe
from anode.experiments.search.runs import Cross
from anode.train.progress import Bars
import torch
torch.set_num_threads(1)
tpe.HEARTBEAT, tpe.GRACE = 1, 2
space = {"batch_size": (128,), "lr": (1e-3, 1e-2), "hidden": (4,)}
tpe.optimise("NODE", space, Cross(epochs=2), sys.argv[1], int(sys.argv[2]), Bars())
"""


def asked(database: str, query: str) -> list[str]:
    """The first column of what a query finds; nothing while the database is not there or being written."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", timeout=0.2, uri=True)) as connection:
            return [row[0] for row in connection.execute(query)]
    except sqlite3.OperationalError:
        return []


def states(database: str) -> list[str]:
    return asked(database, "SELECT state FROM trials")


def every_trial_beats(database: str) -> bool:
    """Whether all trials under way have given a sign of life: Optuna does not miss one killed before its first."""
    silent = """SELECT COUNT(*) FROM trials LEFT JOIN trial_heartbeats USING (trial_id)
                WHERE trials.state = 'RUNNING' AND trial_heartbeats.trial_id IS NULL"""
    return asked(database, silent) == [0]


def test_processes_that_start_together_create_one_database(tmp_path):
    together = threading.Barrier(4)

    def open_it(_: int) -> int:
        together.wait()
        return len(tpe.backend(storages(tmp_path)["sqlite"]).get_all_studies())

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(open_it, range(4))) == [0, 0, 0, 0]


@pytest.mark.slow
def test_processes_share_a_study_and_nothing_is_lost_when_one_is_killed(tmp_path, monkeypatch):
    storage, trials = storages(tmp_path)["sqlite"], 8
    database = storage.removeprefix("sqlite:///")
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, storage, str(trials)]) for _ in range(2)]
    deadline = time.monotonic() + 120
    try:
        while states(database).count("COMPLETE") < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        finished = states(database).count("COMPLETE")
        workers[0].send_signal(signal.SIGSTOP)
        while not every_trial_beats(database) and time.monotonic() < deadline:
            workers[0].send_signal(signal.SIGCONT)
            time.sleep(0.05)
            workers[0].send_signal(signal.SIGSTOP)
        workers[0].kill()
        assert workers[1].wait(120) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    time.sleep(3)  # until the killed process counts as gone
    monkeypatch.undo()  # all points, as the others have them
    monkeypatch.setattr(tpe, "HEARTBEAT", 1)
    monkeypatch.setattr(tpe, "GRACE", 2)
    optimise("NODE", SMALL, Cross(epochs=2), storage, trials + 2, Bars())
    found = states(database)
    assert finished >= 2
    assert found.count("COMPLETE") + found.count("PRUNED") >= trials + 2
    assert "RUNNING" not in found


# After a review


def test_what_a_grid_does_not_name_keeps_the_papers_values():
    found = spaces.complete_spaces({"ANODE": {"lr": [1e-3, 3e-3], "augment": [1, 2]}})
    assert found == {"ANODE": {"batch_size": (64, 128), "lr": (1e-3, 3e-3), "hidden": (16, 32), "augment": (1, 2)}}


def test_batches_larger_than_the_folds_are_found_before_the_work(tmp_path):
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps({"NODE": {"batch_size": [64, 5000]}}))
    result = CliRunner().invoke(app, ["search", "--grid", str(grid), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "grid, NODE, batch_size: takes at most the" in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_named_with_its_argument(tmp_path):
    (tmp_path / "file").write_text("do not lose me")
    for sampler in ("grid", "tpe"):
        result = run("--sampler", sampler, "--out", tmp_path / "file")
        assert result.exit_code == 2
        assert result.stderr == f"error: out: takes a folder, got the file {tmp_path / 'file'}\n"
    assert (tmp_path / "file").read_text() == "do not lose me"


def test_a_search_leaves_hidden_files_of_the_user_alone(tmp_path):
    mine = tmp_path / "runs" / ".notes-20251231.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    options = ["NODE", "--dim", "1", "--epochs", "1", "--jobs", "1", "--out", str(tmp_path)]
    (tmp_path / "grid.json").write_text(json.dumps({"NODE": SMALL}))
    assert run(*options, "--grid", tmp_path / "grid.json").exit_code == 0
    assert mine.read_text() == "mine"


def test_results_that_would_be_lost_are_left_alone(tmp_path):
    out, grid = tmp_path / "out", tmp_path / "grid.json"
    small = {"batch_size": [128], "hidden": [4], "lr": [1e-2]}
    options = ["--dim", "1", "--epochs", "1", "--jobs", "1", "--grid", str(grid), "--out", str(out)]
    grid.write_text(json.dumps({"NODE": small, "ANODE": {**small, "augment": [1]}}))
    assert CliRunner().invoke(app, ["search", *options]).exit_code == 0
    before = (out / "search.json").read_bytes()
    for others in (["NODE"], ["--folds", "4"], ["--epochs", "2"]):
        result = CliRunner().invoke(app, ["search", *options, *others])
        assert result.exit_code == 2, others
        assert "which belongs to another search" in result.output.replace("\n", " ")
        assert (out / "search.json").read_bytes() == before


@pytest.mark.parametrize("text", ["abc", "{}", '{"a": 1}\n'])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"storage: takes .*not an Optuna journal"):
        opened("NODE", SMALL, QUICK, f"journal:{path}")
    assert path.read_text() == text


def test_a_folder_of_any_name_holds_its_study(tmp_path):
    out = tmp_path / "we?ird#dir%20"
    options = ["--dim", "1", "--epochs", "1", "--sampler", "tpe", "--trials", "1", "--out", str(out)]
    assert CliRunner().invoke(app, ["search", "NODE", *options]).exit_code == 0
    assert (out / "study.db").exists()


def test_without_optuna_one_line_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = run("--sampler", "tpe", "--out", tmp_path)
    said = "error: sampler 'tpe': needs optuna; install with: pip install \"anode[search]\"\n"
    assert (result.exit_code, result.stderr) == (1, said)


@pytest.mark.parametrize("sampler", [["--jobs", "1"], ["--sampler", "tpe", "--trials", "2"]])
def test_a_search_in_which_everything_failed_does_not_end_well(tmp_path, sampler):
    (tmp_path / "grid.json").write_text(json.dumps({"NODE": {**SMALL, "lr": [1e30, 1e31]}}))
    options = ["--dim", 1, "--epochs", 2, "--grid", tmp_path / "grid.json", "--out", tmp_path / "out", *sampler]
    result = run(*options)
    assert result.exit_code == 1
    assert "failed" in result.stdout
    assert "error: training failed with every setting; try lower learning rates" in result.stderr.replace("\n", " ")
    assert (tmp_path / "out" / ("tpe.json" if "tpe" in sampler else "search.json")).exists()


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_folder_of_other_files_is_left_alone(tmp_path, sampler):
    (tmp_path / "thesis.tex").write_text("")
    result = CliRunner().invoke(app, ["search", "NODE", "--sampler", sampler, "--out", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"out: {tmp_path} has other files; give a new folder" in result.stderr.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
