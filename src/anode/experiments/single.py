"""``anode train``: one model on one dataset."""

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
from anode.experiments.judging import NAME as RESULT
from anode.experiments.judging import judge, save_result
from anode.experiments.kinds import FILES, IMAGES, PICTURES, POINTS, TABLE
from anode.experiments.material import Material, material_of
from anode.experiments.options import TrainOptions
from anode.experiments.runs import HERE, Place
from anode.experiments.ties import check_tied, ties
from anode.files import DamagedFileError, holds_files, locked, make_folder
from anode.models import saving
from anode.models.ensemble import from_seed, seeded, unstack
from anode.models.flow import PAPER
from anode.storage import read_json, write_sealed
from anode.train.checkpoint.folder import last_history
from anode.train.fit import fit
from anode.train.history import History
from anode.train.progress import Bars
from anode.train.ranks import Ranks

FORMAT = "anode train 1"
BATCHES = {POINTS: 64, IMAGES: 256, TABLE: 32, PICTURES: 32}
"""Default batch sizes."""
TIED = ("run.json", DESCRIBED, "history.json")
"""The files that are read together with the model."""
UNFINISHED = ("interrupted", "time is up")
"""Reasons for stopping after which the same command continues."""


@dataclass(frozen=True)
class Prepared:
    """Everything that training needs.

    Attributes:
        model: A model, or a stack of models.
        material: The data.
        options: Further arguments of :func:`anode.fit`.
    """

    model: Any
    material: Material
    options: dict[str, Any]


def prepare(single: TrainOptions, place: Place = HERE) -> Prepared:
    """Read the data and build the model; raise ``ValueError`` if they do not fit together."""
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
    """Return the loss; raise ``ValueError`` if it does not fit the target of a table."""
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
    """Train and save everything to a folder; continue if the folder holds a run with the same options.

    Args:
        single: The options. To continue a run, only ``epochs`` may differ.
        folder: A new or empty folder, or the folder of an earlier call.
        minutes: Time limit of this call.
        place: Where to train.
        say: Called with lines about the data, and if there was nothing left to train.
    """
    usable_device(place.device)
    first = Ranks(torch.device("cpu")).first  # of several processes, one writes
    find_mistakes(single, folder, place)  # before the data are read
    prepared = prepare(single, place)
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
    make_folder(folder)  # before training: if it fails, nothing is lost
    with locked(folder, "out"):
        begun = _begin(single, folder, prepared.material.description)
        last = last_history(folder / "checkpoint")
        before = 0 if last is None else len(last)
        if say is not None:
            for line in prepared.material.description.notes:
                say(line)
            total = 0 if last is None or last.stopped not in ("", *UNFINISHED) else single.epochs * last.batches
            if 0 < before < total:
                say(f"resuming from iteration {before:,} of {total:,}")
        try:
            with Bars() as bars:
                history = train(progress=bars.listen("training"))
        except Exception:
            if not begun and not any((folder / "checkpoint").glob("state-*")):  # nothing was trained
                remove_begun(folder, new)
            raise
        judged = judge(prepared.model, prepared.material)
        history.save(folder / "history.csv")
        history.save(folder / "history.json")
        save_result(folder, *judged)
        saving.save_noted(prepared.model, folder / "model", ties(folder, (*TIED, RESULT)))
    if say is not None and 0 < before == len(history) and history.stopped not in UNFINISHED and not history.failures:
        say(f"{folder} is already trained; pass another --out to train anew")
    return history


def _begin(single: TrainOptions, folder: Path, described: Description) -> bool:
    """Write the files of a new run, or check those of an earlier one; return whether there was one.

    Another process may have started the run meanwhile.
    """
    begun = earlier(single, folder)
    if begun:
        check_same(folder, described)
    else:
        content = {"format": FORMAT, "options": single.to_json(), "environment": environment()}
        write_sealed(folder / "run.json", content, indent=1)
    described.save(folder)
    return begun


