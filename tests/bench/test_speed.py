"""Libraries side by side, on tasks of a moment."""

import json
import os
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import torchdiffeq
from typer.testing import CliRunner

from anode.bench import speed, turns
from anode.bench.figures import COLORS, draw
from anode.bench.sides import RIVALS, ours, version, with_torchdiffeq
from anode.bench.sides.fields_in_torch import Network
from anode.bench.sides.in_torch import by_hook
from anode.bench.speed import PARTS, Found, Part, bench, keep, kept, one, truth
from anode.bench.tables import markdown
from anode.bench.tasks import KINDS, Task
from anode.bench.turns import Entry, Row, Worker, WorkerError, agreeing, ask, difference, measure
from anode.bench.turns import row as made_of
from anode.bench.worker import counted
from anode.cli import app
from anode.files import DamagedFileError
from anode.train.progress import Bars

SMALL = Task("gradient", sizes=(2, 8, 2), activations=("tanh", "none"), batch=4)
TASKS = {
    "train": Task("train", sizes=(3, 4, 3), activations=("relu", "none"), time=True, zeros=1, batch=1000),
    "gradient": replace(SMALL, activations=("softplus", "tanh"), double=True),
    "solve": SMALL,
    "predict": replace(speed.PREDICT, batch=50),
}


def quiet(done, total, label):
    assert 0 <= done <= total


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("shared")
def test_all_that_are_installed_do_the_same_work(kind):
    task = TASKS[kind]
    rows = measure([Entry(side, side, task) for side in ("anode", "anode, your module", "torchdiffeq")], 0, quiet)
    assert [row.failed for row in rows] == ["", "", ""]
    engine, module, rival = rows
    assert rival.nfe == module.nfe > 0
    assert engine.nfe == rival.nfe or kind == "predict"  # where rows have steps of their own, which are tested below
    assert len(engine.outcome) >= 3
    assert difference(engine, rival) < 1e-3
    assert difference(module, rival) < 1e-3


@pytest.mark.skipif(not any(map(version, RIVALS[1:])), reason="no other library is installed")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("shared")
def test_libraries_with_steps_of_their_own_do_the_same_work_in_about_as_many(kind):
    sides = ["torchdiffeq", *filter(version, RIVALS[1:])]
    first, *others = measure([Entry(side, side, TASKS[kind]) for side in sides], 0, quiet)
    for other in others:
        assert other.failed == ""
        # No equality: torchode goes on until every point of the batch has got there by steps of its own, torchdyn cuts
        # the last step short and diffrax begins with one of 0.01. Two steps of six evaluations are not exceeded here.
        assert other.nfe > 0
        assert abs(other.nfe - first.nfe) <= 12


def test_evaluations_are_counted_with_the_weights_that_all_begin_with():
    task = replace(speed.TOY, epochs=1)
    works = [side.work(task) for side in (ours, with_torchdiffeq)]
    for work in works:
        work.run()
    mine, theirs = (work.nfe() for work in works)
    assert mine.shape == theirs.shape == (task.iterations,)
    assert mine[0] == theirs[0]
    assert theirs[0] < theirs[-1]  # with the weights at the end it takes more steps
    assert mine.mean() == pytest.approx(theirs.mean(), rel=0.05)


def test_rows_whose_classes_are_predicted_take_the_steps_that_each_would_take_alone():
    task, span = TASKS["predict"], torch.tensor([0.0, TASKS["predict"].t1])
    net, counts = Network(task), []
    for tol in (0.98 * task.tol, task.tol, 1.02 * task.tol):
        counts.append([])

        def solve(net, y0, tol=tol):
            return torchdiffeq.odeint(net, y0, span, rtol=tol, atol=tol, method="dopri5")[-1]

        with torch.no_grad():
            for state in torch.tensor(task.state()).split(1):
                by_hook(solve, counts[-1])(net, state)
    fewest, most = np.min(counts, axis=0), np.max(counts, axis=0)
    assert len(set(counts[1])) > 1
    assert (fewest == most).mean() >= 0.9  # rounding decides only for rows whose error is at the tolerance
    (mine,) = ours.work(task).nfe()
    assert fewest.mean() <= mine <= most.mean()


@pytest.mark.parametrize(
    "task", [SMALL, replace(SMALL, method="euler", step=0.1), replace(SMALL, method="midpoint", step=0.1)]
)
def test_diffrax_evaluates_the_network_as_often_as_its_steps_are_said_to(monkeypatch, task):
    pytest.importorskip("diffrax")
    import jax

    from anode.bench.sides import fields_in_jax, with_diffrax

    calls = []
    call = fields_in_jax.Network.__call__

    def counted_call(self, t, y, args):
        jax.debug.callback(calls.append, t)
        return call(self, t, y, args)

    monkeypatch.setattr(fields_in_jax.Network, "__call__", counted_call)
    nfe = with_diffrax.work(task).nfe()
    jax.effects_barrier()
    assert nfe.tolist() == [len(calls)]


