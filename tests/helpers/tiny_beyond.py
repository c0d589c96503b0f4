"""Results of all runs beyond the paper, in seconds: a few are trained a little and stand for all of their kind."""

from dataclasses import replace
from functools import cache

from anode.experiments.beyond.densities import DensityRun
from anode.experiments.beyond.points import MAPS
from anode.experiments.beyond.protocols import STRENGTHS, all_runs
from anode.experiments.beyond.variants import NoisyRun, RegularisedRun
from anode.experiments.runs import Result
from helpers.tiny import NOWHERE

REPEATS = 2


def shrunk(run, **changes):
    """A run of two repeats and two epochs, of a few iterations each."""
    if isinstance(run, DensityRun):
        small = {"epochs": 2, "batch_size": 50 if run.dim > 2 else 500}
    else:
        small = {"epochs": 2, "batch_size": 750 if run.data in ("g", "nested") else run.batch_size}
    return replace(run, repeats=REPEATS, **small, **changes)


def kind_of(run) -> str:
    """The name of the run that stands for it: what is drawn of it, or measured, is there."""
    if isinstance(run, DensityRun):
        return f"density-moons-{'augmented' if run.augment else 'cnf'}"
    if isinstance(run, RegularisedRun):
        return f"regularised-node-{run.regulariser}-{STRENGTHS[run.regulariser][0]:g}"
    if isinstance(run, NoisyRun):
        return "noise-d1-0.3"
    if run.data in MAPS:
        return "swap-second-order"
    return f"g-d1-{run.kind}" if run.kept else "g-d2-hidden"


@cache
def trained(name: str) -> Result:
    return shrunk(all_runs()[name]).train(None, NOWHERE)


@cache
def results() -> dict[str, Result]:
    """A result for every run."""
    return {name: replace(trained(kind_of(run)), run=shrunk(run)) for name, run in all_runs().items()}
