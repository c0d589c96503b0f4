"""The paper's protocols, made so small that all of them are trained in seconds."""

import io
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from anode.experiments.runs import Result
from anode.experiments.toy.protocols import RUNS as PAPER
from anode.experiments.toy.runs import ToyRun as Run
from anode.train.progress import Bars


def shrunk(run: Run, **changes) -> Run:
    """Six iterations of a run, with all of its data."""
    small = {"epochs": 6} if run.batch_size == 2 else {"epochs": 2, "batch_size": 1000}
    return replace(run, **{"repeats": 2, **small, **changes})


NOWHERE = Path("nowhere")
"""Toy runs keep nothing while they are not finished."""

RUNS = {name: shrunk(run) for name, run in PAPER.items()}


def tiny(name: str, /, **changes) -> Run:
    return replace(RUNS[name], **changes)


def interrupt_at(iteration: int):
    """A listener that interrupts training."""

    def tell(report):
        if report.done >= iteration:
            raise KeyboardInterrupt

    return tell


def quiet() -> Bars:
    return Bars(Console(file=io.StringIO()))


def same(first: Result, second: Result) -> None:
    """Fails unless two results are the same to the bit, but for the time they took."""
    import numpy as np
    import torch

    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name in ("loss", "nfe", "accepted", "rejected", "nfe_backward", "validation"):
        mine, other = getattr(first.history, name), getattr(second.history, name)
        assert mine.dtype == other.dtype, name
        np.testing.assert_array_equal(mine, other, err_msg=name)
    assert len(first.history.snapshots) == len(second.history.snapshots)
    for mine, other in zip(first.history.snapshots, second.history.snapshots, strict=True):
        assert (mine.iteration, int(mine.nfe)) == (other.iteration, int(other.nfe))
        np.testing.assert_array_equal(mine.features, other.features)
    assert first.history.failures == second.history.failures


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def children(parent: int) -> Iterator[int]:
    """The ids of the training processes that a process has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            owner = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text()
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if owner == parent and "spawn_main" in command:
            yield int(folder.name)


def hears_ctrl_c(process: int) -> bool:
    """Whether a process neither ignores nor blocks SIGINT, as those that train do once they have begun."""
    status = Path(f"/proc/{process}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn:", "SigBlk:"))]
    return not any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


def alive_with(mark: str) -> list[int]:
    """The ids of all processes whose environment holds a text, but for those that have ended and wait to be read."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
