"""The paper's protocols, made so small that all of them are trained in seconds."""

import io
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
