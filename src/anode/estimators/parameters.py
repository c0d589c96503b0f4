"""The parameters of an estimator: what they mean, in the help of both; their defaults; which of them training takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from torch import nn

from anode.checks import names_settings, number
from anode.models.augment import Augment
from anode.ode.solver import Solver
from anode.train.callbacks import Callback
from anode.train.optimizers import MakeOptimizer, MakeScheduler
from anode.train.regularisers import Regulariser

K = TypeVar("K", bound=type[Any])
SECTION = re.compile(r"^(Args|Attributes|Example):\n", re.MULTILINE)
MERGED = ("Args", "Attributes")
BATCH = 32
"""What ``batch_size="auto"`` means, if there are as many rows."""
FOR_FIT = ("epochs", "lr", "weight_decay", "optimizer", "scheduler", "clip")
"""The parameters that :func:`anode.fit` takes as they are."""


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters(BaseEstimator):  # type: ignore[misc]
    """The parameters that classifier and regressor share.

    Args:
        augment: Number of zeros appended to a row, or of channels of zeros appended to an image; 0 is the plain neural
            ODE. ``"auto"`` means 5. Or an :class:`anode.Augment`; every fit trains a copy of it.
        hidden: Width of the field's hidden layers; not for images.
        layers: Number of the field's hidden layers; not for images.
        activation: ``"relu"``, ``"softplus"``, ``"tanh"``, ``"silu"`` or ``"gelu"``.
        time: Whether the field depends on time.
        image: Channels, height and width, if rows are images. The field is then convolutional.
        filters: Number of channels of the convolutional field's hidden layers; only for images.
        field: A function or class that returns the right-hand side f(t, h), a ``torch.nn.Module``. It is given the size
            of the state, a number; for images, channels, height and width of the state. It replaces the network that
            ``hidden``, ``layers``, ``activation``, ``time`` and ``filters`` describe: leave these at their defaults.
            h is [rows, size], or [rows, channels, height, width]. t is a scalar in training and has one value per row,
            [rows, 1] or [rows, 1, 1, 1], in prediction; f has to let it broadcast against h.
        solver: How to solve, an :class:`anode.Solver`. Defaults to dopri5 with the paper's tolerances. Its ``control``
            applies to training.
        scale: Whether inputs are scaled.
        epochs: Number of passes over the data.
        batch_size: Number of rows in an iteration, or all rows if there are fewer. ``"auto"`` means 32.
        lr: Learning rate.
        weight_decay: Weight decay as the optimizer takes it: an L2 penalty for Adam.
        optimizer: Name of an optimizer, or a function that makes one, as :func:`anode.fit` takes it. A function sets
            learning rate and weight decay itself: leave ``lr`` and ``weight_decay`` at their defaults.
        scheduler: A function from the optimizer to a learning rate scheduler of torch, as :func:`anode.fit` takes it.
        clip: Largest norm of the gradient; larger gradients are scaled down to it.
        regularisers: Objects of :class:`anode.Regulariser`, such as ``anode.Kinetic(0.01)``, which add to the loss that
            is minimised.
        callbacks: Objects of :class:`anode.Callback` that are called during training. scikit-learn copies them when it
            clones an estimator, as ``GridSearchCV`` does.
        device: Where to train and predict, such as ``"cuda"``. Defaults to torch's default device, usually the CPU.
            Predictions are NumPy arrays in any case. A loaded or unpickled estimator predicts on the default device.
        early_stopping: Whether to stop when the validation loss has not improved for ``patience`` epochs, and to return
            to the model with the lowest. The validation set is that given to ``fit``, or a part of the rows.
        validation_fraction: Fraction of the rows to set aside for ``early_stopping``.
        patience: Number of epochs without improvement after which ``early_stopping`` stops.
        warm_start: Whether ``fit`` continues from the last fit, with the scales found then. The model has to be built
            alike; settings of solver and training may change.
        random_state: Random seed of the weights and of the order of rows.
        verbose: Whether to show a progress bar, if there is a terminal.
    """

    augment: int | str | Augment = "auto"
    hidden: int = 32
    layers: int = 2
    activation: str = "gelu"
    time: bool = True
    image: tuple[int, int, int] | None = None
    filters: int = 32
    field: Callable[[Any], nn.Module] | None = None
    solver: Solver | None = None
    scale: bool = True
    epochs: int = 50
    batch_size: int | str = "auto"
    lr: float = 5e-3
    weight_decay: float = 2e-3
    optimizer: str | MakeOptimizer = "adam"
    scheduler: MakeScheduler | None = None
    clip: float | None = None
    regularisers: Sequence[Regulariser] = ()
    callbacks: Sequence[Callback] = ()
    device: str | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    @property
    def _given(self) -> dict[str, Any]:
        """The parameters, with numbers of numpy as those of Python."""
        parameters = self.get_params(deep=False)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}

    def _is_changed(self, name: str) -> bool:
        """Whether a parameter is not at its default."""
        return bool(self._given[name] != getattr(type(self), name))

    def _for_fit(self, rows: int) -> dict[str, Any]:
        """The parameters that are arguments of :func:`anode.fit`, for so many rows."""
        given = self._given
        options = {name: given[name] for name in FOR_FIT}
        if not isinstance(given["optimizer"], str):  # it sets these itself, and fit refuses them
            options |= {name: None for name in ("lr", "weight_decay") if not self._is_changed(name)}
        batch_size = number("batch_size", BATCH if self.batch_size == "auto" else given["batch_size"], whole=True)
        return {
            **options,
            "batch_size": min(batch_size, rows),
            "patience": given["patience"] if self.early_stopping else None,
            "callbacks": self.callbacks,
            "progress": None if self.verbose else False,
        }


def documented(base: type[Any]) -> Callable[[K], K]:
    """Return a decorator that adds to a class's docstring what that of its base class says.

    Parameters and attributes of the base follow those of the class, and the base's text, without its first paragraph,
    follows that of the class.
    """
    first, inherited = _sections(base)
    shared = first.partition("\n\n")[2]

    def add(kind: K) -> K:
        text, own = _sections(kind)
        merged = {name: (own[name].rstrip() + "\n" + inherited[name].rstrip()).strip("\n") for name in MERGED}
        sections = "\n\n".join(f"{name}:\n{content}" for name, content in (own | merged).items())
        kind.__doc__ = text + shared + sections
        return names_settings(kind)

    return add


def _sections(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """The text of a docstring before its sections, and that of each section; empty where there is none."""
    text, *rest = SECTION.split(inspect.cleandoc(kind.__doc__ or ""))
    return text, dict.fromkeys(MERGED, "") | dict(zip(rest[::2], rest[1::2], strict=True))
