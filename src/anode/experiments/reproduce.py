"""``anode reproduce``: train missing runs, draw figures, check claims and write the report."""

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
from anode.experiments.runs import Place, Result, Run, certify, load, paths
from anode.experiments.settings import Settings
from anode.experiments.study import Results, Study, draw
from anode.experiments.summary import checked_claim, failures_of
from anode.experiments.workers import Workers
from anode.files import DamagedFileError, holds_files, locked, make_folder, remove_unfinished
from anode.report import write_report
from anode.report.page import FORMAT, MARKER
from anode.storage import read_json, write_json
from anode.train.progress import Bars

PROGRESS = "progress"
"""The id of the study that reports of unfinished results have."""
SO_FAR = "anode-so-far.json"
"""The results file of unfinished results."""


@dataclass(frozen=True)
class Work:
    """Settings that are checked and complete.

    Attributes:
        protocols: The runs at this scale, with the requested number of epochs.
        identity: What all results in one folder have in common.
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
        """All runs that are needed, without duplicates, on the data that is available."""
        return [run for run, _ in self._runs]

    @property
    def lacks(self) -> dict[str, str]:
        """What data is missing, in words, for each run that lacks any."""
        return {run.name: lack for run, lack in self._runs if lack}

    def in_order(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs in training order: those that the scale puts first, then the longest."""
        first = {name: i for i, name in enumerate(self.protocols.first)}
        return sorted(runs, key=lambda run: (first.get(run.name, len(first)), -run.cost))


def planned(settings: Settings) -> Work:
    """Return the work that settings describe; raises ``ValueError`` if they are invalid."""
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
                f"epochs: takes no value for {half.name!r}, got {settings.epochs!r}; only images have them"
            )
        protocols = protocols.lasting(settings.epochs)
    require(settings.seed + repeats <= 2**40, "seed", settings.seed, "a whole number below 2**40")
    claims = [claim for claim in half.claims if claim.figure in {study.id for study in studies}]
    out = settings.out or Path("results/mine") / half.name
    takes = f"cpu for {half.name!r}, which the compiled engine trains"
    require(half.any_device or settings.device == "cpu", "device", settings.device, takes)
    takes = "no value with --cluster, where every worker trains one run at a time"
    require(settings.cluster is None or settings.jobs is None, "jobs", settings.jobs, takes)
    # The machines of a cluster may have other devices than this one; they are checked before training starts.
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
    """Return the half of the paper that some figures belong to, and these figures."""
    names = [re.sub(r"^fig(\d)$", r"fig0\1", name.lower()) for name in names] or ["toy"]
    known = {name: half for half in HALVES.values() for name in (half.name, *half.studies)}
    halves = {name: lookup("figure", name, known) for name in names}
    half = halves[names[0]]
    for name, other in halves.items():
        takes = f"figures of the same half of the paper as {names[0]}, which is {half.name!r}"
        require(other is half, "figure", name, takes)
    if half.name in names:
        return half, list(half.studies.values())
    return half, [half.studies[name] for name in dict.fromkeys(names)]


def reproduce(work: Work, bars: Bars) -> tuple[dict[str, Any], bool]:
    """Train, draw, check the claims and write the report.

    Returns:
        The content of the results file, and whether training failed in every repeat of every run.
    """
    if work.out.exists() and not work.out.is_dir():
        raise ValueError(f"out: takes a folder, got the file {work.out}")
    if not work.out.exists():
        for run in work.runs:  # before any folder is created
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
        remove_so_far(work.out)
    return content, bool(results) and not any(result.trained.any() for result in results.values())


def earlier(work: Work) -> dict[str, Any] | None:
    """Return the content of the folder's results file; ``None`` if there is none, or if it is to be replaced."""
    out, marker = work.out, work.out / MARKER
    if not marker.exists():
        if holds_files(out):
            raise ValueError(f"out: {out} has other files; give a new folder, or one written by anode reproduce")
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
            f"out: {out} has results of {described(theirs)}, not of {described(work.identity)}; give another "
            "folder, or pass --no-resume to replace them"
        )
    return None


