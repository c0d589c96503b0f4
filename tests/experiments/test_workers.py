import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from typer.testing import CliRunner

from anode.cli import app
from anode.experiments import workers
from anode.experiments.runs import load
from anode.experiments.toy import protocols
from anode.experiments.workers import WorkerDiedError, do_runs
from helpers.folders import state
from helpers.processes import alive_with, children, hears_ctrl_c, wait_until
from helpers.tiny import RUNS, quiet, same, tiny

LONG = 100_000
"""So many epochs that a run is never done by itself."""

# The command with the protocols of this folder, and two runs of the given numbers of epochs; what else there is of the
# machinery is the real one.
COMMAND = """
import signal, sys
from dataclasses import replace
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun without
sys.path.insert(0, {here!r})
from helpers import tiny
from anode.experiments.toy import protocols
runs = dict(tiny.RUNS)
for name, epochs in {epochs!r}.items():
    runs[name] = replace(runs[name], epochs=epochs)
protocols.RUNS = runs
from anode.cli import run
run()
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


class Started:
    """The command ``anode reproduce fig03`` in a process, and group of processes, of its own."""

    def __init__(self, folder: Path, **epochs: int) -> None:
        self.folder = folder
        self.mark = f"ANODE_TEST={uuid4().hex}"
        text = COMMAND.format(here=str(Path(__file__).parents[1]), epochs={f"map-{k}": n for k, n in epochs.items()})
        options = ["reproduce", "fig03", "--repeats", "2", "--jobs", "2", "--out", str(folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", text, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", "ANODE_TEST": self.mark.partition("=")[2]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in alive_with(self.mark):
            os.kill(process, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def wait_for(self, name: str) -> None:
        def there():
            assert self.process.poll() is None, self.process.stderr.read()
            return (self.folder / name).exists()

        wait_until(there)


def complete(folder: Path, monkeypatch, **epochs: int) -> None:
    """The same command, in this process."""
    changed = {f"map-{name}": tiny(f"map-{name}", epochs=count) for name, count in epochs.items()}
    monkeypatch.setattr(protocols, "RUNS", RUNS | changed)
    arguments = ["reproduce", "fig03", "--repeats", "2", "--jobs", "2", "--out", str(folder)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert (folder / "report.html").exists()


@pytest.mark.slow
def test_processes_give_the_same_bits_as_one(tmp_path):
    runs = [RUNS[name] for name in ("g-d2-node", "slices-d2-anode", "g-d1-resnet", "map-g")]
    do_runs(runs, tmp_path / "two", 2, quiet())
    do_runs(runs, tmp_path / "one", 1, quiet())
    for run in runs:
        same(load(run, tmp_path / "one"), load(run, tmp_path / "two"))


def test_runs_in_this_process_are_done_with_one_thread_and_leave_the_number_as_it_was(tmp_path, monkeypatch, threads):
    seen = []
    real = workers.do_run

    def noted(run, tell, folder, place):
        seen.append(torch.get_num_threads())
        return real(run, tell, folder, place)

    monkeypatch.setattr(workers, "do_run", noted)
    threads(2)
    do_runs([RUNS["map-g"]], tmp_path, 4, quiet())
    assert torch.get_num_threads() == 2
    assert seen == [1]


def test_there_may_be_nothing_to_do(tmp_path):
    do_runs([], tmp_path / "out", 2, quiet())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("before", [signal.SIG_BLOCK, signal.SIG_UNBLOCK], ids=["blocked", "not blocked"])
def test_if_processes_cannot_be_begun_ctrl_c_is_heard_as_it_was_before(tmp_path, monkeypatch, before):
    class Failing(workers.ProcessPoolExecutor):
        def submit(self, *_):
            raise OSError("no more processes")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Failing)
    resource_tracker.ensure_running()  # Python's own process, whose start unblocks the signal
    mask = signal.pthread_sigmask(before, {signal.SIGINT})
    try:
        with pytest.raises(OSError, match="no more processes"):
            do_runs([RUNS["map-g"], RUNS["map-identity"]], tmp_path, 2, quiet())
        blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert blocked == (before == signal.SIG_BLOCK)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_error_of_a_run_is_raised_when_the_other_runs_are_trained(tmp_path, jobs):
    others, wrong = [RUNS["map-g"], RUNS["map-identity"]], tiny("g-d1-node", loss="nonsense", epochs=1)
    bars, said = quiet(), []
    bars.say = said.append
    with pytest.raises(ValueError, match="loss: takes one of huber, mse, cross_entropy, got 'nonsense'"):
        do_runs([wrong, *others], tmp_path, jobs, bars)
    assert load(wrong, tmp_path) is None
    assert all(load(run, tmp_path) is not None for run in others)
    assert any(line.startswith("g-d1-node: loss: takes one of") for line in said)
    assert not list(children(os.getpid()))


def test_a_full_disk_ends_all_runs_at_once(tmp_path, monkeypatch):
    tried = []

    def full(result, folder):
        tried.append(result.run.name)
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(workers, "save", full)
    with pytest.raises(OSError, match="No space left"):
        do_runs([RUNS["map-g"], RUNS["map-identity"]], tmp_path, 1, quiet())
    assert tried == ["map-g"]


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_is_reported_and_finished_runs_stay(tmp_path, number):
    short, long, longer = RUNS["map-g"], tiny("g-d1-resnet", epochs=LONG), tiny("map-identity", epochs=LONG)

    def kill_one() -> int:
        wait_until(lambda: (tmp_path / "map-g.json").exists())
        victim = next(children(os.getpid()))
        os.kill(victim, number)
        return victim

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill_one)
        with pytest.raises(WorkerDiedError, match=r"killed.*finished runs are kept"):
            do_runs([short, long, longer], tmp_path, 2, quiet())
        assert killed.result()
    assert load(short, tmp_path) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map-g.json", "map-g.safetensors"]
    wait_until(lambda: not list(children(os.getpid())), 5)


def ends_well(command: Started, code: int = 130) -> None:
    """Fails unless the command ends as one that was interrupted: one line, and no process is left."""
    out, err = command.process.communicate(timeout=60)
    assert command.process.returncode == code
    assert err.splitlines() == [
        f"interrupted; finished work is saved in {command.folder}; run the same command again to continue"
    ]
    assert out == ""
    wait_until(lambda: not alive_with(command.mark), 5)


@pytest.mark.slow
@needs_proc
def test_an_interrupted_command_keeps_what_is_finished_and_the_same_command_completes(tmp_path, monkeypatch):
    folder, epochs = tmp_path / "out", {"identity": 2, "g": 120}
    with Started(folder, **epochs) as command:
        command.wait_for("runs/map-identity.json")
        command.process.send_signal(signal.SIGINT)
        ends_well(command)
    before = state(folder / "runs")
    assert set(before) >= {"map-identity.json", "map-identity.safetensors"}
    complete(folder, monkeypatch, **epochs)
    after = state(folder / "runs")
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_reaches_all_processes_ends_them_with_one_line(tmp_path, number, code):
    with Started(tmp_path / "out", identity=2, g=LONG) as command:
        command.wait_for("runs/map-identity.json")
        wait_until(lambda: not any(map(hears_ctrl_c, children(command.process.pid))))
        os.killpg(command.process.pid, number)  # as terminals and cluster schedulers do
        ends_well(command, code)
    assert set(state(tmp_path / "out" / "runs")) == {"map-identity.json", "map-identity.safetensors"}


@pytest.mark.slow
@needs_proc
def test_ctrl_c_while_processes_begin_says_one_line_too(tmp_path):
    with Started(tmp_path / "out", identity=LONG, g=LONG) as command:
        wait_until(lambda: len(list(children(command.process.pid))) == 2)
        time.sleep(0.2)  # they are importing torch
        os.killpg(command.process.pid, signal.SIGINT)
        ends_well(command)


@pytest.mark.slow
@needs_proc
def test_if_the_command_is_killed_its_processes_end_and_the_same_command_completes(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    with Started(folder, identity=2, g=LONG) as command:
        command.wait_for("runs/map-identity.json")
        command.process.kill()
        command.process.wait()
        wait_until(lambda: not alive_with(command.mark), 3)
    before = state(folder / "runs")
    complete(folder, monkeypatch, identity=2)  # nothing is kept of the other run, which may be shorter now
    after = state(folder / "runs")
    kept = {name for name in before if name.startswith("map-identity")}
    assert len(kept) == 2
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


# Two runs on images that do not end by themselves, and whose states are not saved within the first minute.
LASTING = """
import sys
from dataclasses import replace
from pathlib import Path
from anode.cli.console import friendly
from anode.experiments.halves import HALVES
from anode.experiments.workers import do_runs
from anode.train.progress import Bars
from typer import Exit

if __name__ == "__main__":
    runs = [HALVES["images"].scales["smoke"].run(name, 1, 0) for name in ("mnist-node", "mnist-p5")]
    try:
        with friendly("interrupted"), Bars() as bars:
            do_runs([replace(run, epochs=100_000) for run in runs], Path(sys.argv[1]), 2, bars)
    except Exit as end:
        sys.exit(end.exit_code)
"""


@pytest.mark.slow
@needs_proc
def test_sigterm_to_all_processes_lets_them_save_their_states(tmp_path):
    program, log, out = tmp_path / "lasting.py", tmp_path / "log", tmp_path / "out"
    program.write_text(LASTING)
    out.mkdir()
    with (
        log.open("w") as err,
        subprocess.Popen([sys.executable, str(program), str(out)], stderr=err, start_new_session=True) as process,
    ):
        wait_until(lambda: all(f"{name}: iteration" in log.read_text() for name in ("mnist-node", "mnist-p5")))
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == 143
    assert log.read_text().endswith("interrupted\n")
    for name in ("mnist-node", "mnist-p5"):
        assert list((out / f"{name}.part" / "seed-0").glob("state-*.json"))
