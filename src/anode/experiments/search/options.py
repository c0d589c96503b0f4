"""The options of ``anode search``, each described once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anode.checks import require
from anode.experiments.options import option
from anode.experiments.search.spaces import PAPER_GRIDS, Space, read


@dataclass(frozen=True)
class Search:
    """The options of ``anode search``."""

    models: Sequence[str] | None = None
    folder: Path = Path("results/mine/search")
    cluster: str | None = None
    dim: list[int] | None = option(None, "Dimension of the data; can be repeated.", "1 and 2")  # noqa: RUF009
    data: str = option("g", "Dataset: g or separable.")
    grid: Path | None = option(None, "JSON file with your own values to try.", "the paper's grids")  # noqa: RUF009
    folds: int = option(3, "Number of cross-validation folds.")
    epochs: int = option(50, "Epochs per model.")
    repeats: int = option(1, "Random seeds per setting.")
    seed: int = option(0, "First random seed; it also seeds tpe, unless --storage is given.")
    sampler: str = option(
        "grid", "grid tries every setting; with tpe, Optuna chooses settings within the limits of the grid."
    )
    trials: int | None = option(None, "For tpe: trials per model and dimension, over all processes.", "50")
    storage: str | None = option(
        None,
        "For tpe: sqlite:///FILE, journal:FILE, or a database URL such as postgresql://HOST/NAME.",
        "a file in the results folder",
    )
    jobs: int | None = option(None, "For grid: runs to train in parallel.", "one per core")

    def spaces(self) -> Mapping[str, Space]:
        """Return the search spaces of the requested models."""
        spaces = PAPER_GRIDS if self.grid is None else read(self.grid)
        names = {name.lower(): name for name in spaces}
        takes = f"{', '.join(spaces)}" + (", the models in the grid" if self.grid is not None else "")
        for each in self.models or ():
            require(each.lower() in names, "models", each, takes)
        chosen = [names[each.lower()] for each in self.models] if self.models else list(spaces)
        return {name: spaces[name] for name in chosen}
