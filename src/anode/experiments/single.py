"""One model on one dataset: what ``anode train`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

from anode.checks import require, usable_device
from anode.experiments.descriptions import NAME as DESCRIBED
from anode.experiments.descriptions import Description, check_same
from anode.experiments.environment import environment
from anode.experiments.judging import judge, save_result
from anode.experiments.kinds import FILES, IMAGES, PICTURES, POINTS, TABLE
from anode.experiments.material import Material, material_of
from anode.experiments.options import TrainOptions
from anode.experiments.runs import HERE, Place
from anode.files import DamagedFileError, locked, make_folder, read_json, write_json
from anode.models import saving
from anode.models.ensemble import from_seed, seeded, unstack
from anode.models.flow import PAPER
from anode.train.fit import fit
from anode.train.history import History
from anode.train.ranks import Ranks

FORMAT = "anode train 1"
BATCHES = {POINTS: 64, IMAGES: 256, TABLE: 32, PICTURES: 32}
"""Points in an iteration, if there are as many and nothing else is asked for."""
UNFINISHED = ("interrupted", "time is up")
"""Why training may have stopped so that the same command goes on."""


@dataclass(frozen=True)
class Prepared:
    """Everything that training takes.

    Attributes:
        model: A model, or a stack of them.
        material: The data.
        options: Further arguments of :func:`anode.fit`.
    """

    model: Any
    material: Material
    options: dict[str, Any]


def prepare(single: TrainOptions, place: Place = HERE) -> Prepared:
    """Read the data and make a model, and complain about what does not fit together."""
    single.check()
    material = material_of(single, place.root)
    sizes = material.description.sizes
    seeds = range(single.seed, single.seed + single.repeats)
    build = partial(single.build, sizes)
    model: Any = seeded(build, seeds) if single.repeats > 1 else from_seed(build, single.seed)
    size = material.description.counts["training"]
    options = {
        "batch_size": min(BATCHES[single.kind], size) if single.batch_size is None else single.batch_size,
        "lr": single.lr,
        "weight_decay": single.weight_decay,
        "loss": single.regularised(checked_loss(single, material.description)),
        "evaluate_every": single.evaluate_every,
        "check_every": single.check_every,
        "patience": single.patience,
        "on_failure": single.on_failure,
        "seed": single.seed,
    }
    return Prepared(model.to(place.device), material, options)


def checked_loss(single: TrainOptions, description: Description) -> str:
    """The loss, if it fits what a table has as its target."""
    loss, target = single.loss_of(bool(description.classes)), description.target
    if target is not None:
        takes = f"{'cross_entropy' if target.classes else 'mse or huber'} for {target.task}"
        require((loss == "cross_entropy") == bool(target.classes), "loss", loss, takes)
    return loss


def train_single(
    single: TrainOptions,
    folder: Path,
    minutes: float | None = None,
    place: Place = HERE,
    say: Callable[[str], None] | None = None,
) -> History:
    """Train, and save everything into a folder; go on with what was begun there with the same options.

    Args:
        single: What to train. Of the options that a run was begun with, only ``epochs`` may differ.
        folder: A new or empty folder, or that of an earlier call.
        minutes: End after so much time.
        place: Where it is done.
        say: Is told what was done with the data, a line at a time, and whether there was nothing left to train.
    """
    usable_device(place.device)
    first = Ranks(torch.device("cpu")).first  # of several processes, one writes
    if first:
        earlier(single, folder)  # a mistake is to be found before the data are read
    prepared = prepare(single, place)
    described = prepared.material.description
    train = partial(
        fit,
        prepared.model,
        prepared.material.data,
        validation=prepared.material.validation,
        epochs=single.epochs,
        minutes=minutes,
        checkpoint=folder / "checkpoint",
        **prepared.options,
    )
    if not first:
        return train()
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder)  # before the work: if it cannot be made, nothing is lost
    with locked(folder, "out"):
        begun = earlier(single, folder)  # by another process meanwhile, perhaps
        if begun:
            check_same(folder, described)
        else:
            content = {"format": FORMAT, "options": single.to_json(), "environment": environment()}
            write_json(folder / "run.json", content, indent=1)
        described.save(folder)
        if say is not None:
            for line in described.notes:
                say(line)
        before = iterations_in(folder)
        try:
            history = train()
        except Exception:
            if not begun and not any((folder / "checkpoint").glob("state-*")):  # nothing was trained
                remove_begun(folder, new)
            raise
        saving.save(prepared.model, folder / "model")
        history.save(folder / "history.csv")
        history.save(folder / "history.json")
        save_result(folder, *judge(prepared.model, prepared.material))
    if say is not None and 0 < before == len(history) and history.stopped not in UNFINISHED and not history.failures:
        say(f"{folder} is already trained; pass another --out to train anew")
    return history


def iterations_in(folder: Path) -> int:
    """How many iterations the saved history of a run has; 0 if there is none that can be read."""
    try:
        return len(History.load(folder / "history.json"))
    except (OSError, DamagedFileError):
        return 0


def remove_begun(folder: Path, new: Sequence[Path]) -> None:
    """Remove what was written before training, and the folders that were made for it."""
    for name in ("run.json", DESCRIBED):
        (folder / name).unlink()
    rmtree(folder / "checkpoint", ignore_errors=True)
    with suppress(OSError):  # somebody else may have put something there
        for each in new:
            each.rmdir()


def earlier(single: TrainOptions, folder: Path) -> bool:
    """Whether a folder holds a run that was begun with the same options; ``ValueError`` if it holds something else."""
    if not folder.exists() or (folder.is_dir() and all(path.name.startswith(".") for path in folder.iterdir())):
        return False
    if not (folder / "run.json").is_file():
        raise ValueError(f"out: {folder} exists and is not an empty folder; give a new one")
    theirs, ours = options_in(folder).to_json(), single.to_json()
    names = [name for name in {**ours, **theirs} if name != "epochs"]
    found = {name: theirs.get(name, getattr(PAPER, name, None)) for name in names}
    other = [f"{name} {found[name]!r}" for name in names if found[name] != ours.get(name, getattr(PAPER, name, None))]
    if ours.get("target") is None and theirs.get("target") is not None:
        go_on = f"pass --target {theirs['target']} to go on with the run in {folder}"
        raise ValueError(f"target: takes a column of {single.data}; {go_on}")
    if other:
        raise ValueError(f"out: {folder} holds a run with {', '.join(other)}; give a new folder, or the same options")
    return True


def options_in(folder: Path) -> TrainOptions:
    """The options that a run in a folder was begun with."""
    if not (folder / "run.json").is_file():
        why = "it has no run.json" if folder.exists() else "it does not exist"
        raise ValueError(f"{folder}: is not a folder of anode train, {why}")
    content = read_json(folder / "run.json")
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        return TrainOptions.from_json(content["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{folder / 'run.json'}: is damaged ({error})") from None


@dataclass(frozen=True)
class Saved:
    """What ``anode train`` saved.

    Attributes:
        name: The folder.
        single: The options.
        model: The model, or the first of several repeats.
        history: What happened.
        repeats: The model again, or the stack of all repeats.
        description: What it was trained on; ``None`` for built-in data in a folder of an earlier version.
    """

    name: str
    single: TrainOptions
    model: Any
    history: History
    repeats: Any
    description: Description | None


def load_saved(folder: Path) -> Saved:
    """Read a folder of ``anode train``."""
    single = options_in(folder)
    if (folder / "checkpoint").is_dir() and not (folder / "model.json").exists():
        raise ValueError(f"{folder}: holds a run that was broken off; the command that began it goes on with it")
    repeats, history = saving.load(folder / "model"), History.load(folder / "history.json")
    model = repeats if repeats.members is None else unstack(repeats)[0]
    described = Description.load(folder) if single.kind in FILES or (folder / DESCRIBED).exists() else None
    try:
        single.check_options()
        # No model is built to compare with: the options are anybody's, and may ask for one of any size.
        fits = single.fits(model, described.sizes if described is not None and single.kind in FILES else None)
        fits = fits and (described is None or described.kind == single.kind)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise DamagedFileError(f"{folder / 'run.json'}: its options do not belong to the model beside it")
    return Saved(str(folder), single, model, history, repeats, described)
