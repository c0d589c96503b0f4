"""The command ``anode search``, from its options to its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from anode.checks import lookup, number, require
from anode.data import toy
from anode.experiments.search.figures import grid_figure
from anode.experiments.search.grid import Judged, best, ranked, search, write
from anode.experiments.search.options import Search
from anode.experiments.search.runs import Cross
from anode.experiments.search.spaces import Space
from anode.experiments.search.tpe import found_in, optimise
from anode.files import holds_files, make_folder
from anode.plots import style
from anode.train.progress import Bars

FILES = {"grid": "search", "tpe": "tpe"}
"""File name of the results of each sampler, so that samplers do not overwrite each other."""
STUDY = "study.db"
"""Default storage of Optuna, in the folder."""
WRITTEN = ("runs", "search.json", STUDY, "tpe.json")
"""Files of which a folder holds one as soon as a search has begun or, with another storage, once it has ended."""
TRIALS = 50
"""Default number of settings that Optuna tries."""
DIMS = (1, 2)
"""Default dimensions of the data."""
DATA = ("g", "separable")
"""The datasets that exist in several dimensions."""


def crosses_of(wanted: Search) -> list[Cross]:
    """Return the cross-validation of each dimension."""
    lookup("data", wanted.data, dict.fromkeys(DATA))
    for name in ("folds", "epochs", "repeats"):
        number(name, getattr(wanted, name), whole=True)
    number("seed", wanted.seed, whole=True, zero=True)
    require(wanted.folds > 1, "folds", wanted.folds, "at least 2")
    dims = list(dict.fromkeys(number("dim", dim, whole=True) for dim in wanted.dim or DIMS))
    points = len(toy.load(wanted.data, dim=dims[0]))
    require(wanted.folds <= points, "folds", wanted.folds, f"at most the number of points, {points}")
    return [Cross(wanted.data, dim, wanted.folds, wanted.epochs, wanted.repeats, wanted.seed) for dim in dims]


def run_search(wanted: Search, bars: Bars) -> list[Judged]:
    """Search and write the results. Returns the best setting of every model in every dimension."""
    name = lookup("sampler", wanted.sampler, FILES)
    if wanted.folder.exists() and not wanted.folder.is_dir():
        raise ValueError(f"out: takes a folder, got the file {wanted.folder}")
    if holds_files(wanted.folder) and not any((wanted.folder / name).exists() for name in WRITTEN):
        raise ValueError(f"out: {wanted.folder} has other files; give a new folder, or one written by anode search")
    spaces, crosses = wanted.spaces(), crosses_of(wanted)
    rows = min(len(cross.parts()[0][0][0]) for cross in crosses)
    for model, space in spaces.items():
        for size in space["batch_size"]:
            require(size <= rows, f"grid, {model}, batch_size", size, f"at most the {rows} training rows of a fold")
    if wanted.sampler == "grid":
        require(
            wanted.storage is None,
            "storage",
            wanted.storage,
            "no value with --sampler grid, which stores its results in files",
        )
        require(
            wanted.trials is None, "trials", wanted.trials, "no value with --sampler grid, which tries every setting"
        )
        takes = "no value with --cluster, where every worker trains one run at a time"
        require(wanted.cluster is None or wanted.jobs is None, "jobs", wanted.jobs, takes)
        found = search(spaces, crosses, wanted.folder, wanted.jobs, bars, wanted.cluster)
    else:
        found = by_optuna(wanted, spaces, crosses, bars)
    write(found, crosses, wanted.folder / name)
    for dim in dict.fromkeys(each.dim for each in found):
        style.save(grid_figure(found, dim), wanted.folder / f"{name}-d{dim}")
    return [ours for ours, _ in best(found)]


def by_optuna(wanted: Search, spaces: Mapping[str, Space], crosses: Sequence[Cross], bars: Bars) -> list[Judged]:
    """Let Optuna search every model in every dimension. Returns the settings that all processes have tried so far."""
    takes = "no value with --sampler tpe; start the command several times with the same --storage instead"
    require(wanted.jobs is None, "jobs", wanted.jobs, takes)
    require(wanted.cluster is None, "cluster", wanted.cluster, takes)
    make_folder(wanted.folder)
    trials = TRIALS if wanted.trials is None else wanted.trials
    storage = wanted.storage
    seed = None if storage else wanted.seed  # without a shared storage, a search is reproducible
    if storage is None:
        storage = f"sqlite:///{quote(str(wanted.folder / STUDY))}"
    found: list[Judged] = []
    for cross in crosses:
        for model, space in spaces.items():
            study = optimise(model, space, cross, storage, trials, bars, seed)
            found += found_in(study, model, cross)
    return ranked(found)
