"""The command ``anode search``, from its options to its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from anode.checks import lookup, number, require
from anode.data import toy
from anode.experiments.search.figures import grid_figure
from anode.experiments.search.grid import Judged, best, ranked, search, write
from anode.experiments.search.runs import Cross
from anode.experiments.search.spaces import PAPER_GRIDS, Space, read
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
DATA = ("g", "separable")
"""The datasets that exist in several dimensions."""


@dataclass(frozen=True)
class Search:
    """The options of ``anode search``."""

    models: Sequence[str] | None = None
    dims: Sequence[int] = (1, 2)
    data: str = "g"
    grid: Path | None = None
    folds: int = 3
    epochs: int = 50
    repeats: int = 1
    seed: int = 0
    sampler: str = "grid"
    trials: int | None = None
    storage: str | None = None
    folder: Path = Path("results/mine/search")
    jobs: int | None = None
    cluster: str | None = None

    def spaces(self) -> Mapping[str, Space]:
        """Return the search spaces of the requested models."""
        spaces = PAPER_GRIDS if self.grid is None else read(self.grid)
        names = {name.lower(): name for name in spaces}
        takes = f"{', '.join(spaces)}" + (", the models in the grid" if self.grid is not None else "")
        for each in self.models or ():
            require(each.lower() in names, "models", each, takes)
        chosen = [names[each.lower()] for each in self.models] if self.models else list(spaces)
        return {name: spaces[name] for name in chosen}

    def crosses(self) -> list[Cross]:
        """Return the cross-validation of each dimension."""
        lookup("data", self.data, dict.fromkeys(DATA))
        for name in ("folds", "epochs", "repeats"):
            number(name, getattr(self, name), whole=True)
        number("seed", self.seed, whole=True, zero=True)
        require(self.folds > 1, "folds", self.folds, "at least 2")
        require(len(self.dims) > 0, "dim", list(self.dims), "at least one dimension")
        for dim in self.dims:
            number("dim", dim, whole=True)
        dims = list(dict.fromkeys(self.dims))
        points = len(toy.load(self.data, dim=dims[0]))
        require(self.folds <= points, "folds", self.folds, f"at most the number of points, {points}")
        return [Cross(self.data, dim, self.folds, self.epochs, self.repeats, self.seed) for dim in dims]


def run_search(wanted: Search, bars: Bars) -> list[Judged]:
    """Search and write the results. Returns the best setting of every model in every dimension."""
    name = lookup("sampler", wanted.sampler, FILES)
    if wanted.folder.exists() and not wanted.folder.is_dir():
        raise ValueError(f"out: takes a folder, got the file {wanted.folder}")
    if holds_files(wanted.folder) and not any((wanted.folder / name).exists() for name in WRITTEN):
        raise ValueError(f"out: {wanted.folder} has other files; give a new folder, or one written by anode search")
    spaces, crosses = wanted.spaces(), wanted.crosses()
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
