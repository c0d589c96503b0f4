import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anode import History
from anode.storage import read_tensors
from helpers.trainings import assert_same_history, same

KILLS = 3

# Trains with a checkpoint after every iteration, until it is killed or to the end; then once more without any.
TRAIN = """
import sys, time
from pathlib import Path
import torch
from helpers.trainings import data_of, fit, spoil, stack_of
from anode import Snapshots
from anode.storage import write_tensors

folder, first = Path(sys.argv[1]), []

def slowly(report):
    first.append(report.done)
    time.sleep(1000 if sys.argv[2] == "killed" and report.done > first[0] + 25 else 0.01)

data, check = data_of(), data_of(points=11, seed=1)
options = {"epochs": 40, "lr": [1e-2, 1e2, 1e-3], "validation": check, "evaluate_every": 7}  # a member fails
options["check_every"] = 9
options["snapshots"] = Snapshots(check.x[:4], range(0, 120, 20))
for name in ("killed", "whole"):
    model = stack_of(max_steps=30)
    if name == "killed":
        options |= {"checkpoint": folder / "states", "checkpoint_every": 0, "progress": slowly}
    else:
        options |= {"checkpoint": None, "checkpoint_every": None, "progress": False}
    fit(model, data, **options).save(folder / f"{name}.json")
    write_tensors(folder / f"{name}.safetensors", dict(model.named_parameters()))
"""


def start(folder: Path, until: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(folder), until], env=environment, stderr=subprocess.PIPE, text=True
    )


def furthest(folder: Path) -> int:
    return max((int(path.stem.removeprefix("state-")) for path in folder.glob("state-*.json")), default=0)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    draws, states = random.Random(0), tmp_path / "states"
    for _ in range(KILLS):
        before = furthest(states)
        with start(tmp_path, "killed") as process:
            end = time.monotonic() + 60
            while furthest(states) < before + 10 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            time.sleep(draws.uniform(0, 0.05))  # somewhere in an iteration, or in writing
            process.kill()
            error = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL, error
        assert before + 10 <= furthest(states) < 120
    with start(tmp_path, "the end") as process:
        error = process.communicate(timeout=60)[1]
    assert (process.returncode, error) == (0, "")
    killed, whole = (History.load(tmp_path / f"{name}.json") for name in ("killed", "whole"))
    assert_same_history(killed, whole)
    assert len(whole.failures) == 1
    assert same(*(list(read_tensors(tmp_path / f"{name}.safetensors").values()) for name in ("killed", "whole")))
