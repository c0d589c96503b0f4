"""One model on one dataset: what ``anode train`` does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

from anode.checks import lookup, number, require, usable_device
from anode.data import images, toy
from anode.data.toy import Dataset
from anode.experiments.environment import environment
from anode.experiments.runs import HERE, Place
from anode.files import DamagedFileError, locked, make_folder, read_json, write_json
from anode.models import saving
from anode.models.ensemble import from_seed, seeded, unstack
from anode.models.flow import PAPER
from anode.models.nets import ImageNeuralODE, NeuralODE, ResNet
from anode.ode.solver import SETTINGS, Solver
from anode.train.fit import fit
from anode.train.history import History
from anode.train.losses import LOSSES
from anode.train.ranks import Ranks

FORMAT = "anode train 1"
DATASETS = (*toy.DATASETS, *images.IMAGES)
TOY_ONLY = ("model", "hidden", "layers", "dim", "loss", "repeats")
IMAGE_ONLY = ("filters", "side", "train_size", "head_channels")


@dataclass(frozen=True)
class TrainOptions:
    """What to train: the options of ``anode train``."""

    data: str
    model: str = "node"
    augment: int = 0
    hidden: int = 32
    layers: int | None = None
    filters: int = 64
    head_channels: int | None = None
    activation: str = "relu"
    time: bool = True
    solver: Solver = PAPER
    dim: int | None = None
    side: int | None = None
    train_size: int | None = None
    epochs: int = 50
    batch_size: int | None = None
    lr: float = 1e-3
    weight_decay: float = 0.0
    loss: str | None = None
    validation: float = 0.0
    evaluate_every: int | None = None
    patience: int | None = None
    on_failure: str = "stop"
    repeats: int = 1
    seed: int = 0

    @property
    def is_image(self) -> bool:
        """Whether it is about images."""
        return self.data in images.IMAGES

    @property
    def chosen_loss(self) -> str:
        """The loss that was asked for, or the usual one."""
        return self.loss or ("cross_entropy" if self.is_image else "huber")

    def check(self) -> None:
        """Raise ``ValueError`` about what does not go together."""
        self.check_data()
        number("repeats", self.repeats, whole=True)
        number("seed", self.seed, whole=True, zero=True)
        require(self.seed < 2**40, "seed", self.seed, "a whole number below 2**40")
        for name in ("side", "train_size"):
            number(name, getattr(self, name), whole=True, optional=True)
        number("lr", self.lr)
        number("weight_decay", self.weight_decay, zero=True)
        for name in ("lr", "weight_decay"):
            require(math.isfinite(getattr(self, name)), name, getattr(self, name), "a finite number")
        for name in TOY_ONLY if self.is_image else IMAGE_ONLY:
            self.only_default(name, f"{self.data}, which {'has' if self.is_image else 'has no'} images")
        lookup("loss", self.chosen_loss, LOSSES)
        require(0 <= self.validation < 1, "validation", self.validation, "a fraction from 0 to below 1")
        takes = "nothing without --validation, as what it looks at has chosen the model and can no longer judge it"
        require(self.patience is None or self.validation > 0, "patience", self.patience, takes)
        if not self.is_image and not lookup("model", self.model, {"node": True, "resnet": False}):
            for name in ("augment", "time", "solver"):
                self.only_default(name, "a resnet, which has no flow")

    def check_data(self) -> None:
        """Raise ``ValueError`` about data that is not there."""
        try:
            lookup("data", self.data, dict.fromkeys(DATASETS))
        except ValueError as error:
            tables = "; for a table, such as iris, use anode.ANODEClassifier or anode.ANODERegressor in Python"
            raise ValueError(f"{error}{'' if 'did you mean' in str(error) else tables}") from None

    def only_default(self, name: str, why: str) -> None:
        """Refuse an option that has no meaning here."""
        if getattr(self, name) != TrainOptions.__dataclass_fields__[name].default:
            raise ValueError(f"{name}: has no meaning for {why}; leave it out")

    def dataset(self, seed: int) -> Dataset:
        """The toy data that belongs to a seed."""
        options = {} if self.dim is None else {"dim": self.dim}
        return toy.load(self.data, **options, seed=seed)

    @property
    def kind(self) -> type[NeuralODE | ResNet | ImageNeuralODE]:
        """The class of the model."""
        return ImageNeuralODE if self.is_image else NeuralODE if self.model == "node" else ResNet

    @property
    def name(self) -> str:
        """The data and the model in a word, which a folder can be called."""
        return f"{self.data}-a{self.model}{self.augment}" if self.augment else f"{self.data}-{self.model}"

    def build(self) -> NeuralODE | ResNet | ImageNeuralODE:
        """A new model."""
        settings = self.settings(0 if self.is_image else self.dataset(self.seed).dim)
        return self.kind(**settings) if self.kind is ResNet else self.kind(**settings, solver=self.solver)  # type: ignore[call-arg]

    def fits(self, model: NeuralODE | ResNet | ImageNeuralODE) -> bool:
        """Whether a model is what would be built."""
        inputs = self.dim or (0 if self.is_image else self.dataset(self.seed).dim)
        solver = {} if self.kind is ResNet or self.solver == PAPER else {"solver": self.solver}
        return type(model) is self.kind and model.settings == self.settings(inputs) | solver  # nothing large is built

    def to_json(self) -> dict[str, Any]:
        """The options as JSON has them, those of the solver among the others."""
        options = {name: getattr(self, name) for name in TrainOptions.__dataclass_fields__ if name != "solver"}
        return options | self.solver.to_json(PAPER)

    @classmethod
    def from_json(cls, options: dict[str, Any]) -> TrainOptions:
        """The options that :meth:`to_json` described."""
        solver = {name: value for name, value in options.items() if name in SETTINGS}
        others = {name: value for name, value in options.items() if name not in SETTINGS}
        return cls(**others, solver=Solver.from_json(solver, PAPER))

    def settings(self, inputs: int) -> dict[str, Any]:
        """The arguments of a new model, all that it takes.

        Args:
            inputs: Size of an input, for points.
        """
        field: dict[str, Any] = {"augment": self.augment, "time": self.time, "activation": self.activation, "t1": 1.0}
        if self.is_image:
            source = images.IMAGES[self.data]
            side = self.side or source.shape[1]
            image = [source.shape[0], side, side]
            sizes = {"image": image, "classes": source.classes, "filters": self.filters}
            return {**sizes, "head_channels": self.head_channels, **field}
        outputs = 2 if self.chosen_loss == "cross_entropy" else 1
        sizes = {"in_features": inputs, "out_features": outputs, "hidden": self.hidden}
        if self.model == "node":
            return {**sizes, "layers": 2 if self.layers is None else self.layers, **field}
        return {**sizes, "layers": 5 if self.layers is None else self.layers, "activation": self.activation}


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
    """What ``anode train`` saved."""

    name: str
    single: TrainOptions
    model: Any
    history: History


def load_saved(folder: Path) -> Saved:
    """Read a folder of ``anode train``."""
    single = options_in(folder)
    if (folder / "checkpoint").is_dir() and not (folder / "model.json").exists():
        raise ValueError(f"{folder}: holds a run that was broken off; the command that began it goes on with it")
    model, history = saving.load(folder / "model"), History.load(folder / "history.json")
    model = model if model.members is None else unstack(model)[0]
    try:
        single.check()
        # No model is built to compare with: the options are anybody's, and may ask for one of any size.
        fits = single.fits(model)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise DamagedFileError(f"{folder / 'run.json'}: its options do not belong to the model beside it")
    return Saved(str(folder), single, model, history)