def described(identity: dict[str, Any]) -> str:
    """Return an identity in words."""
    half, scale, repeats, seed, epochs = identity.values()
    longer = "" if epochs is None else f", epochs {epochs}"
    return f"{half} at scale {scale} (repeats {repeats}, seed {seed}{longer})"


def check_earlier(content: dict[str, Any], marker: Path, half: Half) -> None:
    """Raise an error before training if results cannot be added to the results file."""
    needed = {"claims": ("number", "verdict"), "timings": ("name", "seconds"), "failures": ("run",)}
    lists = all(isinstance(content.get(name, []), list) for name in (*needed, "studies"))
    entries = [(entry, keys) for name, keys in needed.items() for entry in content.get(name, [])] if lists else []
    complete = all(isinstance(entry, dict) and all(key in entry for key in keys) for entry, keys in entries)
    known = lists and all(name in half.studies for name in map(str, content.get("studies", [])))
    if not (lists and complete and known and isinstance(content.get("seconds", 0), int | float)):
        raise DamagedFileError(f"{marker}: is damaged; remove it or restore it")


def remove_written(out: Path) -> None:
    """Remove the results of another command from a folder, and no other files."""
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


def remove_so_far(out: Path) -> None:
    """Remove what reports of unfinished results have left in a folder."""
    for path in (out / SO_FAR, *(out / "figures").glob(f"{PROGRESS}.*")):
        path.unlink(missing_ok=True)


def trained(work: Work, ours: bool, bars: Bars, workers: Workers) -> Results:
    """Return the results of all runs that are needed, training those that are missing.

    Args:
        work: What to do.
        ours: Whether the results in the folder belong to this work; if not, they are replaced.
        bars: Shows the progress.
        workers: Train the runs.
    """
    folder = work.out / "runs"
    results: dict[str, Result] = {}
    if ours and work.resume:
        results = {run.name: found for run in work.runs if (found := load(run, folder)) is not None}
    missing = [run for run in work.runs if run.name not in results]
    for run in missing:
        run.check(work.place.root)  # before anything is removed
        if ours and work.resume and paths(run, folder)[0].exists():
            what = f"{paths(run, folder)[0]} has another protocol than this version"
            raise ValueError(f"out: {what}; give another folder, or pass --no-resume to train it again")
    if not ours:
        remove_written(work.out)
        write_json(work.out / MARKER, {"format": FORMAT, "title": work.half.title, **work.identity}, indent=1)
    for run in missing:
        for path in paths(run, folder):  # or a resumed command would take it for a new result
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
    """Certify models of earlier results that have no certificates, if their weights were kept."""
    missing = [result for result in results.values() if result.model is not None and not result.certificates]
    for done, result in enumerate(missing):
        bars.show("certifying", done, len(missing), result.run.name)
        certify(result, folder, place)
    if missing:
        bars.show("certifying", len(missing), len(missing))


def summary(work: Work, before: dict[str, Any], results: Results) -> dict[str, Any]:
    """Return the content of the results file: the new findings, and earlier ones that were not checked again."""
    found = {claim.number: checked_claim(claim, results) for claim in work.claims}
    found = {**{claim["number"]: claim for claim in before.get("claims", [])}, **found}
    drawn = {*before.get("studies", []), *(study.id for study in work.studies)}
    timings = {entry["name"]: entry for entry in before.get("timings", [])}
    for name, result in results.items():
        timings[name] = {"name": name, "seconds": round(result.seconds, 1), "environment": result.environment}
        if name in work.lacks:
            timings[name]["lacks"] = work.lacks[name]
    lacks = dict.fromkeys(entry["lacks"] for entry in timings.values() if "lacks" in entry)
    return {
        "format": FORMAT,
        "title": work.half.title,
        "note": " ".join(filter(None, [work.protocols.note, *lacks])),
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
