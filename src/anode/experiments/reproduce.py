"""Re-running the paper: train what is missing, draw, check the claims, write the report."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from anode.checks import lookup, number, require, usable_device
from anode.experiments.cluster import at_work
from anode.experiments.environment import together
from anode.experiments.findings import Claim
from anode.experiments.halves import HALVES, Half, Protocols
from anode.experiments.runs import FORMAT as RUN_FORMAT
from anode.experiments.runs import Place, Result, Run, load, paths, save
from anode.experiments.study import Results, Study, draw
from anode.experiments.summary import checked_claim, failures_of
from anode.experiments.workers import Workers
from anode.files import DamagedFileError, locked, make_folder, read_json, remove_unfinished, write_json
from anode.report import write_report
from anode.report.page import FORMAT, MARKER
from anode.train.progress import Bars


@dataclass(frozen=True)
class Settings:
    """What to reproduce.

    Attributes:
        figures: Names of studies, all of one half of the paper; or the name of a half for all of it.
        out: The folder of the results; by default ``results/mine/`` and the name of the half.
        repeats: How many times every run is done, from different seeds; by default as often as the scale says.
        scale: How much work it is, see :data:`anode.experiments.images.scales.SCALES`.
        seed: The first seed.
        resume: Use the runs that are already in the folder.
        jobs: How many runs at a time; by default one for each processor, and one on a GPU.
        root: Where image datasets lie, if it is not the usual place.
        device: What computes the image half: a device of torch.
        epochs: Passes over each image dataset; by default as many as the scale says.
        cluster: The address of a Dask scheduler whose workers do the runs; by default processes of this machine do.
    """

    figures: Sequence[str] = ("toy",)
    out: Path | None = None
    repeats: int | None = None
    scale: str | None = None
    seed: int = 0
    resume: bool = True
    jobs: int | None = None
    root: Path | None = None
    device: str = "cpu"
    epochs: int | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Work:
    """What is to be done: settings, checked and complete.

    Attributes:
        protocols: The runs at this scale, with as many epochs as were asked for.
        identity: What results must have in common to be put into one folder.
    """

    half: Half
    studies: Sequence[Study]
    claims: Sequence[Claim]
    scale: str
    protocols: Protocols
    epochs: int | None
    repeats: int
    seed: int
    out: Path
    resume: bool
    jobs: int
    cluster: str | None
    place: Place

    @property
    def identity(self) -> dict[str, Any]:
        chosen = {"half": self.half.name, "scale": self.scale, "repeats": self.repeats, "seed": self.seed}
        return {**chosen, "epochs": self.epochs}

    @cached_property
    def _runs(self) -> list[tuple[Run, str]]:
        needed = [*(study.runs for study in self.studies), *(claim.runs for claim in self.claims)]
        names = dict.fromkeys(name for runs in needed for name in runs)
        runs = [self.protocols.run(name, self.repeats, self.seed) for name in names]
        return [run.with_data(self.place.root) for run in runs]

    @property
    def runs(self) -> list[Run]:
        """All runs that are needed, each once whoever needs it, on as much data as there is."""
        return [run for run, _ in self._runs]

    @property
    def note(self) -> str:
        """How the results differ from the paper, in words."""
        lacks = dict.fromkeys(lack for _, lack in self._runs if lack)
        return " ".join([*([self.protocols.note] if self.protocols.note else []), *lacks])

    def in_order(self, runs: Sequence[Run]) -> list[Run]:
        """The order to do them in: those that the scale wants first, and of the others the longest."""
        first = {name: i for i, name in enumerate(self.protocols.first)}
        return sorted(runs, key=lambda run: (first.get(run.name, len(first)), -run.cost))


def planned(settings: Settings) -> Work:
    """The work that settings describe, or ``ValueError``."""
    number("repeats", settings.repeats, whole=True, optional=True)
    number("seed", settings.seed, whole=True, zero=True)
    number("jobs", settings.jobs, whole=True, optional=True)
    half, studies = chosen(settings.figures)
    number("epochs", settings.epochs, whole=True, optional=True)
    scale = settings.scale or next(iter(half.scales))
    protocols = lookup("scale", scale, dict(half.scales))
    repeats = settings.repeats or protocols.repeats
    if settings.epochs is not None:
        if protocols.lasting is None:
            raise ValueError(
                f"epochs: takes no value for {half.name!r}, got {settings.epochs!r}; only images have a choice of them"
            )
        protocols = protocols.lasting(settings.epochs)
    require(settings.seed + repeats <= 2**40, "seed", settings.seed, "a whole number below 2**40")
    claims = [claim for claim in half.claims if claim.figure in {study.id for study in studies}]
    out = settings.out or Path("results/mine") / half.name
    takes = f"cpu for {half.name!r}, whose models are trained by the compiled engine"
    require(half.name == "images" or settings.device == "cpu", "device", settings.device, takes)
    takes = "no value with --cluster, where every worker does one run at a time"
    require(settings.cluster is None or settings.jobs is None, "jobs", settings.jobs, takes)
    # A cluster's machines may have devices that this one has not; they are asked before anything is trained.
    place = Place(settings.root, usable_device(settings.device) if settings.cluster is None else settings.device)
    jobs = settings.jobs or (os.cpu_count() or 1 if place.device == "cpu" else 1)
    return Work(
        half,
        studies,
        claims,
        scale,
        protocols,
        settings.epochs,
        repeats,
        settings.seed,
        out,
        settings.resume,
        jobs,
        settings.cluster,
        place,
    )


def chosen(names: Sequence[str]) -> tuple[Half, list[Study]]:
    """The half of the paper that some figures are of, and these figures."""
    names = [re.sub(r"^fig(\d)$", r"fig0\1", name.lower()) for name in names] or ["toy"]
    known = {name: half for half in HALVES.values() for name in (half.name, *half.studies)}
    halves = {name: lookup("figure", name, known) for name in names}
    half = halves[names[0]]
    for name, other in halves.items():
        takes = f"figures of one half of the paper, as {names[0]} is of {half.name!r}"
        require(other is half, "figure", name, takes)
    if half.name in names:
        return half, list(half.studies.values())
    return half, [half.studies[name] for name in dict.fromkeys(names)]


def reproduce(work: Work, bars: Bars) -> tuple[dict[str, Any], bool]:
    """Do it all.

    Returns:
        The content of the results file, and whether training failed in every repeat of every run.
    """
    if work.out.exists() and not work.out.is_dir():
        raise ValueError(f"out: takes a folder, got the file {work.out}")
    if not work.out.exists():
        for run in work.runs:  # before anything is made
            run.check(work.place.root)
    with at_work(work.cluster, work.jobs) as workers, locked(make_folder(work.out), "out"):
        before = earlier(work)
        workers.check(work.out, work.place)
        for folder in (work.out, work.out / "runs", work.out / "figures"):
            remove_unfinished(folder)
        results = trained(work, before is not None, bars, workers)
        for done, study in enumerate(work.studies):
            bars.show("drawing figures", done, len(work.studies), study.id)
            draw(study, results, work.out / "figures")
        bars.show("drawing figures", len(work.studies), len(work.studies))
        content = summary(work, before or {}, results)
        write_json(work.out / MARKER, content, indent=1)
        write_report(work.out)
    return content, bool(results) and not any(result.trained.any() for result in results.values())


def earlier(work: Work) -> dict[str, Any] | None:
    """What the results file of the folder says; ``None`` if there is none, or another, which is to be replaced."""
    out, marker = work.out, work.out / MARKER
    if not marker.exists():
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise ValueError(
                f"out: {out} holds something else; give a new folder, or an earlier one of anode reproduce"
            )
        return None
    content = read_json(marker)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedFileError(f"{marker}: is not a results file of this version; give another folder")
    theirs = {name: content.get(name) for name in work.identity}
    if work.identity == theirs:
        check_earlier(content, marker, work.half)
        return content
    if work.resume:
        raise ValueError(
            f"out: {out} holds results of {described(theirs)}, not of {described(work.identity)}; give another "
            "folder, or --no-resume to replace them"
        )
    return None


def described(identity: dict[str, Any]) -> str:
    """In words, what results have in common."""
    half, scale, repeats, seed, epochs = identity.values()
    longer = "" if epochs is None else f" and {epochs} epochs"
    return f"the half {half!r} at scale {scale!r} with repeats {repeats} and seed {seed}{longer}"


def check_earlier(content: dict[str, Any], marker: Path, half: Half) -> None:
    """Complain before the work, not after it, about a results file that cannot be added to."""
    needed = {"claims": ("number", "verdict"), "timings": ("name", "seconds"), "failures": ("run",)}
    lists = all(isinstance(content.get(name, []), list) for name in (*needed, "studies"))
    entries = [(entry, keys) for name, keys in needed.items() for entry in content.get(name, [])] if lists else []
    complete = all(isinstance(entry, dict) and all(key in entry for key in keys) for entry, keys in entries)
    known = lists and all(name in half.studies for name in map(str, content.get("studies", [])))
    if not (lists and complete and known and isinstance(content.get("seconds", 0), int | float)):
        raise DamagedFileError(f"{marker}: is damaged; remove it or restore it")


def remove_written(out: Path) -> None:
    """Remove the results of another command from a folder; what was not written by one is left alone."""
    for described in (out / "runs").glob("*.json"):
        with suppress(OSError, DamagedFileError):
            content = read_json(described)
            if isinstance(content, dict) and content.get("format") == RUN_FORMAT:
                described.with_suffix(".safetensors").unlink(missing_ok=True)
                described.unlink()
    for half in HALVES.values():
        for study in half.studies:
            for figure in (out / "figures").glob(f"{study}*"):
                if figure.suffix in (".png", ".svg", ".gif", ".json"):
                    figure.unlink()


def trained(work: Work, ours: bool, bars: Bars, workers: Workers) -> Results:
    """The results of all runs that are needed, each trained once whoever needs it.

    Args:
        work: What is to be done.
        ours: Whether what is in the folder belongs to it; if not, that is replaced.
        bars: Shows the progress.
        workers: Who does the runs.
    """
    folder = work.out / "runs"
    results: dict[str, Result] = {}
    if ours and work.resume:
        results = {run.name: found for run in work.runs if (found := load(run, folder)) is not None}
    missing = [run for run in work.runs if run.name not in results]
    for run in missing:
        run.check(work.place.root)  # before anything is removed
        if ours and work.resume and paths(run, folder)[0].exists():
            what = f"{paths(run, folder)[0]} is of another protocol than this version's"
            raise ValueError(f"out: {what}; give another folder, or --no-resume to do it again")
    if not ours:
        remove_written(work.out)
        write_json(work.out / MARKER, {"format": FORMAT, "title": work.half.title, **work.identity}, indent=1)
    for run in missing:
        for path in paths(run, folder):  # or, interrupted now, it would be taken for a new one later
            path.unlink(missing_ok=True)
    for run in work.runs:
        if run.name in results or not work.resume:
            run.clean(folder)
    missing = work.in_order(missing)
    workers.do(missing, folder, bars, work.place)
    for run in missing:
        found = load(run, folder)
        assert found is not None, run.name
        results[run.name] = found
    certify_earlier(results, folder, bars, work.place)
    return results


def certify_earlier(results: Results, folder: Path, bars: Bars, place: Place) -> None:
    """Certify the models of results that were written before there were certificates, where that can be done later."""
    missing = [result for result in results.values() if result.model is not None and not result.certificates]
    for done, result in enumerate(missing):
        bars.show("certifying", done, len(missing), result.run.name)
        result.certificates = result.run.certify(result, place)
        if result.certificates:
            save(result, folder)
    if missing:
        bars.show("certifying", len(missing), len(missing))


def summary(work: Work, before: dict[str, Any], results: Results) -> dict[str, Any]:
    """The content of the results file: this time's findings, and those that were there and not looked at again."""
    found = {claim.number: checked_claim(claim, results) for claim in work.claims}
    found = {**{claim["number"]: claim for claim in before.get("claims", [])}, **found}
    drawn = {*before.get("studies", []), *(study.id for study in work.studies)}
    timings = {entry["name"]: entry for entry in before.get("timings", [])}
    timings |= {
        name: {"name": name, "seconds": round(result.seconds, 1), "environment": result.environment}
        for name, result in results.items()
    }
    return {
        "format": FORMAT,
        "title": work.half.title,
        "note": work.note,
        **work.identity,
        "studies": [name for name in work.half.studies if name in drawn],
        "claims": [found[number] for number in sorted(found)],
        "failures": [
            *(failure for failure in before.get("failures", []) if failure["run"] not in results),
            *(failure for name, result in results.items() for failure in failures_of(name, result)),
        ],
        "environment": together([entry.get("environment", {}) for entry in timings.values()]),
        "timings": list(timings.values()),
        "seconds": round(sum(entry["seconds"] for entry in timings.values()), 1),
    }