def test_what_is_computed_in_a_second_is_that_of_all_solves_and_not_of_the_first():
    counts = counted(np.array([[14, 20], [20, 26]]))
    assert counts == {"nfe": 14.0, "mean_nfe": 20.0}
    made = made_of(Entry("", "anode", SMALL), {"seconds": [2.0], **counts})
    assert made.gigaflops == SMALL.operations(20.0) / 2.0 / 1e9


@pytest.mark.usefixtures("shared")
def test_models_at_once_do_what_one_does():
    task = replace(TASKS["train"], members=3)
    many, alone = measure([Entry("", "anode", task), Entry("", "anode", replace(task, members=1))], 0, quiet)
    assert difference(many, alone) < 1e-5
    assert many.nfe == alone.nfe


@pytest.mark.usefixtures("shared")
def test_turns_give_times_and_what_was_computed_in_a_second():
    rows = measure([Entry("a", "anode", SMALL), Entry("peak", "peak", SMALL)], 2, quiet)
    for row in rows:
        assert len(row.seconds) == 2
        assert all(seconds > 0 for seconds in row.seconds)
    assert 0 < rows[0].gigaflops < rows[1].gigaflops


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="processes are given processors on Linux alone, and if there are two",
)
@pytest.mark.usefixtures("shared")
def test_two_processes_work_at_the_same_time_on_processors_of_their_own():
    entry = Entry("two", "anode", SMALL, processes=2)
    with turns.Worker(entry, 0) as first, turns.Worker(entry, 1) as second:
        outcomes = [answer["outcome"] for answer in ask([first, second], task=asdict(SMALL))]
        processors = [os.sched_getaffinity(worker._process.pid) for worker in (first, second)]
    assert outcomes[0] == outcomes[1]
    assert [len(each) for each in processors] == [1, 1]
    assert processors[0] != processors[1]
    (row,) = measure([entry], 1, quiet)
    assert row.typical > 0


def test_memory_is_what_a_task_takes_at_its_peak():
    large = Task("solve", sizes=(64, 64), activations=("tanh",), batch=50_000)  # a state has 12.8 MB
    small, row = measure([Entry("", "anode", replace(large, batch=50)), Entry("", "anode", large)], 0, quiet)
    assert small.megabytes < 20 < row.megabytes < 2_000


def test_operations_are_those_of_the_products():
    assert Task("solve", sizes=(2, 8, 2), batch=4).operations(10) == 10 * 4 * 2 * (2 * 8 + 8 * 2)
    assert Task("gradient", sizes=(2, 8, 2), batch=4).operations(10) == 30 * 4 * 2 * (2 * 8 + 8 * 2)
    assert Task("solve", sizes=(2, 8, 2), batch=4, time=True).operations(1) == 4 * 2 * (3 * 8 + 8 * 2)


@pytest.mark.usefixtures("shared")
def test_a_library_that_fails_is_named_with_its_reason():
    broken = Task("gradient", sizes=(2, 8, 2), activations=("nothing", "none"))
    (row,) = measure([Entry("broken", "torchdiffeq", broken)], 1, quiet)
    assert "nothing" in row.failed
    assert np.isnan(row.typical)


def test_who_comes_to_another_result_has_not_done_the_same_work():
    first = Row("a", "anode", 1, seconds=[1.0], outcome=[1.0, 2.0])
    close = Row("b", "diffrax", 1, seconds=[1.0], outcome=[1.0, 2.1])
    other = Row("c", "torchode", 1, seconds=[1.0], outcome=[1.0, 3.0])
    peak = Row("d", "peak", 1, seconds=[1.0])
    kept_rows = agreeing([first, close, other, peak])
    assert [row.failed for row in kept_rows] == ["", "", "result differs by 33 %", ""]
    assert [len(row.seconds) for row in kept_rows] == [1, 1, 0, 1]


def test_a_process_that_dies_is_noticed():
    with Worker(Entry("", "anode", SMALL), 0) as worker:
        worker._process.kill()
        with pytest.raises(WorkerError, match="ended with -9"):
            ask([worker], seconds=0.1)


def test_every_part_has_entries_for_all_of_its_values():
    for part in PARTS.values():
        assert len(part.entries) == max(1, len(part.values), len(part.works))
        for entries in part.entries:
            assert {"anode", "torchdiffeq"} <= {entry.library for entry in entries}
            assert {entry.side for entry in entries} <= {*COLORS, "peak"}


