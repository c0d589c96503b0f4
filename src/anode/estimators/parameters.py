"""The parameters of the estimators, and the docstrings that describe them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from anode.checks import names_settings, number
from anode.ode.solver import SETTINGS
from anode.train.callbacks import Callback
from anode.train.optimizers import MakeOptimizer, MakeScheduler

K = TypeVar("K", bound=type[Any])
SECTION = re.compile(r"^(Args|Attributes|Example):\n", re.MULTILINE)
MERGED = ("Args", "Attributes")
BATCH = 32
"""The value of ``batch_size="auto"``."""
FOR_FIT = ("epochs", "lr", "weight_decay", "optimizer", "scheduler", "clip")
"""The parameters that are passed to :func:`anode.fit` unchanged."""


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingParameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of training, which all estimators share.

    Args:
        scale: Whether to scale the inputs.
        epochs: Number of passes over the data.
        batch_size: Number of rows per iteration, or all rows if there are fewer. ``"auto"`` means 32.
        lr: Learning rate.
        weight_decay: Weight decay of the optimizer: an L2 penalty for Adam.
        optimizer: Name of an optimizer, or a function that returns one, see :func:`anode.fit`. With a function, leave
            ``lr`` and ``weight_decay`` at their defaults.
        scheduler: A function that takes the optimizer and returns a torch learning rate scheduler, see
            :func:`anode.fit`.
        clip: Maximum norm of the gradient. Larger gradients are scaled down.
        callbacks: :class:`anode.Callback` objects that are called during training. scikit-learn copies them when it
            clones an estimator, for example in ``GridSearchCV``.
        device: Device for training and prediction, such as ``"cuda"``. Defaults to torch's default device, usually the
            CPU. Predictions are always NumPy arrays. A loaded or unpickled estimator uses the default device.
        early_stopping: Whether to stop if the validation loss has not improved for ``patience`` epochs, and keep the
            model with the lowest validation loss. The validation set is that passed to ``fit``, or a part of the rows.
        validation_fraction: Fraction of the rows to set aside for ``early_stopping``.
        patience: Number of epochs without improvement after which ``early_stopping`` stops.
        warm_start: Whether ``fit`` continues from the last fit, with the same scaling. The architecture must not
            change; settings of solver and training may.
        random_state: Random seed of the weights and of the order of rows.
        verbose: Whether to show a progress bar on a terminal.
    """

    scale: bool = True
    epochs: int = 50
    batch_size: int | str = "auto"
    lr: float = 5e-3
    weight_decay: float = 2e-3
    optimizer: str | MakeOptimizer = "adam"
    scheduler: MakeScheduler | None = None
    clip: float | None = None
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
        """The parameters, with NumPy numbers converted to Python numbers."""
        parameters = self.get_params(deep=False)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}

    def _is_changed(self, name: str) -> bool:
        """Whether a parameter is not at its default."""
        return bool(self._given[name] != getattr(type(self), name))

    def _for_fit(self, rows: int) -> dict[str, Any]:
        """Return the parameters that are arguments of :func:`anode.fit`, for this number of rows."""
        given = self._given
        options = {name: given[name] for name in FOR_FIT}
        if not isinstance(given["optimizer"], str):  # it sets these itself, and fit does not accept them
            options |= {name: None for name in ("lr", "weight_decay") if not self._is_changed(name)}
        patience = number("patience", given["patience"], whole=True)
        batch_size = number("batch_size", BATCH if self.batch_size == "auto" else given["batch_size"], whole=True)
        return {
            **options,
            "batch_size": min(batch_size, rows),
            "patience": patience if self.early_stopping else None,
            "callbacks": self.callbacks,
            "progress": None if self.verbose else False,
        }


def documented(base: type[Any]) -> Callable[[K], K]:
    """Return a decorator that appends the docstring of a base class to that of a class.

    The base's parameters and attributes follow those of the class. The base's text, without its first paragraph,
    follows that of the class.
    """
    first, inherited = _sections(base)
    shared = first.partition("\n\n")[2]

    def add(kind: K) -> K:
        text, own = _sections(kind)
        merged = {name: (own[name].rstrip() + "\n" + inherited[name].rstrip()).strip("\n") for name in MERGED}
        sections = "\n\n".join(f"{name}:\n{content}" for name, content in (own | merged).items())
        kind.__doc__ = text + shared + sections
        return names_settings(kind, {name: f"pass solver=anode.Solver({name}=...)" for name in SETTINGS})

    return add


def _sections(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its sections, and the text of each section; empty if missing."""
    text, *rest = SECTION.split(inspect.cleandoc(kind.__doc__ or ""))
    return text, dict.fromkeys(MERGED, "") | dict(zip(rest[::2], rest[1::2], strict=True))
