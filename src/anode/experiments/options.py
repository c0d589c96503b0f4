"""The options of ``anode train``, each described once, and the model that they describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from anode.checks import as_seed, lookup, number, require
from anode.data import images, toy
from anode.data.table_files import BUILT_IN
from anode.data.targets import TASKS
from anode.data.toy import Dataset
from anode.estimators.building import AUGMENT
from anode.experiments.kinds import FILES, IMAGES, PICTURES, POINTS, TABLE, check_source, kind_of
from anode.models.alike import configuration
from anode.models.family import FAMILY, NEED_EXTRA, build
from anode.models.flow import PAPER
from anode.models.nets import ImageNeuralODE, NeuralODE, ResNet
from anode.models.randomness import apart
from anode.ode.solver import SETTINGS, Solver
from anode.train.losses import LOSSES
from anode.train.regularisers import Jacobian, Kinetic, LocalErrors, Regularised, Steer

ONLY_FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("model", "hidden", "layers", "loss"), (POINTS, TABLE)),
    **dict.fromkeys(("dim", "repeats"), (POINTS,)),
    **dict.fromkeys(("filters", "side", "train_size", "head_channels"), (IMAGES, PICTURES)),
    **dict.fromkeys(("target", "task", "drop", "category", "numeric", "encoding"), (TABLE,)),
    "test": FILES,
}
"""Options that apply to some kinds of data only."""
KINDS_OF_DATA = {POINTS: "points", IMAGES: "images", TABLE: "a table", PICTURES: "a folder of pictures"}
USUAL: dict[str, dict[str, Any]] = {
    "augment": dict.fromkeys(KINDS_OF_DATA, AUGMENT),
    "activation": dict.fromkeys(KINDS_OF_DATA, "relu") | {TABLE: "gelu"},
    "filters": dict.fromkeys(KINDS_OF_DATA, 64) | {PICTURES: 32},
    "lr": dict.fromkeys(KINDS_OF_DATA, 1e-3) | {TABLE: 5e-3},
    "weight_decay": dict.fromkeys(KINDS_OF_DATA, 0.0) | {TABLE: 2e-3},
    "validation": dict.fromkeys(KINDS_OF_DATA, 0.0) | dict.fromkeys(FILES, 0.1),
    "test": dict.fromkeys(KINDS_OF_DATA, 0.0) | dict.fromkeys(FILES, 0.2),
}
"""Defaults that depend on the kind of data. Those for tables are the defaults of the estimators."""
PAPERS = "zeros"
"""The augmentation of the paper, one of ``anode.family``."""
REGULARISERS = {"kinetic": Kinetic, "jacobian": Jacobian, "steer": Steer, "local_errors": LocalErrors}
"""The options that are regularisers; 0 means none."""
PATIENCE = 10
"""Default of ``patience`` for tables and pictures with a validation set."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that a model is built from.

    Attributes:
        inputs: Number of features of a point, or channels, height and width of an image.
        outputs: Number of values of a prediction.
    """

    inputs: int | tuple[int, ...]
    outputs: int


def option(default: Any, what: str, shown: str | bool = True) -> Any:
    """Return a field with its help text and the default that the help shows."""
    return field(default=default, metadata={"help": what, "show_default": shown})


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``anode train``."""

    data: str
    target: str | None = option(None, "Tables: the column to predict.", "target, for the built-in tables")
    task: str | None = option(None, "Tables: classification or regression.", "depends on the values of the target")
    drop: list[str] | None = option(  # noqa: RUF009, which takes it for a list
        None, "Tables: a column to leave out. Repeat the option for several columns.", "none"
    )
    category: list[str] | None = option(  # noqa: RUF009
        None, "Tables: a column of categories, even if it holds numbers. May be repeated.", "none"
    )
    numeric: list[str] | None = option(  # noqa: RUF009
        None, "Tables: a column of numbers, even if it looks like an identifier. May be repeated.", "none"
    )
    encoding: str | None = option(None, "Tables: encoding of a CSV file, such as latin-1.", "utf-8")
    test: float | None = option(None, "Your own data: fraction held out to measure the score on.", "0.2")
    model: str = option("node", "Points and tables: node or resnet.")
    augment: int | None = option(
        None, "Number of zeros appended to the input. 0 is the plain neural ODE.", f"{AUGMENT}, an augmented neural ODE"
    )
    family: str = option(PAPERS, f"Kind of augmentation or flow: {', '.join(FAMILY)}.")
    hidden: int = option(32, "Points and tables: width of the hidden layers.")
    layers: int | None = option(None, "Number of hidden layers of the field, or of layers of a ResNet.", "2, or 5")
    filters: int | None = option(None, "Images: channels of the hidden layers.", "64, or 32 for your own pictures")
    head_channels: int | None = option(None, "Images: channels of the features that the linear layer reads.", "all")
    activation: str | None = option(None, "relu, softplus, tanh, silu or gelu.", "relu, or gelu for tables")
    time: bool = option(True, "Whether the field depends on time.")
    solver: Solver = PAPER
    dim: int | None = option(None, "g and separable: dimension of the points.", "2")
    side: int | None = option(
        None,
        "Images: resize to this height and width.",
        "no resizing; your own pictures become 32x32 unless they have one size of at most 64",
    )
    train_size: int | None = option(None, "Images: number of images to train on.", "all")
    epochs: int = option(50, "Passes over the training data.")
    batch_size: int | None = option(None, "Batch size.", "64; 256 for image sets; 32 for your own data")
    lr: float | None = option(None, "Adam's learning rate.", "0.001, or 0.005 for tables")
    weight_decay: float | None = option(None, "Adam's L2 penalty.", "0, or 0.002 for tables")
    loss: str | None = option(
        None, "huber, mse or cross_entropy.", "huber for points; cross_entropy for classes; mse for numbers"
    )
    validation: float | None = option(
        None,
        "Fraction of the data to use as a validation set instead of training on it. Image sets without one are "
        "validated on their test images.",
        "0, or 0.1 for your own data",
    )
    evaluate_every: int | None = option(None, "Iterations between validations.", "one epoch")
    check_every: int | None = option(
        None, "Iterations between checks of the solver: forward and back must return to the input.", "never"
    )
    patience: int | None = option(
        None,
        "Stop after this many validations without a lower loss, and return to the best model.",
        f"never, or {PATIENCE} for your own data",
    )
    kinetic: float = option(0.0, "Weight of the kinetic energy in the loss.")
    jacobian: float = option(0.0, "Weight of the norm of the field's Jacobian in the loss.")
    steer: float = option(0.0, "Train with end times that are random within this distance.")
    local_errors: float = option(0.0, "Weight of the solver's error estimates in the loss.")
    on_failure: str = option("stop", "What to do when a solve fails: stop, skip or raise.")
    repeats: int = option(1, "Points: number of models to train together, each from its own seed.")
    seed: int = option(0, "Random seed of the data, the weights and the batches.")

    def __post_init__(self) -> None:
        for name in (*USUAL, "patience", "target", "drop", "category", "numeric"):
            if getattr(self, name) in (None, []):
                object.__setattr__(self, name, self.usual(name))

    def usual(self, name: str) -> Any:
        """Return the default of an option, which may depend on the data and on other options."""
        if name == "patience":
            return PATIENCE if self.kind in FILES and self.validation else None
        if name == "target":
            return "target" if self.kind == TABLE and self.data in BUILT_IN else None
        if name == "augment" and (self.model == "resnet" or self.family not in (PAPERS, *NEED_EXTRA)):
            return 0
        return USUAL[name][self.kind] if name in USUAL else TrainOptions.__dataclass_fields__[name].default

    @property
    def kind(self) -> str:
        """The kind of data; see :mod:`anode.experiments.kinds`."""
        return kind_of(self.data)

    @property
    def is_image(self) -> bool:
        """Whether the data are images."""
        return self.kind in (IMAGES, PICTURES)

    def loss_of(self, classes: bool) -> str:
        """Return the chosen loss, or the default for classes or for other targets."""
        return self.loss or ("huber" if self.kind == POINTS else "cross_entropy" if classes else "mse")

    def check(self) -> None:
        """Raise ``ValueError`` if the data do not exist or options contradict each other."""
        check_source(self.data)
        self.check_options()

    def check_options(self) -> None:
        """Raise ``ValueError`` if options contradict each other."""
        number("repeats", self.repeats, whole=True)
        as_seed(self.seed, bits=40)
        for name in ("side", "train_size"):
            number(name, getattr(self, name), whole=True, optional=True)
        number("lr", self.lr, finite=True)
        number("weight_decay", self.weight_decay, zero=True, finite=True)
        for name, kinds in ONLY_FOR.items():
            if self.kind not in kinds:
                self.only_default(name, f"{KINDS_OF_DATA[self.kind]} ({self.data})")
        if self.loss is not None:
            lookup("loss", self.loss, LOSSES)
        if self.task is not None:
            lookup("task", self.task, dict.fromkeys(TASKS))
        self.check_parts()
        lookup("family", self.family, FAMILY)
        for name in REGULARISERS:
            number(name, getattr(self, name), zero=True, finite=True)
        if not self.is_image and not lookup("model", self.model, {"node": True, "resnet": False}):
            for name in ("augment", "family", "time", "solver", "check_every", *REGULARISERS):
                self.only_default(name, "a resnet, which has no flow")
        twice = [name for name in self.category or () if name in (self.numeric or ())]
        require(not twice, "numeric", twice, "columns that --category does not name")

    def check_parts(self) -> None:
        """Check the fractions that are held out."""
        assert self.validation is not None
        assert self.test is not None
        require(0 <= self.validation < 1, "validation", self.validation, "a fraction from 0 to below 1")
        require(0 <= self.test < 1, "test", self.test, "a fraction between 0 and 1")
        if self.kind in FILES:
            require(self.test > 0, "test", self.test, "a fraction between 0 and 1")
            shares = {"test": self.test, "validation": self.validation}
            (other, less), (name, more) = sorted(shares.items(), key=itemgetter(1))
            takes = f"a fraction that leaves more to train on: at most 0.7 together with --{other} {less:g}"
            require(less + more <= 0.7, name, more, takes)
        takes = "no value without --validation: data that choose the model cannot measure its score"
        require(self.patience is None or self.validation > 0, "patience", self.patience, takes)

    def only_default(self, name: str, why: str) -> None:
        """Raise ``ValueError`` if an option that does not apply is not at its default."""
        if getattr(self, name) != self.usual(name):
            raise ValueError(f"{name}: does not apply to {why}; leave it out")

    def dataset(self, seed: int) -> Dataset:
        """Return the points that a seed makes."""
        options = {} if self.dim is None else {"dim": self.dim}
        return toy.load(self.data, **options, seed=seed)

    @property
    def model_kind(self) -> type[NeuralODE | ResNet | ImageNeuralODE]:
        """The class of the model."""
        return ImageNeuralODE if self.is_image else NeuralODE if self.model == "node" else ResNet

    @property
    def model_name(self) -> str:
        """The paper's name of the model, or that of the family."""
        if self.family != PAPERS:
            return f"{self.family} flow"
        return "ResNet" if self.model == "resnet" else "ANODE" if self.augment else "NODE"

    @property
    def name(self) -> str:
        """Name of data and model, used as the default name of the folder."""
        path = Path(self.data)
        data = {TABLE: path.stem, PICTURES: path.resolve().name}.get(self.kind, self.data)
        if self.family != PAPERS:
            return f"{data}-{self.family}{self.augment or ''}"
        return f"{data}-a{self.model}{self.augment}" if self.augment else f"{data}-{self.model}"

    def sizes(self) -> Sizes:
        """Return the sizes of built-in data, without reading them."""
        if self.is_image:
            source = images.IMAGES[self.data]
            side = self.side or source.shape[1]
            return Sizes((source.shape[0], side, side), source.classes)
        inputs = self.dim or self.dataset(self.seed).dim
        return Sizes(inputs, 2 if self.loss_of(classes=True) == "cross_entropy" else 1)

    def build(self, sizes: Sizes | None = None) -> NeuralODE | ResNet | ImageNeuralODE:
        """Return a new model. Sizes must be given for tables and pictures."""
        sizes = sizes or self.sizes()
        if self.family != PAPERS:
            return build(self.family, sizes.inputs, sizes.outputs, solver=self.solver, **self.network())
        settings = self.settings(sizes)
        kind: Any = self.model_kind
        return kind(**settings) if kind is ResNet else kind(**settings, solver=self.solver)

    def fits(self, model: NeuralODE | ResNet | ImageNeuralODE, sizes: Sizes | None = None) -> bool:
        """Whether a model is like the one that :meth:`build` returns."""
        if self.family != PAPERS:
            if (self.layers or 0) > len(list(model.parameters())):
                return False
            with torch.device("meta"), apart():  # which takes no memory, however large it is
                return bool(configuration(model) == configuration(self.build(sizes)))
        solver = {} if self.model_kind is ResNet or self.solver == PAPER else {"solver": self.solver}
        wanted = self.settings(sizes or self.sizes()) | solver
        return type(model) is self.model_kind and model.settings == wanted  # nothing large is built

    def network(self) -> dict[str, Any]:
        """The arguments of a model of the family besides its sizes."""
        common = {"augment": self.augment, "time": self.time, "activation": self.activation}
        if self.is_image:
            return {**common, "filters": self.filters, "head_channels": self.head_channels}
        return {**common, "hidden": self.hidden, "layers": 2 if self.layers is None else self.layers}

    def regularised(self, loss: str) -> str | Regularised:
        """The loss with the regularisers that were asked for."""
        terms = [kind(getattr(self, name)) for name, kind in REGULARISERS.items() if getattr(self, name)]
        return Regularised(*terms, loss=loss) if terms else loss

    def to_json(self) -> dict[str, Any]:
        """Return the options as a JSON object, including those of the solver."""
        options = {name: getattr(self, name) for name in TrainOptions.__dataclass_fields__ if name != "solver"}
        return options | self.solver.to_json(PAPER)

    @classmethod
    def from_json(cls, options: dict[str, Any]) -> TrainOptions:
        """Return the options that :meth:`to_json` described."""
        solver = {name: value for name, value in options.items() if name in SETTINGS}
        others = {name: value for name, value in options.items() if name not in SETTINGS}
        return cls(**others, solver=Solver.from_json(solver, PAPER))

    def settings(self, sizes: Sizes) -> dict[str, Any]:
        """Return all arguments of a new model."""
        common: dict[str, Any] = {"augment": self.augment, "time": self.time, "activation": self.activation, "t1": 1.0}
        if self.is_image:
            assert isinstance(sizes.inputs, tuple)
            own = {"image": list(sizes.inputs), "classes": sizes.outputs, "filters": self.filters}
            return {**own, "head_channels": self.head_channels, **common}
        own = {"in_features": sizes.inputs, "out_features": sizes.outputs, "hidden": self.hidden}
        if self.model == "node":
            return {**own, "layers": 2 if self.layers is None else self.layers, **common}
        return {**own, "layers": 5 if self.layers is None else self.layers, "activation": self.activation}
