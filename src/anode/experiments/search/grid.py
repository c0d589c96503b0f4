"""Grid search: trains every setting, and writes a table of their losses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anode.checks import number, require
from anode.experiments.cluster import at_work
from anode.experiments.environment import environment
from anode.experiments.runs import HERE, load, paths
from anode.experiments.search.runs import Cross, SearchRun, groups, losses
from anode.experiments.search.spaces import PAPER_GRIDS, PAPERS_BEST, Setting, Space, settings
from anode.files import DamagedFileError, locked, make_folder, remove_unfinished, write_text
from anode.storage import read_json, write_json
from anode.train.progress import Bars

FORMAT = "anode search 1"


@dataclass(frozen=True, eq=False)
class Judged:
    """A setting and its cross-validated losses.

    Attributes:
        dim: The dimension of the data.
        losses: Loss on the held-out fold, per fold and seed; NaN where training failed.
        rank: 1 for the best setting of this model in this dimension.
    """

    setting: Setting
    dim: int
    losses: list[float]
    rank: int = 0

    @property
    def mean(self) -> float:
        """The mean loss; NaN if a model failed."""
        return float(np.mean(self.losses))

    @property
    def failed(self) -> bool:
        """Whether training failed for any fold or seed."""
        return bool(np.isnan(self.mean))

    @property
    def std(self) -> float:
        """The standard deviation of the losses."""
        return float(np.std(self.losses))


def search(
    spaces: Mapping[str, Space],
    crosses: Sequence[Cross],
    out: Path,
    jobs: int | None,
    bars: Bars,
    cluster: str | None = None,
) -> list[Judged]:
    """Cross-validate all settings of some spaces. Runs that the folder already has are reused.

    Args:
        spaces: Search spaces by model.
        crosses: The cross-validation of each dimension.
        out: The folder.
        jobs: Number of parallel runs; defaults to one per core.
        bars: Shows the progress.
        cluster: The address of a Dask scheduler whose workers train the runs; by default, this machine does.
    """
    number("jobs", jobs, whole=True, optional=True)
    every = [one for model, space in spaces.items() for one in settings(model, space)]
    runs = [run for cross in crosses for run in groups(every, cross)]
    with at_work(cluster, jobs or os.cpu_count() or 1) as workers, locked(make_folder(out), "out"):
        workers.check(out, HERE)
        remove_unfinished(out / "runs")
        _refuse_to_lose(out / "search.json", every, crosses)
        missing = [run for run in runs if load(run, out / "runs") is None]
        for run in missing:
            path = paths(run, out / "runs")[0]
            takes = "a folder without it, or the options of that search"
            require(not path.exists(), "out", f"{path}, which belongs to another search", takes)
        missing.sort(key=lambda run: run.cost, reverse=True)
        workers.do(missing, out / "runs", bars)
        return ranked([each for run in runs for each in judged(run, out / "runs")])


def _refuse_to_lose(path: Path, every: Sequence[Setting], crosses: Sequence[Cross]) -> None:
    """Raise an error if the folder has results that this search would lose: other settings or folds."""
    if not path.exists():
        return
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedFileError(f"{path}: is not a results file of this version; give another folder, or remove it")
    asked = {(cross.dim, setting.model, *setting.searched.values()) for cross in crosses for setting in every}
    try:
        listed = content["settings"]
        known = {(one["dim"], one["model"], *(one[name] for name in PAPER_GRIDS[one["model"]])) for one in listed}
        judged_alike = {cross["dim"]: cross for cross in content["crosses"]}
    except (KeyError, TypeError):
        raise DamagedFileError(f"{path}: is damaged; remove it or restore it") from None
    alike = all(judged_alike.get(cross.dim, asdict(cross)) == asdict(cross) for cross in crosses)
    takes = "a folder without it, or options that include that search"
    require(alike and known <= asked, "out", f"{path}, which belongs to another search", takes)


def write(found: Sequence[Judged], crosses: Sequence[Cross], path: Path) -> None:
    """Write the results as JSON and as Markdown.

    Args:
        found: The settings and their losses.
        crosses: The cross-validations.
        path: The name of both files, without a suffix.
    """
    write_json(path.with_suffix(".json"), content(found, crosses), indent=1)
    write_text(path.with_suffix(".md"), markdown(found))


def judged(run: SearchRun, folder: Path) -> list[Judged]:
    """Return the settings of a finished run and their losses."""
    result = load(run, folder)
    assert result is not None, run.name
    return [Judged(setting, run.cross.dim, values.tolist()) for setting, values in losses(result).items()]


def ranked(found: Sequence[Judged]) -> list[Judged]:
    """Sort settings by dimension, model and loss, and rank them; failed settings come last."""
    ordered: list[Judged] = []
    for dim, model in dict.fromkeys((each.dim, each.setting.model) for each in found):
        alike = [each for each in found if (each.dim, each.setting.model) == (dim, model)]
        alike.sort(key=lambda each: (np.isnan(each.mean), each.mean))
        ordered += [Judged(each.setting, dim, each.losses, rank) for rank, each in enumerate(alike, 1)]
    return ordered


def content(found: Sequence[Judged], crosses: Sequence[Cross]) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "format": FORMAT,
        "crosses": [asdict(cross) for cross in crosses],
        "environment": environment(),
        "settings": [
            {
                "dim": each.dim,
                "model": each.setting.model,
                **each.setting.searched,
                "losses": [None if np.isnan(loss) else loss for loss in each.losses],
                "mean": None if np.isnan(each.mean) else each.mean,
                "std": None if np.isnan(each.std) else each.std,
                "rank": each.rank,
            }
            for each in found
        ],
    }


def best(found: Sequence[Judged]) -> list[tuple[Judged, Judged | None]]:
    """Return the best setting of every model in every dimension, and the paper's setting if it was tried."""
    papers = {(each.dim, each.setting): each for each in found}
    return [(each, papers.get((each.dim, PAPERS_BEST[each.setting.model]))) for each in found if each.rank == 1]


def markdown(found: Sequence[Judged]) -> str:
    """Return a table of the best settings next to the paper's, and tables of all settings."""
    lines = ["## The best settings", "", "| d | model | best here | loss | the paper's | loss | rank |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for ours, theirs in best(found):
        paper = str(PAPERS_BEST[ours.setting.model])
        tried = ["not tried", ""] if theirs is None else [shown(theirs), str(theirs.rank)]
        cells = [str(ours.dim), ours.setting.model, str(ours.setting), shown(ours), paper, *tried]
        lines.append(f"| {' | '.join(cells)} |")
    for dim, model in dict.fromkeys((each.dim, each.setting.model) for each in found):
        lines += ["", f"## {model}, d = {dim}", "", "| rank | setting | loss |", "| --- | --- | --- |"]
        alike = [each for each in found if (each.dim, each.setting.model) == (dim, model)]
        lines += [f"| {each.rank} | {each.setting} | {shown(each)} |" for each in alike]
    return "\n".join(lines) + "\n"


def shown(each: Judged) -> str:
    """Return mean and standard deviation of a loss, in words."""
    return "failed" if np.isnan(each.mean) else f"{each.mean:.2g} ± {each.std:.1g}"
