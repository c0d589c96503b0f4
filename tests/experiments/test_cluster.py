import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

import anode
from anode.experiments import cluster as module
from anode.experiments import remote
from anode.experiments.cluster import Cluster, Command, at_work, tasks_of, together
from anode.experiments.images.runs import ImageRun
from anode.experiments.reproduce import planned, reproduce
from anode.experiments.runs import HERE, Place, load
from anode.experiments.search.command import run_search
from anode.experiments.search.options import Search
from anode.experiments.settings import Settings
from anode.experiments.workers import Processes, WorkerDiedError, do_runs
from anode.extras import MissingPackageError
from anode.train.callbacks import Report
from helpers.folders import state
from helpers.processes import wait_until
from helpers.tiny import RUNS, quiet, same, tiny

IMAGES = ImageRun("tiny", "digits", 4, 48, 20, augment=1, filters=3, epochs=2, batch_size=20, repeats=2, seed=5)
LONG = 100_000
"""So many epochs that a run is never done by itself."""

# A worker that keeps every state of an image run, as one does every minute.
WORKER = """
import sys
from functools import partial
from anode.experiments.images import runs
runs.fit = partial(runs.fit, checkpoint_every=0.05)
from distributed.cli.dask_worker import main
main(sys.argv[1:])
"""

# The command with a run that never ends.
COMMAND = """
import signal, sys
from dataclasses import replace
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {here!r})
from helpers import tiny
from anode.experiments.toy import protocols
protocols.RUNS = {{**tiny.RUNS, "map-g": replace(tiny.RUNS["map-g"], epochs={long})}}
from anode.cli import run
run()
"""


def start(*command: str, log: Path) -> subprocess.Popen:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *command],
            stdout=file,
            stderr=file,
            cwd=log.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