def remove_begun(folder: Path, new: Sequence[Path]) -> None:
    """Remove the files written before training, and the new folders."""
    for name in ("run.json", DESCRIBED):
        (folder / name).unlink()
    rmtree(folder / "checkpoint", ignore_errors=True)
    with suppress(OSError):  # the folder may hold files of others
        for each in new:
            each.rmdir()


class OtherOptionsError(ValueError):
    """A folder holds a run with other options."""


def find_mistakes(single: TrainOptions, folder: Path, place: Place) -> None:
    """Raise ``ValueError`` if a folder is not for this run.

    A run with other options may be one whose options were right, so mistakes in the new ones come first.
    """
    try:
        earlier(single, folder)
    except OtherOptionsError:
        new = prepare(single, place)
        fit(new.model, new.material.data, validation=new.material.validation, epochs=0, progress=False, **new.options)
        raise


def earlier(single: TrainOptions, folder: Path) -> bool:
    """Whether a folder holds a run with the same options; raise ``ValueError`` if it holds anything else."""
    if not folder.exists() or (folder.is_dir() and not holds_files(folder)):
        return False
    if not (folder / "run.json").is_file():
        raise ValueError(f"out: {folder} exists and is not an empty folder; pass a new one")
    theirs, ours = options_in(folder).to_json(), single.to_json()
    names = [name for name in {**ours, **theirs} if name != "epochs"]
    found = {name: theirs.get(name, getattr(PAPER, name, None)) for name in names}
    wanted = {name: ours.get(name, getattr(PAPER, name, None)) for name in names}
    other = [f"{name} {found[name]!r} (now {wanted[name]!r})" for name in names if found[name] != wanted[name]]
    if ours.get("target") is None and theirs.get("target") is not None:
        go_on = f"pass --target {theirs['target']} to continue the run in {folder}"
        raise ValueError(f"target: takes a column of {single.data}; {go_on}")
    if other:
        how = "pass a new folder, or the same options"
        raise OtherOptionsError(f"out: {folder} holds a run with {', '.join(other)}; {how}")
    return True


def options_in(folder: Path) -> TrainOptions:
    """Return the options of the run in a folder."""
    if not (folder / "run.json").is_file():
        why = "it has no run.json" if folder.exists() else "it does not exist"
        raise ValueError(f"{folder}: is not a folder that anode train wrote: {why}")
    content = read_json(folder / "run.json")
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"takes format {FORMAT!r}, got {content['format']!r}")
        found = TrainOptions.from_json(content["options"])
        require(isinstance(found.data, str), "data", found.data, "a text")
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(f"{folder / 'run.json'}: is damaged ({error}); restore it, or train again") from None


@dataclass(frozen=True)
class Saved:
    """A saved run.

    Attributes:
        name: The folder.
        single: The options.
        model: The model, or the first of several repeats.
        history: The course of training.
        repeats: The model again, or the stack of all repeats.
        description: Description of the data; ``None`` if an earlier version trained on built-in data.
    """

    name: str
    single: TrainOptions
    model: Any
    history: History
    repeats: Any
    description: Description | None


def load_saved(folder: Path) -> Saved:
    """Read a run from its folder.

    Raises:
        ValueError: The folder holds no run, or one that was not finished.
        DamagedFileError: A file is damaged.
    """
    single = options_in(folder)
    if (folder / "checkpoint").is_dir() and not (folder / "model.json").exists():
        with locked(folder, "run"):  # raises an error that says so if another process is training it
            pass
        raise ValueError(f"{folder}: holds an unfinished run; run the command again that started it, to continue")
    repeats, history = saving.load(folder / "model"), History.load(folder / "history.json")
    model = repeats if repeats.members is None else unstack(repeats)[0]
    described = Description.load(folder) if single.kind in FILES or (folder / DESCRIBED).exists() else None
    try:
        single.check_options()
        # Compare settings instead of building a model: damaged options may describe one of any size.
        fits = single.fits(model, described.sizes if described is not None and single.kind in FILES else None)
        fits = fits and (described is None or described.kind == single.kind)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise DamagedFileError(f"{folder / 'run.json'}: its options do not match the model next to it")
    check_tied(folder, TIED)
    return Saved(str(folder), single, model, history, repeats, described)
