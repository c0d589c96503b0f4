"""Progress of the image half: what ``anode report`` shows of unfinished results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from anode.data.images import IMAGES
from anode.experiments.beyond.on_images import NETWORKS, network, of_family
from anode.experiments.beyond.runs import LABELS
from anode.experiments.beyond.studies.tables import COLORS as FAMILY_COLORS
from anode.experiments.environment import together
from anode.experiments.halves import HALVES, Protocols
from anode.experiments.images.curves import POINTS, TITLES, percent
from anode.experiments.images.reported import REPRODUCED, TABLE1
from anode.experiments.images.runs import side_by_side
from anode.experiments.images.scales import AUGMENTS, CHOSEN, TOO_MANY
from anode.experiments.images.studies import HEAD
from anode.experiments.reproduce import PROGRESS, SO_FAR, certify_earlier
from anode.experiments.runs import Place, Result, load, paths
from anode.experiments.study import CERTIFIED_COLUMNS, Drawing, Results, Study, certified_cells, draw, mean_std
from anode.experiments.summary import checked_claim, failures_of
from anode.files import DamagedFileError
from anode.plots.series import curves
from anode.plots.style import MODEL_COLORS, MUTED, figure, shades, shared_legend
from anode.report.page import MARKER, write_report
from anode.storage import read_json, write_json
from anode.train.checkpoint.folder import last_history
from anode.train.progress import Bars

PAIR = ("NODE", "ANODE")
"""The models of the reported accuracies, in their order."""
COLUMNS = [
    "",
    "parameters",
    "epochs",
    "loss",
    "NFE",
    "skipped",
    *CERTIFIED_COLUMNS,
    "test accuracy",
    "paper",
    "independent reproduction",
]
CAPTION = (
    "Test accuracy and training loss of every run that has started: of its finished repeats, or up to the current "
    "state of the first one. Skipped iterations could not be solved."
)
REPORTED = (
    " Dashed lines are the paper's accuracies at the end of training. Dotted lines are those of an independent "
    "reproduction, after 8 epochs on MNIST and 10 on CIFAR-10."
)


NAMES = {**TITLES, "overfit": "Overfitting MNIST"}
"""The runs on the same data, by the first part of their names, in words."""
DECAY = {"NODE, weight decay": shades(2, "NODE")[0], "ANODE, weight decay": shades(2)[0]}
"""Labels and colours of runs with weight decay."""
ADDED = (*AUGMENTS, TOO_MANY)
"""The numbers of added channels."""
COLORS = {
    **MODEL_COLORS,
    **FAMILY_COLORS,
    **dict(zip(NETWORKS.values(), (*DECAY.values(), MODEL_COLORS["NODE"], MODEL_COLORS["ANODE"]), strict=True)),
    HEAD: MUTED,
    **DECAY,
    "p = 0": MODEL_COLORS["NODE"],
    **{f"p = {p}": color for p, color in zip(ADDED[1:], shades(len(ADDED) - 1), strict=True)},
}
"""The colours of all lines. They do not depend on which runs have started."""
MOST_COLUMNS = 4
"""Number of panels beside each other."""


def certify_finished(folder: Path, bars: Bars, place: Place) -> None:
    """Certify the finished models of image results that are not complete, which needs their test images."""
    begun = read_json(folder / MARKER)
    if not isinstance(begun, dict) or begun.get("half") not in GROUPS:
        raise ValueError(f"certify: takes a folder of image results, got {folder}; other models are always certified")
    results, unfinished = results_so_far(folder / "runs", begun)
    finished = {name: result for name, result in results.items() if name not in unfinished}
    certify_earlier(finished, folder / "runs", bars, place)


def report_again(folder: Path) -> Path:
    """Write the report of the results in a folder, finished or not."""
    marker = folder / MARKER
    begun = read_json(marker) if marker.is_file() else {}
    if not isinstance(begun, dict) or begun.get("half") not in GROUPS:
        return write_report(folder)
    try:
        reported = {entry["name"] for entry in begun.get("timings", [])}
        if "studies" in begun and started(folder / "runs", begun) <= reported:
            return write_report(folder)
        return report_so_far(folder, begun)
    except (KeyError, TypeError) as error:  # raised by missing or malformed content
        raise DamagedFileError(f"{marker}: is damaged ({error!r}); restore it") from None


def report_so_far(folder: Path, begun: dict[str, Any]) -> Path:
    """Write a report of results that are not finished. The results file stays unchanged, so that training can resume.

    Figures and claims whose runs are all finished and certified are in it.

    Args:
        folder: The folder of the results.
        begun: The content of the results file: half, scale, repeats, seed and epochs.

    Raises:
        ValueError: If the folder has no training state yet.
    """
    results, unfinished = results_so_far(folder / "runs", begun)
    if not results:
        raise ValueError(f"{folder}: has no training state yet; run the same anode reproduce command again to continue")
    finished = tuple(name for name in results if name not in unfinished)
    title = f"{len(finished)} of {len(results)} started runs are finished"
    half = HALVES[begun["half"]]
    drawing = partial(draw_progress, unfinished=unfinished, grouped=GROUPS[half.name])
    progress = Study(PROGRESS, title, CAPTION + (REPORTED if half.name == "images" else ""), finished, drawing)
    whole = {name for name in finished if results[name].certificates or results[name].model is None}
    studies = [study for study in half.studies.values() if {*study.runs} <= whole]
    for study in (progress, *studies):
        draw(study, results, folder / "figures")
    drawn = [study.id for study in studies]
    claims = [checked_claim(claim, results) for claim in half.claims if {*claim.runs} <= whole]
    content = {
        **begun,
        "studies": [PROGRESS, *drawn],
        "claims": [{**claim, "figure": claim["figure"] if claim["figure"] in drawn else PROGRESS} for claim in claims],
        "failures": [failure for name, result in results.items() for failure in failures_of(name, result)],
        "note": note_of(begun, [results[name].run for name in finished]),
        "environment": together([each.environment for each in results.values() if each.environment]),
        "timings": [{"name": name, "seconds": round(each.seconds, 1)} for name, each in results.items()],
        "seconds": round(sum(each.seconds for each in results.values()), 1),
    }
    write_json(folder / SO_FAR, content, indent=1)
    return write_report(folder, SO_FAR)


def protocols_of(begun: dict[str, Any]) -> Protocols:
    """Return the protocols of a results file."""
    protocols = HALVES[begun["half"]].scales[begun["scale"]]
    if begun["epochs"] is None:
        return protocols
    assert protocols.lasting is not None, "the epochs of images can be changed"
    return protocols.lasting(begun["epochs"])


def results_so_far(folder: Path, begun: dict[str, Any]) -> tuple[dict[str, Result], set[str]]:
    """Return the results so far of every started run, and the names of the unfinished ones."""
    protocols = protocols_of(begun)
    order = {name: i for i, name in enumerate(protocols.first)}
    found, unfinished = {}, set()
    for name in sorted(started(folder, begun), key=lambda name: (order.get(name, len(order)), name)):
        run = as_trained(protocols.run(name, begun["repeats"], begun["seed"]), folder)
        result = load(run, folder)
        if result is None and (result := so_far(run, folder)) is not None:
            unfinished.add(name)
        if result is not None:
            found[name] = result
    return found, unfinished


def started(folder: Path, begun: dict[str, Any]) -> set[str]:
    """Return the names of the runs of a half that have started. Other files in the folder are ignored."""
    known = {name for study in HALVES[begun["half"]].studies.values() for name in study.runs}
    return {path.stem for path in folder.glob("*") if path.suffix in (".json", ".part")} & known


def as_trained(run: Any, folder: Path) -> Any:
    """Return a run; if it is finished, with the sizes and pools of the data it was trained on."""
    described = paths(run, folder)[0]
    if not described.exists():
        return run
    try:
        protocol = read_json(described)["protocol"]
        pools = {name: protocol.get(name) for name in ("train_pool", "test_pool")}
        return replace(run, train_size=protocol["train_size"], test_size=protocol["test_size"], **pools)
    except (KeyError, TypeError):
        raise DamagedFileError(f"{described}: is damaged; remove it to train the run again") from None


def note_of(begun: dict[str, Any], finished: Iterable[Any]) -> str:
    """Return in words how unfinished results differ from the paper, and what data their finished runs lacked."""
    protocols = protocols_of(begun)
    lacks = [lack_of(run, protocols.run(run.name, begun["repeats"], begun["seed"])) for run in finished]
    return " ".join(filter(None, ["These results are not complete.", protocols.note, *dict.fromkeys(lacks)]))


def lack_of(run: Any, wanted: Any) -> str:
    """Return in words what data a finished run lacked; empty if none.

    Args:
        run: The run, with the sizes and pools of its data.
        wanted: The same run with the sizes that its protocol asks for.
    """
    counts = dict(IMAGES[run.data].counts)
    for split, pool in (("train", run.train_pool), ("test", run.test_pool)):
        if pool is not None or run.sizes[split] < wanted.sizes[split]:
            counts[split] = pool or run.sizes[split]
    lack: str = wanted.with_counts(counts)[1]
    return lack


def so_far(run: Any, folder: Path) -> Result | None:
    """Return the result of the finished repeats, or so far of the repeat that is furthest; ``None`` if none started."""
    histories = [last_history(run.unfinished(folder, seed)) for seed in run.seeds]
    begun = [history for history in histories if history is not None and len(history)]
    if not begun:
        return None
    # The history knows the number of batches: the data may have fewer images than the run asks for.
    shown = [history for history in begun if len(history) == run.epochs * history.batches] or [max(begun, key=len)]
    seconds = sum(float(history.seconds.sum()) for history in begun)
    return Result(replace(run, repeats=len(shown)), None, side_by_side(shown), seconds)


@dataclass(frozen=True)
class Group:
    """Runs that share a panel.

    Attributes:
        title: What they have in common, in words.
        models: Their results, by label.
        data: The key of their reported accuracies; empty if there are none.
    """

    title: str
    models: dict[str, Result]
    data: str = ""


def paper_groups(results: Results) -> Iterator[Group]:
    """Yield the runs on each dataset, and those that overfit. Other numbers of added channels have their own group."""
    for data, name in NAMES.items():
        anode = f"{data}-p{CHOSEN[data]}" if data in CHOSEN else f"{data}-anode"
        decays = (f"{data}-node-decay", f"{anode}-decay")
        labels = {f"{data}-node": "NODE", anode: "ANODE", f"{data}-head": HEAD, **dict(zip(decays, DECAY, strict=True))}
        yield Group(name, {label: results[run] for run, label in labels.items() if run in results}, data)
        added = {p: f"{data}-p{p}" for p in ADDED if f"{data}-p{p}" in results}
        if added.keys() - {CHOSEN.get(data)}:
            yield Group(f"{name}, added channels", {f"p = {p}": results[run] for p, run in added.items()})


def family_groups(results: Results) -> Iterator[Group]:
    """Yield the runs of each study of the family on images."""
    for title, labels in (
        ("The family on MNIST", {of_family(kind): label for kind, label in LABELS.items()}),
        ("Architecture", {network(*both): label for both, label in NETWORKS.items()}),
    ):
        yield Group(title, {label: results[run] for run, label in labels.items() if run in results})


GROUPS = {"images": paper_groups, "beyond-images": family_groups}
"""The groups of runs of each half whose progress can be shown."""


def draw_progress(results: Results, unfinished: set[str], grouped: Callable[[Results], Iterable[Group]]) -> Drawing:
    """Draw curves of all runs, with a table that compares them with reported accuracies."""
    groups = [group for group in grouped(results) if group.models]
    columns = min(len(groups), MOST_COLUMNS)
    rows = -(-len(groups) // columns)
    made = figure(4.2 * columns, 6.0 * rows, rows=2 * rows, columns=columns)
    panels = list(made.axes)
    for i, group in enumerate(groups):
        place = 2 * columns * (i // columns) + i % columns
        draw_group(panels[place], panels[place + columns], group)
    for axes in panels:
        if not axes.has_data():
            axes.remove()
    shared_legend(made)
    return Drawing(made, COLUMNS, [row for group in groups for row in table(group, unfinished)])


def draw_group(accuracy: Axes, loss: Axes, group: Group) -> None:
    """Draw the test accuracies and the losses of some runs."""
    histories = {label: result.history for label, result in group.models.items()}
    evaluated = {label: history for label, history in histories.items() if len(history.validation_at)}
    if evaluated:
        at = {label: history.validation_at / history.batches for label, history in evaluated.items()}
        values = {label: 100 * history.validation_accuracy for label, history in evaluated.items()}
        curves(accuracy, at, values, COLORS, "test accuracy, %")
    for style, reported in (("--", TABLE1), (":", REPRODUCED)):
        for model, value in zip(PAIR, reported.get(group.data, ()), strict=False):
            accuracy.axhline(float(value.split()[0]), color=MODEL_COLORS[model], linestyle=style, linewidth=1)
    accuracy.set_title(group.title)
    stretches = {label: history.windows("loss", POINTS) for label, history in histories.items()}
    at = {label: x / histories[label].batches for label, (x, _) in stretches.items()}
    curves(loss, at, {label: y for label, (_, y) in stretches.items()}, COLORS, "training loss", log=True)
    for axes in (accuracy, loss):
        axes.set_xlim(0, max(result.run.epochs for result in group.models.values()))


def progress_of(result: Result, is_finished: bool) -> str:
    """Return in words how many epochs or repeats of a run are finished."""
    history, run = result.history, result.run
    epochs = len(history) / history.batches
    said = f"{epochs:.3g} of {run.epochs}"
    if is_finished:
        return said
    if len(history) == run.epochs * history.batches:
        return f"{said}, {run.repeats} {'repeat' if run.repeats == 1 else 'repeats'} so far"
    return f"{said}, unfinished"


def table(group: Group, unfinished: set[str]) -> list[list[str]]:
    """Return one row per run."""
    rows = []
    finished = {label: result for label, result in group.models.items() if result.run.name not in unfinished}
    certified = certified_cells(finished, lambda result: result.run.data)
    others = [dict(zip(PAIR, each.get(group.data, ()), strict=False)) for each in (TABLE1, REPRODUCED)]
    for label, result in group.models.items():
        history = result.history
        looks = history.validation_accuracy
        rows.append(
            [
                f"{group.title}, {label}",
                f"{result.run.parameters:,}",
                progress_of(result, result.run.name not in unfinished),
                mean_std(history.windows("loss", 10)[1][-1]),
                mean_std(history.windows("nfe", 10)[1][-1]),
                str(len(history.failures)),
                *certified.get(label, ["", ""]),
                percent(looks[-1]) if len(looks) else "not evaluated yet",
                *(f"{each[label]} %" if label in each else "" for each in others),
            ]
        )
    return rows