class Laboratory:
    """A scheduler on loopback, and workers that are processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers = folder, {}
        file = folder / "scheduler.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        self.scheduler = start("-m", "distributed.cli.dask_scheduler", *options, log=folder / "scheduler.log")
        wait_until(file.exists)
        self.address = json.loads(file.read_text())["address"]

    def add(self) -> None:
        """Start a worker and wait until the scheduler knows it."""
        name = uuid4().hex
        options = ("--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--name", name)
        process = start("-c", WORKER, self.address, *options, log=self.folder / f"{name}.log")
        self.workers[name] = process
        with at_work(self.address, 1) as cluster:
            wait_until(lambda: name in {each["name"] for each in self.known(cluster)})

    @staticmethod
    def known(cluster: Cluster) -> list[dict]:
        return list(cluster.client.scheduler_info()["workers"].values())

    def remove(self, name: str) -> None:
        process = self.workers.pop(name)
        process.kill()
        process.wait()

    def tasks(self) -> list[str]:
        """What the scheduler still knows of, and workers still do."""
        with at_work(self.address, 1) as cluster:
            known = cluster.client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
            active = cluster.client.run(lambda dask_worker: [str(key) for key in dask_worker.active_keys])
        return [*known, *(key for keys in active.values() for key in keys)]

    def close(self) -> None:
        for name in list(self.workers):
            self.remove(name)
        self.scheduler.kill()
        self.scheduler.wait()


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory):
    """A scheduler and two workers."""
    made = Laboratory(tmp_path_factory.mktemp("laboratory"))
    try:
        made.add()
        made.add()
        yield made
    finally:
        made.close()


def on_cluster(laboratory: Laboratory, runs, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with at_work(laboratory.address, 1) as cluster:
        cluster.check(folder, HERE)
        cluster.do(runs, folder, quiet())


# The same bits


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits_as_this_machine_and_leaves_nothing_behind(tmp_path, laboratory):
    runs = [RUNS["g-d2-node"], RUNS["map-g"], IMAGES]
    on_cluster(laboratory, runs, tmp_path / "cluster")
    do_runs(runs, tmp_path / "here", 1, quiet())
    for run in runs:
        same(load(run, tmp_path / "here"), load(run, tmp_path / "cluster"))
    assert sorted(os.listdir(tmp_path / "cluster")) == sorted(os.listdir(tmp_path / "here"))
    assert laboratory.tasks() == []


@pytest.mark.slow
def test_if_a_worker_is_killed_another_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path, laboratory, monkeypatch):
    run = replace(IMAGES, epochs=60)
    victim, heard, kept = next(iter(laboratory.workers)), [], {}
    real = Command._hear

    def states(seed: int) -> list[int]:
        """The iterations after which the state of a repeat was kept."""
        folder = tmp_path / "cluster" / "tiny.part" / f"seed-{seed}"
        return [int(path.stem.removeprefix("state-")) for path in folder.glob("state-*.json")]

    def hear(self, event):
        real(self, event)
        heard.append(tuple(event[1][1:3]))
        if not kept and all(map(states, run.seeds)):
            laboratory.remove(victim)
            kept.update({f"tiny, seed {seed}": max(states(seed)) for seed in run.seeds})

    monkeypatch.setattr(Command, "_hear", hear)
    try:
        on_cluster(laboratory, [run], tmp_path / "cluster")
    finally:
        laboratory.add()
    # A task tells of its first iteration always: none was begun anew, and one went on after its last checkpoint.
    assert sorted(name for name, done in heard if done == 1) == sorted(kept)
    assert any((name, last + 1) in heard for name, last in kept.items())
    do_runs([run], tmp_path / "here", 1, quiet())
    same(load(run, tmp_path / "here"), load(run, tmp_path / "cluster"))


@pytest.mark.slow
def test_the_search_gives_the_same_bits_on_a_cluster(tmp_path, laboratory):
    (tmp_path / "grid.json").write_text('{"ANODE": {"lr": [1e-3], "hidden": [8], "batch_size": [64], "augment": [1]}}')
    asked = Search(dim=[1], grid=tmp_path / "grid.json", epochs=1, folds=2)
    ours = run_search(replace(asked, folder=tmp_path / "cluster", cluster=laboratory.address), quiet())
    theirs = run_search(replace(asked, folder=tmp_path / "here", jobs=1), quiet())
    assert [each.losses for each in ours] == [each.losses for each in theirs]


# Ctrl-C


def endless(tmp_path, laboratory):
    """Start a command that never ends, and return its process once its first run is done."""
    code = COMMAND.format(here=str(Path(__file__).parents[1]), long=LONG)
    options = ["reproduce", "fig03", "--repeats", "2", "--out", "out", "--cluster", laboratory.address]
    process = start("-c", code, *options, log=tmp_path / "log")
    wait_until((tmp_path / "out" / "runs" / "map-identity.json").exists)
    return process


@pytest.mark.slow
def test_ctrl_c_says_one_line_and_leaves_the_cluster_clean(tmp_path, laboratory):
    process = endless(tmp_path, laboratory)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    line = "interrupted; finished work is saved in out; run the same command again to continue\n"
    assert (tmp_path / "log").read_text() == line
    assert laboratory.tasks() == []
    kept = sorted(path.name for path in (tmp_path / "out" / "runs").iterdir())
    assert kept == ["map-identity.json", "map-identity.safetensors"]


@pytest.mark.slow
def test_if_the_command_is_killed_its_tasks_end(tmp_path, laboratory):
    process = endless(tmp_path, laboratory)
    process.kill()
    process.wait()
    wait_until(lambda: laboratory.tasks() == [])


# Bad input


@pytest.mark.slow
def test_a_worker_of_another_version_is_named_and_results_stay(tmp_path, laboratory, monkeypatch):
    settings = Settings(("fig04",), tmp_path / "out", repeats=2)
    reproduce(planned(settings), quiet())
    before = state(tmp_path / "out")
    monkeypatch.setattr(anode, "__version__", "9.9")
    with pytest.raises(ValueError, match=r"^cluster: worker tcp://\S+ has anode \S+, but this machine has 9\.9; in"):
        reproduce(planned(replace(settings, resume=False, seed=1, cluster=laboratory.address)), quiet())
    assert state(tmp_path / "out") == before


@pytest.mark.slow
def test_a_mistake_of_a_run_is_its_own_error(tmp_path, laboratory):
    with pytest.raises(ValueError, match="loss: takes one of huber, mse, cross_entropy, got 'nonsense'"):
        on_cluster(laboratory, [tiny("map-g", loss="nonsense"), tiny("map-identity")], tmp_path)
    assert load(tiny("map-identity"), tmp_path) is not None  # which is trained nevertheless
    assert laboratory.tasks() == []


@pytest.mark.slow
def test_a_device_that_no_worker_offers_is_named_with_the_command_that_starts_one(tmp_path, laboratory):
    with at_work(laboratory.address, 1) as cluster, pytest.raises(ValueError, match=r"has no worker; .* GPU=1"):
        cluster.check(tmp_path, Place(device="cuda"))


@pytest.mark.slow
def test_if_the_scheduler_dies_one_line_says_so(tmp_path):
    made = Laboratory(tmp_path)
    try:
        made.add()
        with at_work(made.address, 1) as cluster:
            real = cluster.usable
            cluster.usable = lambda place: (made.scheduler.kill(), real(place))[1]
            with pytest.raises(WorkerDiedError, match="no longer answers; finished runs and checkpoints are kept"):
                cluster.do([tiny("map-g", epochs=LONG)], tmp_path / "runs", quiet())
    finally:
        made.close()


@pytest.mark.parametrize("address", ["foo", "nonsense://x:1", "tcp://", "tcp://host", "tcp://host:99999", "host:8786"])
def test_an_address_that_is_none_is_refused_before_dask_sees_it(tmp_path, address):
    with pytest.raises(
        ValueError, match=r"^cluster: takes the address of a Dask scheduler, such as tcp://host:8786, got"
    ):
        reproduce(planned(Settings(("fig03",), tmp_path / "out", cluster=address)), quiet())
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_that_is_not_there_is_one_line_and_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 1)
    with pytest.raises(OSError, match=r"^cluster: no Dask scheduler answers at .*; start one with: dask scheduler$"):
        reproduce(planned(Settings(("fig03",), tmp_path / "out", cluster="tcp://127.0.0.1:1")), quiet())
    assert list(tmp_path.iterdir()) == []


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingPackageError, match=r'needs distributed; install with: pip install "anode\[cluster\]"'):
        at_work("tcp://127.0.0.1:1", 1).__enter__()


def test_jobs_and_optuna_have_no_cluster(tmp_path):
    with pytest.raises(ValueError, match="jobs: takes no value with --cluster"):
        planned(Settings(("fig03",), tmp_path, jobs=2, cluster="tcp://x:1"))
    with pytest.raises(ValueError, match="jobs: takes no value with --cluster"):
        run_search(Search(dim=[1], jobs=2, cluster="tcp://x:1", folder=tmp_path), quiet())
    with pytest.raises(ValueError, match="cluster: takes no value with --sampler tpe"):
        run_search(Search(dim=[1], sampler="tpe", cluster="tcp://x:1", folder=tmp_path), quiet())
    assert list(tmp_path.iterdir()) == []


# What a worker says about itself


def worker(threads: int = 1) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(nthreads=threads))


def test_a_worker_like_this_machine_is_taken(tmp_path):
    with remote.ordered(tmp_path, HERE) as order:
        assert remote.trouble(order, worker()) is None
    assert list(tmp_path.iterdir()) == []


def test_a_worker_says_why_it_cannot_do_runs(tmp_path):
    (tmp_path / "other").mkdir()
    with remote.ordered(tmp_path, HERE) as order:
        other = replace(order, versions={**order.versions, "torch": "1.0"})
        assert "but this machine has 1.0" in remote.trouble(other, worker())
        assert remote.trouble(order, worker(4)).startswith("has 4 threads; start it with --nthreads 1")
        elsewhere = replace(order, seal=tmp_path / "other" / order.seal.name)
        assert remote.trouble(elsewhere, worker()).startswith(f"does not see {tmp_path}; --out takes a folder")
        assert "device: takes" in remote.trouble(replace(order, place=Place(device="nonsense")), worker())
        order.seal.write_text("of another command")
        assert remote.trouble(order, worker()).startswith("does not see")


def test_torch_built_for_other_processors_is_the_same_version(monkeypatch):
    monkeypatch.setattr(remote.torch, "__version__", "2.13.0+cu130")
    assert remote.versions()["torch"] == "2.13.0"


# Parts


def test_every_repeat_of_an_image_run_is_a_task_and_a_toy_run_is_one():
    assert [(task.name, task.part.seed, task.part.repeats) for task in tasks_of(IMAGES)] == [
        ("tiny, seed 5", 5, 1),
        ("tiny, seed 6", 6, 1),
    ]
    assert [task.part for task in tasks_of(replace(IMAGES, repeats=1))] == [replace(IMAGES, repeats=1)]
    assert [task.part for task in tasks_of(RUNS["map-g"])] == [RUNS["map-g"]]


def test_a_run_is_put_together_from_parts_that_were_trained_apart(tmp_path):
    for part in reversed(IMAGES.parts()):
        part.train(None, tmp_path / "apart")
    told = []
    ours = IMAGES.train(told.append, tmp_path / "apart")
    same(ours, IMAGES.train(None, tmp_path / "whole"))
    assert len(told) <= 2  # nothing is trained again


def test_parts_are_shown_as_one_run():
    seen = []
    listen = together(seen.append, 2)
    first, second = listen("a"), listen("b")
    first(Report(3, 10, 1.0, 8.0))
    second(Report(4, 10, 1.0, 8.0))
    first(Report(5, 10, 1.0, 8.0))
    assert [(report.done, report.total) for report in seen] == [(3, 20), (7, 20), (9, 20)]


def test_processes_of_this_machine_stay_the_default():
    with at_work(None, 3) as workers:
        assert workers == Processes(3)