@pytest.mark.usefixtures("shared")
def test_the_truth_is_far_closer_than_any_tolerance_asked_for():
    exact = truth()
    tight = replace(speed.EXACT, tol=1e-11)
    (row,) = measure([Entry("", "anode", tight)], 0, quiet)
    assert np.abs(np.array(row.outcome) - exact[:200]).max() < 1e-9


@pytest.mark.usefixtures("shared")
def test_a_process_that_dies_between_turns_does_not_take_the_others_with_it(monkeypatch):
    send = Worker.send

    def deadly(self, request):
        if "seconds" in request and self.entry.label == "dies":
            self._process.kill()
        send(self, request)

    monkeypatch.setattr(Worker, "send", deadly)
    dead, alive = measure([Entry("dies", "anode, your module", SMALL), Entry("lives", "anode", SMALL)], 1, quiet)
    assert "ended with -9" in dead.failed
    assert len(alive.seconds) == 1


@pytest.fixture
def _few_parts(monkeypatch):
    def sweep(task, timed=True):
        entries = tuple((Entry("anode", "anode", replace(task, batch=n)),) for n in (2, 4))
        return Part("growth", entries, (2, 4), "points", timed)

    parts = {
        "toy": one("a comparison", Entry("anode", "anode", SMALL), Entry("matrix product", "peak", SMALL)),
        "tolerance": sweep(replace(speed.EXACT, tol=1e-6)),
        "memory": sweep(SMALL, timed=False),
    }
    monkeypatch.setattr(speed, "PARTS", parts)
    monkeypatch.setattr("anode.bench.turns.SECONDS", 0.01)


def run(*arguments):
    return CliRunner().invoke(app, ["bench", "speed", *map(str, arguments)])


@pytest.mark.slow
@pytest.mark.usefixtures("_few_parts", "shared")
def test_the_command_measures_draws_and_keeps_what_it_has(tmp_path):
    result = run("--out", tmp_path, "--turns", 1)
    assert (result.exit_code, result.exception) == (0, None)  # a slow machine prints lines about the progress
    assert "error" not in result.stderr
    files = {path.name for path in tmp_path.iterdir()}
    pictures = {f"{name}.{kind}" for name in ("comparisons", "growth") for kind in ("png", "svg")}
    assert files == {"toy.json", "tolerance.json", "memory.json", "speed.md", *pictures}
    assert "1.0x" in (tmp_path / "speed.md").read_text()
    assert all(0 < error < 1e-4 for point in kept(tmp_path, "tolerance").errors for error in point)

    before = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("toy", "memory")}
    (tmp_path / "memory.json").unlink()
    found = bench(tmp_path, [], 1, Bars())
    assert json.loads((tmp_path / "toy.json").read_text()) == before["toy"]
    assert [one.name for one in found] == ["toy", "tolerance", "memory"]
    assert "MB" in markdown(found)


@pytest.mark.usefixtures("_few_parts")
def test_what_cannot_be_measured_or_read_is_refused(tmp_path):
    result = run("typo", "--out", tmp_path)
    assert result.exit_code == 2
    assert "typo" in result.stderr
    assert "toy" in result.stderr
    row = {"label": "anode", "side": "anode", "threads": 1, "seconds": [1.0]}
    good = {"format": "anode speed 1", "values": [], "points": [[row]], "errors": [], "environment": {"date": "today"}}
    (tmp_path / "toy.json").write_text(json.dumps(good))
    assert kept(tmp_path, "toy").rows[0][0].typical == 1.0
    bad = [
        {"points": 3},
        {"points": []},
        {"points": [[]]},
        {"points": [[{**row, "side": "nobody"}]]},
        {"points": [[{**row, "seconds": "ab"}]]},
        {"errors": [[1.0, 2.0]]},
        {"format": "anode speed 0"},
    ]
    for change in bad:
        (tmp_path / "toy.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(DamagedFileError, match=r"toy\.json"):
            kept(tmp_path, "toy")


@pytest.mark.usefixtures("_few_parts")
def test_what_failed_is_kept_and_shown(tmp_path):
    failed = Row("anode", "anode", 1, failed="no memory")
    keep(tmp_path, Found("toy", [[failed]], []))
    keep(tmp_path, Found("tolerance", [[failed], [failed]], [[float("nan")], [float("nan")]]))
    found = [kept(tmp_path, name) for name in ("toy", "tolerance")]
    assert np.isnan(found[1].errors[0][0])
    assert markdown(found).count("no memory") == 3
    draw(tmp_path, found)
    assert not (tmp_path / "comparisons.png").exists()


def test_a_row_without_an_outcome_differs_from_everything():
    assert np.isnan(difference(Row("a", "anode", 1), Row("b", "anode", 1, outcome=[1.0])))
