"""Re-running the paper: train what is missing, draw, check the claims, write the report."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from anode.experiments.claims import CLAIMS
from anode.experiments.environment import environment
from anode.experiments.findings import Claim
from anode.experiments.protocols import protocol
from anode.experiments.runs import Result, Run, load, paths
from anode.experiments.studies import STUDIES
from anode.experiments.study import Results, Study
from anode.experiments.workers import do_runs
from anode.files import DamagedFileError, read_json, write_json
from anode.ode.inputs import lookup, number, require
from anode.plots.animate import gif
from anode.plots.style import save as save_figure
from anode.report import write_report
from anode.train.progress import Bars

FORMAT = "anode results 1"
MARKER = "anode-results.json"
TITLE = "Augmented Neural ODEs: the toy experiments"


@dataclass(frozen=True)
class Settings:
    """What to reproduce.

    Attributes:
        figures: Names of studies; all if empty.
        out: The folder of the results.
        repeats: How many times every run is done, from different seeds.
        seed: The first seed.
        resume: Use the runs that are already in the folder.
        jobs: How many runs at a time; by default one for each processor.
    """

    figures: Sequence[str] = ()
    out: Path = Path("results/toy")
    repeats: int = 20
    seed: int = 0
    resume: bool = True
    jobs: int | None = None


def reproduce(settings: Settings, bars: Bars) -> dict[str, Any]:
    """Do it all; returns the content of the results file."""
    start = time.perf_counter()
    number("repeats", settings.repeats, whole=True)
    number("seed", settings.seed, whole=True, zero=True)
    require(settings.seed + settings.repeats <= 2**40, "seed", settings.seed, "a whole number below 2**40")
    number("jobs", settings.jobs, whole=True, optional=True)
    names = dict.fromkeys(re.sub(r"^fig(\d)$", r"fig0\1", name.lower()) for name in settings.figures)
    studies = [lookup("figure", name, STUDIES) for name in names] or list(STUDIES.values())
    claims = [claim for claim in CLAIMS if claim.figure in {study.id for study in studies}]
    before = open_folder(settings)
    results = trained(studies, claims, settings, bars)
    for done, study in enumerate(studies):
        bars.show("drawing figures", done, len(studies), study.id)
        draw(study, results, settings.out / "figures")
    bars.show("drawing figures", len(studies), len(studies))
    content = summary(settings, before, studies, claims, results, time.perf_counter() - start)
    write_json(settings.out / MARKER, content, indent=1)
    write_report(settings.out)
    return content


def open_folder(settings: Settings) -> dict[str, Any]:
    """Make the folder ours, or refuse; returns what its results file says."""
    out, marker = settings.out, settings.out / MARKER
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: takes a folder, got the file {out}")
    if not marker.exists():
        if out.exists() and any(out.iterdir()):
            raise ValueError(
                f"out: {out} holds something else; give a new folder, or an earlier one of anode reproduce"
            )
        content: dict[str, Any] = {}
    else:
        content = read_json(marker)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DamagedFileError(f"{marker}: is not a results file of this version; give another folder")
        mine = {"repeats": settings.repeats, "seed": settings.seed}
        theirs = {name: content.get(name) for name in mine}
        if mine == theirs and settings.resume:
            check_earlier(content, marker)
            return content
        if settings.resume:
            raise ValueError(
                f"out: {out} holds results with repeats {theirs['repeats']} and seed {theirs['seed']}, not "
                f"{settings.repeats} and {settings.seed}; give another folder, or --no-resume to replace them"
            )
        if mine == theirs:
            check_earlier(content, marker)
            return content  # of the runs in it, those that are needed are removed and done again
        rmtree(out / "runs", ignore_errors=True)  # with the results, which are replaced
    content = {"format": FORMAT, "title": TITLE, "seed": settings.seed, "repeats": settings.repeats}
    write_json(marker, content, indent=1)
    return content


def check_earlier(content: dict[str, Any], marker: Path) -> None:
    """Complain before the work, not after it, about a results file that cannot be added to."""
    needed = {"claims": ("number", "verdict"), "timings": ("name", "seconds"), "failures": ("run",)}
    lists = all(isinstance(content.get(name, []), list) for name in (*needed, "studies"))
    entries = [(entry, keys) for name, keys in needed.items() for entry in content.get(name, [])] if lists else []
    complete = all(isinstance(entry, dict) and all(key in entry for key in keys) for entry, keys in entries)
    known = lists and all(name in STUDIES for name in map(str, content.get("studies", [])))
    if not (lists and complete and known and isinstance(content.get("seconds", 0), int | float)):
        raise DamagedFileError(f"{marker}: is damaged; remove it or restore it")


def trained(studies: Sequence[Study], claims: Sequence[Claim], settings: Settings, bars: Bars) -> Results:
    """The results of all runs that are needed, each trained once whoever needs it."""
    needed = [*(study.runs for study in studies), *(claim.runs for claim in claims)]
    names = dict.fromkeys(name for runs in needed for name in runs)
    runs = [protocol(name, settings.repeats, settings.seed) for name in names]
    folder = settings.out / "runs"
    results: dict[str, Result] = {}
    if settings.resume:
        results = {run.name: found for run in runs if (found := load(run, folder)) is not None}
    missing = [run for run in runs if run.name not in results]
    for run in missing:
        for path in paths(run, folder):  # or, interrupted now, it would be taken for a new one later
            path.unlink(missing_ok=True)
    missing.sort(key=_shortness)
    do_runs(missing, folder, settings.jobs or os.cpu_count() or 1, bars)
    for run in missing:
        found = load(run, folder)
        assert found is not None, run.name
        results[run.name] = found
    return results


def _shortness(run: Run) -> tuple[bool, bool, int]:
    """Sorts the longest runs first: plain NODEs need most evaluations, ResNets are quick."""
    return run.model == "ResNet", run.augment > 0, -run.repeats


def draw(study: Study, results: Results, folder: Path) -> None:
    """Draw a study and write its files: pictures, animations, and what they show as JSON."""
    start = time.perf_counter()
    drawing = study.draw(results)
    files = save_figure(drawing.figure, folder / study.id)
    files += [gif(frames, folder / f"{study.id}-{name}.gif") for name, frames in drawing.animations.items()]
    content = {
        "id": study.id,
        "title": study.title,
        "caption": study.caption,
        "images": [file.name for file in files],
        "protocol": [results[name].run.described() for name in study.runs],
        "numbers": {"columns": drawing.columns, "rows": drawing.rows} if drawing.rows else None,
        "scenes": drawing.scenes,
        "seconds": round(time.perf_counter() - start, 2),
    }
    write_json(folder / f"{study.id}.json", content)


def summary(
    settings: Settings,
    before: dict[str, Any],
    studies: Sequence[Study],
    claims: Sequence[Claim],
    results: Results,
    seconds: float,
) -> dict[str, Any]:
    """The content of the results file: this time's findings, and those that were there and not looked at again."""
    found = {claim.number: checked(claim, results) for claim in claims}
    found = {**{claim["number"]: claim for claim in before.get("claims", [])}, **found}
    drawn = {*before.get("studies", []), *(study.id for study in studies)}
    spent = {entry["name"]: entry["seconds"] for entry in before.get("timings", [])}
    spent |= {name: round(result.seconds, 1) for name, result in results.items()}
    return {
        "format": FORMAT,
        "title": TITLE,
        "seed": settings.seed,
        "repeats": settings.repeats,
        "studies": [name for name in STUDIES if name in drawn],
        "claims": [found[number] for number in sorted(found)],
        "failures": [
            *(failure for failure in before.get("failures", []) if failure["run"] not in results),
            *(
                {"run": name, "repeat": failure.member, "iteration": failure.iteration, "reason": failure.reason}
                for name, result in results.items()
                for failure in result.history.failures
            ),
        ],
        "environment": environment(),
        "timings": [{"name": name, "seconds": spent[name]} for name in spent],
        "seconds": round(before.get("seconds", 0) + seconds, 1),  # of all calls that came to their end
    }


def checked(claim: Claim, results: Results) -> dict[str, Any]:
    """A claim with what was found, for the results file."""
    finding = claim.find(results)
    return {
        "number": claim.number,
        "figure": claim.figure,
        "statement": claim.statement,
        "criterion": claim.criterion,
        "verdict": finding.verdict,
        "test": finding.test,
        "numbers": [{"name": name, "value": value} for name, value in finding.numbers],
    }
