"""One model on one dataset: what ``anode train`` does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

from anode.checks import require, usable_device
from anode.data import images
from anode.data.toy import Dataset
from anode.experiments.environment import environment
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


@dataclass(frozen=True)
class Prepared:
    """Everything that training takes.

    Attributes:
        model: A model, or a stack of them.
        data, validation: As :func:`anode.fit` takes them.
        options: Further arguments of :func:`anode.fit`.
    """

    model: Any
    data: Any
    validation: Any
    options: dict[str, Any]


def prepare(single: TrainOptions, place: Place = HERE) -> Prepared:
    """Make model and data, and complain about what does not fit together."""
    single.check()
    seeds = range(single.seed, single.seed + single.repeats)
    model: Any = seeded(single.build, seeds) if single.repeats > 1 else from_seed(single.build, single.seed)
    data, validation = image_data(single, place.root) if single.is_image else toy_data(single, seeds)
    size = len(data[0]) if isinstance(data, list | tuple) else len(data)
    usual = 256 if single.is_image else 64
    options = {
        "batch_size": min(usual, size) if single.batch_size is None else single.batch_size,
        "lr": single.lr,
        "weight_decay": single.weight_decay,
        "loss": single.chosen_loss,
        "evaluate_every": single.evaluate_every,
        "check_every": single.check_every,
        "patience": single.patience,
        "on_failure": single.on_failure,
        "seed": single.seed,
    }
    return Prepared(model.to(place.device), data, validation, options)


def image_data(single: TrainOptions, root: Path | None) -> tuple[Any, Any]:
    """Training images, and those to look at on the way: the test images, or some kept from training."""
    train, test = (images.load(single.data, split, root) for split in ("train", "test"))
    if single.train_size is not None:
        takes = f"at most the {len(train)} images that there are"
        require(single.train_size <= len(train), "train_size", single.train_size, takes)
        train = train.subset(single.train_size, single.seed)
    if single.validation:
        train, test = train.split(1 - checked_share(single, len(train)), single.seed)
    if single.side is not None:
        train, test = train.resize(single.side), test.resize(single.side)
    return train, test


def checked_share(single: TrainOptions, size: int) -> float:
    """The fraction of so many points or images that is kept from training."""
    takes = f"a fraction that leaves some of {size} on either side"
    require(0 < round(single.validation * size) < size, "validation", single.validation, takes)
    return single.validation


def toy_data(single: TrainOptions, seeds: Sequence[int]) -> tuple[Any, Any]:
    """Points to train on, and those kept for validation, if any."""
    whole = [single.dataset(seed) for seed in seeds]
    if not single.validation:
        return targets(whole, single), None
    share = checked_share(single, len(whole[0]))
    parts = [each.split(1 - share, seed) for each, seed in zip(whole, seeds, strict=True)]
    return targets([part[0] for part in parts], single), targets([part[1] for part in parts], single)


def targets(data: Sequence[Dataset], single: TrainOptions) -> Any:
    """The data as training takes it: with classes for cross entropy, and without a list for a single model."""
    if single.chosen_loss != "cross_entropy":
        return data[0] if single.repeats == 1 else data
    require(single.repeats == 1, "repeats", single.repeats, "1 beside --loss cross_entropy")
    return data[0].x, data[0].labels


def train_single(single: TrainOptions, folder: Path, minutes: float | None = None, place: Place = HERE) -> History:
    """Train, and save model and history into a folder; go on with what was begun there with the same options.

    Args:
        single: What to train. Of the options that a run was begun with, only ``epochs`` may differ.
        folder: A new or empty folder, or that of an earlier call.
        minutes: End after so much time.
        place: Where it is done.
    """
    usable_device(place.device)
    first = Ranks(torch.device("cpu")).first  # of several processes, one writes
    if first:
        earlier(single, folder)  # a mistake is to be found before the data are read
    prepared = prepare(single, place)
    train = partial(
        fit,
        prepared.model,
        prepared.data,
        validation=prepared.validation,
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
        if not begun:
            described = {"format": FORMAT, "options": single.to_json(), "environment": environment()}
            write_json(folder / "run.json", described, indent=1)
        try:
            history = train()
        except Exception:
            if not begun and not any((folder / "checkpoint").glob("state-*")):  # nothing was trained
                (folder / "run.json").unlink()
                rmtree(folder / "checkpoint", ignore_errors=True)
                with suppress(OSError):  # somebody else may have put something there
                    for each in new:
                        each.rmdir()
            raise
        saving.save(prepared.model, folder / "model")
        history.save(folder / "history.csv")
        history.save(folder / "history.json")
    return history


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
    if other:
        raise ValueError(f"out: {folder} holds a run with {', '.join(other)}; give a new folder, or the same options")
    return True


def options_in(folder: Path) -> TrainOptions:
    """The options that a run in a folder was begun with."""
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder}: is not a folder of anode train, it has no run.json")
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
    """

    name: str
    single: TrainOptions
    model: Any
    history: History
    repeats: Any


def load_saved(folder: Path) -> Saved:
    """Read a folder of ``anode train``."""
    single = options_in(folder)
    if (folder / "checkpoint").is_dir() and not (folder / "model.json").exists():
        raise ValueError(f"{folder}: holds a run that was broken off; the command that began it goes on with it")
    repeats, history = saving.load(folder / "model"), History.load(folder / "history.json")
    model = repeats if repeats.members is None else unstack(repeats)[0]
    try:
        single.check()
        # No model is built to compare with: the options are anybody's, and may ask for one of any size.
        fits = single.fits(model)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise DamagedFileError(f"{folder / 'run.json'}: its options do not belong to the model beside it")
    return Saved(str(folder), single, model, history, repeats)
