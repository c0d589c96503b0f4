"""What ``anode train`` is asked to do: its options, each described once, and the model that they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anode.checks import lookup, number, require
from anode.data import images, toy
from anode.data.table_files import BUILT_IN
from anode.data.targets import TASKS
from anode.data.toy import Dataset
from anode.estimators.building import AUGMENT
from anode.experiments.kinds import FILES, IMAGES, PICTURES, POINTS, TABLE, check_source, kind_of
from anode.models.description import configuration
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
    **dict.fromkeys(("target", "task", "drop", "category", "encoding"), (TABLE,)),
    "test": FILES,
}
"""The options that have a meaning for some kinds of data only."""
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
"""What an option is by default, for each kind of data. Those of tables are the defaults of the estimators."""
PAPERS = "zeros"
"""The augmentation of the paper, among ``anode.family``."""
REGULARISERS = {"kinetic": Kinetic, "jacobian": Jacobian, "steer": Steer, "local_errors": LocalErrors}
"""The options that are regularisers; 0 leaves one out."""
PATIENCE = 10
"""The default of ``patience`` for files, if there is a validation set."""


@dataclass(frozen=True)
class Sizes:
    """What a model has to know about data.

    Attributes:
        inputs: Size of a point, or channels, height and width of an image.
        outputs: Size of a prediction.
    """

    inputs: int | tuple[int, ...]
    outputs: int


def _option(default: Any, what: str, shown: str | bool = True) -> Any:
    """A field with its help, and what the help shows as its default."""
    return field(default=default, metadata={"help": what, "show_default": shown})


@dataclass(frozen=True)
class TrainOptions:
    """What to train: the options of ``anode train``."""

    data: str
    target: str | None = _option(None, "Column to predict, for a table.", "target, for the built-in tables")
    task: str | None = _option(None, "classification or regression, for a table.", "by what the target holds")
    drop: list[str] | None = _option(  # noqa: RUF009, which takes it for a list
        None, "Column to leave out, for a table; may be given several times.", "none"
    )
    category: list[str] | None = _option(  # noqa: RUF009
        None, "Column of numbers that are categories, for a table; may be given several times.", "none"
    )
    encoding: str | None = _option(None, "Encoding of a CSV file, such as latin-1.", "utf-8")
    test: float | None = _option(None, "Fraction held out to judge the model by, for your own data.", "0.2")
    model: str = _option("node", "node or resnet.")
    augment: int | None = _option(
        None, "Zeros appended to the input; 0 is the plain neural ODE.", f"{AUGMENT}, an augmented neural ODE"
    )
    family: str = _option(PAPERS, f"Kind of augmentation or flow: {', '.join(FAMILY)}.")
    hidden: int = _option(32, "Width of the hidden layers, for points and tables.")
    layers: int | None = _option(None, "Hidden layers of the field (2), or layers of a ResNet (5).")
    filters: int | None = _option(
        None, "Channels of the hidden layers, for images.", "64, and 32 for your own pictures"
    )
    head_channels: int | None = _option(None, "Channels of the features the linear layer sees.", "all")
    activation: str | None = _option(None, "relu, softplus, tanh, silu or gelu.", "relu, and gelu for tables")
    time: bool = _option(True, "Whether the field depends on time.")
    solver: Solver = PAPER
    dim: int | None = _option(None, "Dimension of the data, for g and separable.", "2")
    side: int | None = _option(
        None, "Resize images to this height and width.", "as they are; your own if they are one size up to 64, else 32"
    )
    train_size: int | None = _option(None, "Train on so many images.", "all")
    epochs: int = _option(50, "Passes over the data.")
    batch_size: int | None = _option(
        None, "Points in an iteration.", "64, of images 256, of your own data 32, or all if there are fewer"
    )
    lr: float | None = _option(None, "Adam's learning rate.", "0.001, and 0.005 for tables")
    weight_decay: float | None = _option(None, "Adam's L2 penalty.", "0, and 0.002 for tables")
    loss: str | None = _option(
        None, "huber, mse or cross_entropy.", "cross_entropy for classes, huber for points, mse for other targets"
    )
    validation: float | None = _option(
        None,
        "Fraction kept from training for validation; of images in place of the test images.",
        "0, and 0.1 for your own data",
    )
    evaluate_every: int | None = _option(None, "Iterations between validations.", "one an epoch")
    check_every: int | None = _option(
        None, "Iterations between checks of whether the flow, solved forward and back, comes back.", "never"
    )
    patience: int | None = _option(
        None,
        "End after so many validations without a lower loss, with the best model.",
        f"never, and {PATIENCE} for your own data",
    )
    kinetic: float = _option(0.0, "Weight of the kinetic energy in the loss.")
    jacobian: float = _option(0.0, "Weight of the norm of the field's Jacobian in the loss.")
    steer: float = _option(0.0, "Train with end times that are random within this distance.")
    local_errors: float = _option(0.0, "Weight of the solver's error estimates in the loss.")
    on_failure: str = _option("stop", "What to do when a solve fails: stop, skip or raise.")
    repeats: int = _option(1, "Models trained together, from different seeds.")
    seed: int = _option(0, "Of the data, the weights and the order of the data.")

    def __post_init__(self) -> None:
        for name in (*USUAL, "patience", "target", "drop", "category"):
            if getattr(self, name) in (None, []):
                object.__setattr__(self, name, self.usual(name))

    def usual(self, name: str) -> Any:
        """The default of an option, which may depend on the data and on other options."""
        if name == "patience":
            return PATIENCE if self.kind in FILES and self.validation else None
        if name == "target":
            return "target" if self.kind == TABLE and self.data in BUILT_IN else None
        if name == "augment" and (self.model == "resnet" or self.family not in (PAPERS, *NEED_EXTRA)):
            return 0
        return USUAL[name][self.kind] if name in USUAL else TrainOptions.__dataclass_fields__[name].default

    @property
    def kind(self) -> str:
        """The kind of data, see :mod:`anode.experiments.kinds`."""
        return kind_of(self.data)

    @property
    def is_image(self) -> bool:
        """Whether it is about images."""
        return self.kind in (IMAGES, PICTURES)

    def loss_of(self, classes: bool) -> str:
        """The loss that was asked for, or the usual one for classes or for other targets."""
        return self.loss or ("huber" if self.kind == POINTS else "cross_entropy" if classes else "mse")

    def check(self) -> None:
        """Raise ``ValueError`` about data that is not there, and about what does not go together."""
        check_source(self.data)
        self.check_options()

    def check_options(self) -> None:
        """Raise ``ValueError`` about what does not go together."""
        number("repeats", self.repeats, whole=True)
        number("seed", self.seed, whole=True, zero=True)
        require(self.seed < 2**40, "seed", self.seed, "a whole number below 2**40")
        for name in ("side", "train_size"):
            number(name, getattr(self, name), whole=True, optional=True)
        number("lr", self.lr)
        number("weight_decay", self.weight_decay, zero=True)
        for name in ("lr", "weight_decay"):
            require(math.isfinite(getattr(self, name)), name, getattr(self, name), "a finite number")
        for name, kinds in ONLY_FOR.items():
            if self.kind not in kinds:
                self.only_default(name, f"{self.data}, which is {KINDS_OF_DATA[self.kind]}")
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

    def check_parts(self) -> None:
        """Check into which parts the data are cut."""
        assert self.validation is not None
        assert self.test is not None
        require(0 <= self.validation < 1, "validation", self.validation, "a fraction from 0 to below 1")
        require(0 <= self.test < 1, "test", self.test, "a fraction between 0 and 1")
        if self.kind in FILES:
            require(self.test > 0, "test", self.test, "a fraction between 0 and 1")
            together = self.test + self.validation
            require(
                together <= 0.7, "test", f"{together:g} with the validation", "a fraction that leaves more to train on"
            )
        takes = "nothing without --validation, as what it looks at has chosen the model and can no longer judge it"
        require(self.patience is None or self.validation > 0, "patience", self.patience, takes)

    def only_default(self, name: str, why: str) -> None:
        """Refuse an option that has no meaning here."""
        if getattr(self, name) != self.usual(name):
            raise ValueError(f"{name}: has no meaning for {why}; leave it out")

    def dataset(self, seed: int) -> Dataset:
        """The toy data that belongs to a seed."""
        options = {} if self.dim is None else {"dim": self.dim}
        return toy.load(self.data, **options, seed=seed)

    @property
    def model_kind(self) -> type[NeuralODE | ResNet | ImageNeuralODE]:
        """The class of the model."""
        return ImageNeuralODE if self.is_image else NeuralODE if self.model == "node" else ResNet

    @property
    def name(self) -> str:
        """The data and the model in a word, which a folder can be called."""
        path = Path(self.data)
        data = {TABLE: path.stem, PICTURES: path.resolve().name}.get(self.kind, self.data)
        if self.family != PAPERS:
            return f"{data}-{self.family}{self.augment or ''}"
        return f"{data}-a{self.model}{self.augment}" if self.augment else f"{data}-{self.model}"

    def sizes(self) -> Sizes:
        """What a model has to know about data that need not be read; not for files."""
        if self.is_image:
            source = images.IMAGES[self.data]
            side = self.side or source.shape[1]
            return Sizes((source.shape[0], side, side), source.classes)
        inputs = self.dim or self.dataset(self.seed).dim
        return Sizes(inputs, 2 if self.loss_of(classes=True) == "cross_entropy" else 1)

    def build(self, sizes: Sizes | None = None) -> NeuralODE | ResNet | ImageNeuralODE:
        """A new model, for data of given sizes; those of files have to be given."""
        sizes = sizes or self.sizes()
        if self.family != PAPERS:
            return build(self.family, sizes.inputs, sizes.outputs, solver=self.solver, **self.network())
        settings = self.settings(sizes)
        kind: Any = self.model_kind
        return kind(**settings) if kind is ResNet else kind(**settings, solver=self.solver)

    def fits(self, model: NeuralODE | ResNet | ImageNeuralODE, sizes: Sizes | None = None) -> bool:
        """Whether a model is what would be built."""
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
        """The options as JSON has them, those of the solver among the others."""
        options = {name: getattr(self, name) for name in TrainOptions.__dataclass_fields__ if name != "solver"}
        return options | self.solver.to_json(PAPER)

    @classmethod
    def from_json(cls, options: dict[str, Any]) -> TrainOptions:
        """The options that :meth:`to_json` described."""
        solver = {name: value for name, value in options.items() if name in SETTINGS}
        others = {name: value for name, value in options.items() if name not in SETTINGS}
        return cls(**others, solver=Solver.from_json(solver, PAPER))

    def settings(self, sizes: Sizes) -> dict[str, Any]:
        """The arguments of a new model, all that it takes."""
        common: dict[str, Any] = {"augment": self.augment, "time": self.time, "activation": self.activation, "t1": 1.0}
        if self.is_image:
            assert isinstance(sizes.inputs, tuple)
            own = {"image": list(sizes.inputs), "classes": sizes.outputs, "filters": self.filters}
            return {**own, "head_channels": self.head_channels, **common}
        own = {"in_features": sizes.inputs, "out_features": sizes.outputs, "hidden": self.hidden}
        if self.model == "node":
            return {**own, "layers": 2 if self.layers is None else self.layers, **common}
        return {**own, "layers": 5 if self.layers is None else self.layers, "activation": self.activation}
