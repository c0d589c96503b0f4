"""What ``anode train`` is asked to do: its options, each described once, and the model that they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from anode.checks import lookup, number, require
from anode.data import images, toy
from anode.data.toy import Dataset
from anode.models.flow import PAPER
from anode.models.nets import ImageNeuralODE, NeuralODE, ResNet
from anode.ode.solver import SETTINGS, Solver
from anode.train.losses import LOSSES

DATASETS = (*toy.DATASETS, *images.IMAGES)
TOY_ONLY = ("model", "hidden", "layers", "dim", "loss", "repeats")
IMAGE_ONLY = ("filters", "side", "train_size", "head_channels")


def _option(default: Any, what: str, shown: str | bool = True) -> Any:
    """A field with its help, and what the help shows as its default."""
    return field(default=default, metadata={"help": what, "show_default": shown})


@dataclass(frozen=True)
class TrainOptions:
    """What to train: the options of ``anode train``."""

    data: str
    model: str = _option("node", "node or resnet.")
    augment: int = _option(0, "Zeros appended to the input; 0 is the plain neural ODE.")
    hidden: int = _option(32, "Width of the hidden layers, for points.")
    layers: int | None = _option(None, "Hidden layers of the field (2), or layers of a ResNet (5).")
    filters: int = _option(64, "Channels of the hidden layers, for images.")
    head_channels: int | None = _option(None, "Channels of the features the linear layer sees.", "all")
    activation: str = _option("relu", "relu, softplus, tanh, silu or gelu.")
    time: bool = _option(True, "Whether the field depends on time.")
    solver: Solver = PAPER
    dim: int | None = _option(None, "Dimension of the data, for g and separable.", "2")
    side: int | None = _option(None, "Reduce images to this height and width.", "as they are")
    train_size: int | None = _option(None, "Train on so many images.", "all")
    epochs: int = _option(50, "Passes over the data.")
    batch_size: int | None = _option(None, "Points in an iteration.", "64, of images 256, or all if there are fewer")
    lr: float = _option(1e-3, "Adam's learning rate.")
    weight_decay: float = _option(0.0, "Adam's L2 penalty.")
    loss: str | None = _option(None, "huber, mse or cross_entropy.", "huber; cross_entropy, always, for images")
    validation: float = _option(
        0.0, "Fraction kept from training for validation; of images in place of the test images."
    )
    evaluate_every: int | None = _option(None, "Iterations between validations.", "one an epoch")
    check_every: int | None = _option(
        None, "Iterations between checks of whether the flow, solved forward and back, comes back.", "never"
    )
    patience: int | None = _option(
        None, "End after so many validations without a lower loss, with the best model.", "never"
    )
    on_failure: str = _option("stop", "What to do when a solve fails: stop, skip or raise.")
    repeats: int = _option(1, "Models trained together, from different seeds.")
    seed: int = _option(0, "Of the data, the weights and the order of the data.")

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
            for name in ("augment", "time", "solver", "check_every"):
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
        common: dict[str, Any] = {"augment": self.augment, "time": self.time, "activation": self.activation, "t1": 1.0}
        if self.is_image:
            source = images.IMAGES[self.data]
            side = self.side or source.shape[1]
            image = [source.shape[0], side, side]
            sizes = {"image": image, "classes": source.classes, "filters": self.filters}
            return {**sizes, "head_channels": self.head_channels, **common}
        outputs = 2 if self.chosen_loss == "cross_entropy" else 1
        sizes = {"in_features": inputs, "out_features": outputs, "hidden": self.hidden}
        if self.model == "node":
            return {**sizes, "layers": 2 if self.layers is None else self.layers, **common}
        return {**sizes, "layers": 5 if self.layers is None else self.layers, "activation": self.activation}
