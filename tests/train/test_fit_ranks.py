import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from anode import History
from anode.storage import read_tensors
from anode.train import ranks
from helpers.together import RUNS, train
from helpers.trainings import ALL_SERIES, same


def launch(folder: Path, until: str) -> subprocess.CompletedProcess:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0"]
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tests)}
    return subprocess.run(
        [sys.executable, *command, str(tests / "helpers" / "together.py"), str(folder), until],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes made: first one run that is killed, and then all of them. It is made once for all workers."""
    workers = tmp_path_factory.getbasetemp()
    root = workers.parent if "PYTEST_XDIST_WORKER" in os.environ else workers
    folder = root / "ranks"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "said-1.json").exists():
            make(folder)
    return folder


def make(folder: Path) -> None:
    killed = launch(folder, "killed")
    assert killed.returncode != 0
    assert f"exitcode  : -{int(signal.SIGKILL)}" in killed.stderr
    assert "state-4.json" in {path.name for path in (folder / "states-of-0").iterdir()}
    assert not list(folder.glob("kept-*"))
    done = launch(folder, "the end")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def said(folder):
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_do_what_one_does(name, folder):
    model, expected = train(name)
    for rank in range(2):
        history = History.load(folder / f"{name}-{rank}.json")
        for series in ("nfe", "accepted", "rejected", "nfe_backward", "validation_at", "check_at"):
            np.testing.assert_array_equal(getattr(history, series), getattr(expected, series), err_msg=series)
        for series in ("loss", "accuracy", "validation", "validation_accuracy", "validation_nfe"):
            np.testing.assert_allclose(getattr(history, series), getattr(expected, series), rtol=1e-6, err_msg=series)
        np.testing.assert_allclose(history.check, expected.check, rtol=1e-4)
        assert history.failures == expected.failures
        assert history.stopped == expected.stopped
        for ours, theirs in zip(history.snapshots, expected.snapshots, strict=True):
            np.testing.assert_allclose(ours.features, theirs.features, rtol=1e-10, atol=1e-10)
            assert ours.nfe == theirs.nfe
        weights = read_tensors(folder / f"{name}-{rank}.safetensors")
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(weights[key], parameter.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_both_processes_have_the_same_bits(name, folder):
    one, other = (History.load(folder / f"{name}-{rank}.json") for rank in range(2))
    for series in (*ALL_SERIES, "seconds"):
        np.testing.assert_array_equal(getattr(one, series), getattr(other, series), err_msg=series)
    assert same(*(list(read_tensors(folder / f"{name}-{rank}.safetensors").values()) for rank in range(2)))


def test_the_runs_are_such_that_steps_and_failures_matter():
    steep, skip, budget = (train(name)[1] for name in ("steep", "skip", "budget"))
    assert len(set(steep.nfe.tolist())) > 1
    assert [failure.status for failure in skip.failures] == ["LOSS"] * 3
    assert {failure.status for failure in budget.failures} == {"MAX_STEPS"}


@pytest.mark.slow
def test_only_the_first_process_tells_and_keeps(said, folder):
    assert [(folder / f"told-{rank}").read_text() for rank in range(2)] == ["9", "0"]
    assert not (folder / "states-of-1").exists()
    assert said[0]["states"] == [*(f"state-{i}.{s}" for i in (4, 9) for s in ("json", "safetensors"))]
    assert said[1]["states"] is None


@pytest.mark.slow
def test_all_processes_stop_where_one_does(said):
    for each in said:
        assert each["interrupted"] == ["interrupted", 4]
        assert each["late"] == ["time is up", 1]


@pytest.mark.slow
def test_an_error_of_the_first_process_ends_all(said):
    assert said[0]["listener"] == "ZeroDivisionError: mine"
    assert said[1]["listener"].startswith("RuntimeError: the first process could not go on")
    assert said[0]["refused"].startswith("ValueError: checkpoint: ")
    assert "RuntimeError: the first process could not go on: checkpoint: " in said[1]["refused"]
    assert said[0]["damaged"].startswith("DamagedFileError: checkpoint: no checkpoint in ")
    assert "no checkpoint in" in said[1]["damaged"]


@pytest.mark.slow
def test_a_failure_is_raised_by_all(said):
    for each in said:
        assert each["raised"].startswith("FloatingPointError: in iteration ")
        assert each["unsolved"].startswith("SolveError: in iteration 0 of training, MAX_STEPS")


@pytest.mark.slow
def test_what_several_processes_cannot_do_is_an_error_in_each(said):
    for each in said:
        assert (
            each["stack"] == "ValueError: model: takes a single model if several processes train it, got 'a stack of 2'"
        )
        assert each["sample"].startswith('ValueError: model: takes flows with control="joint" if several processes')
        assert each["continuous"].startswith('ValueError: model: takes flows with gradient="discrete" or "stored"')
        assert each["others"].startswith("ValueError: data, model: take the same data, model and settings in every")


def test_a_process_by_itself_is_the_first_and_only_one():
    with ranks.start() as rank:
        assert rank == 0
        alone = ranks.Ranks(torch.device("cpu"))
    assert alone.alone
    assert alone.first
    batch = torch.arange(5)
    share = alone.share(batch)
    assert share.points is batch
    assert share.weight == 1.0


@pytest.mark.parametrize("points", [1, 2, 3, 7])
def test_shares_are_in_order_and_weigh_as_much_as_there_is_in_them(points):
    shares = []
    for rank in range(3):
        one = ranks.Ranks(torch.device("cpu"))
        one.rank, one.size = rank, 3
        shares.append(one.share(torch.arange(points)))
    assert torch.cat([share.points for share in shares if share.weight]).tolist() == list(range(points))
    assert sum(share.weight for share in shares) == pytest.approx(1.0)
    for share in shares:
        assert len(share.points) == max(1, round(share.weight * points))
        assert share.of(torch.tensor(torch.nan)).isnan() == (share.weight > 0)
