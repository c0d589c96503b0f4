"""Results of all runs beyond the paper, in seconds: a few are trained a little and stand for all of their kind."""

from dataclasses import replace
from functools import cache

from anode.experiments.beyond.densities import DensityRun
from anode.experiments.beyond.protocols import all_runs
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
        return f"density-{'iris' if run.dim > 2 else 'moons'}-{'augmented' if run.augment else 'cnf'}"
    if isinstance(run, RegularisedRun):
        return f"regularised-node-{run.regulariser}-{run.strength:g}"
    if isinstance(run, NoisyRun):
        return f"noise-d1-{0.3 if run.noise else 0:g}"
    if run.data == "parity":
        return f"parity-d2-{run.kind}"
    return f"{run.data}-{run.kind}" if run.data == "swap" else f"{run.data}-d{1 if run.kept else 2}-{run.kind}"


@cache
def trained(name: str) -> Result:
    return shrunk(all_runs()[name]).train(None, NOWHERE)


@cache
def results() -> dict[str, Result]:
    """A result for every run."""
    return {name: replace(trained(kind_of(run)), run=shrunk(run)) for name, run in all_runs().items()}
