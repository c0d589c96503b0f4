"""What classifier and regressor have in common: scaling, training, and looking at rows one by one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from anode.checks import number, require
from anode.estimators import saving
from anode.models.ensemble import from_seed
from anode.models.model import Outcome
from anode.models.nets import ImageNeuralODE, NeuralODE
from anode.ode.solver import Solver
from anode.train.fit import fit

Array = NDArray[Any]
AUGMENT = 5
"""What ``augment="auto"`` stands for: the number that the paper settles on."""
BATCH = 32
"""What ``batch_size="auto"`` stands for, if there are as many rows."""
ROWS_AT_ONCE = 4096
"""Rows that are looked at together: enough to keep a processor busy, few enough for its memory."""
VALUES_AT_ONCE = 2**23
"""The same for images: values of a hidden layer, of which there are several at a time."""


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralODEEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The part of an estimator that does not know what is predicted.

    Inputs are scaled to mean 0 and variance 1 of every column, images to values from 0 to 1. Computations are in the
    precision of the input; 8-bit and 16-bit numbers, such as the bytes of images, are computed in ``float32``, which
    holds them exactly. In training a batch has one step size; in use every row has its own, so that what is
    predicted of a row does not depend on other rows.

    Args:
        augment: How many zeros are appended to a row, or channels of zeros to an image; 0 is the plain neural ODE.
            ``"auto"`` stands for 5.
        hidden: Width of the field's hidden layers.
        layers: Number of the field's hidden layers.
        activation: ``"relu"``, ``"softplus"``, ``"tanh"``, ``"silu"`` or ``"gelu"``.
        time: Whether the field depends on time.
        image: Channels, height and width, if rows are images; the field is then a convolutional one.
        filters: Channels of its hidden layers.
        solver: How to solve, an :class:`anode.Solver`. By default, dopri5 with the paper's tolerances. Its ``control``
            is that of training.
        scale: Whether inputs are scaled.
        epochs: Passes over the data.
        batch_size: Rows in an iteration, or all if there are fewer. ``"auto"`` stands for 32.
        lr: Adam's learning rate.
        weight_decay: Adam's L2 penalty.
        early_stopping: Whether to keep a part of the rows apart, to end when the loss on them has not become lower for
            ``patience`` epochs, and to go back to where it was lowest.
        validation_fraction: Which part of the rows.
        patience: How many epochs.
        warm_start: Whether ``fit`` goes on from where the last one ended, with the scales found then. The shape of the
            model has to stay the same; settings of solver and training may change.
        random_state: Of the weights and the order of rows.
        verbose: Whether to show a progress bar, if there is a terminal.

    Attributes:
        model_: The :class:`anode.NeuralODE` or :class:`anode.ImageNeuralODE`; it takes scaled inputs.
        history_: What happened in training, an :class:`anode.History`.
        n_iter_: How many epochs there were.
        n_function_evaluations_: How often the field was evaluated for a batch, the mean over the last epoch.
        offset_, scale_: What is subtracted from the inputs, and what they are then divided by.
    """

    augment: int | str = "auto"
    hidden: int = 32
    layers: int = 2
    activation: str = "gelu"
    time: bool = True
    image: tuple[int, int, int] | None = None
    filters: int = 32
    solver: Solver | None = None
    scale: bool = True
    epochs: int = 50
    batch_size: int | str = "auto"
    lr: float = 5e-3
    weight_decay: float = 2e-3
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    def transform(self, X: ArrayLike) -> Array:
        """The features that the flow maps rows to, which a linear map predicts from.

        Args:
            X: Rows, [rows, features].

        Returns:
            [rows, features + augment]; of images, all channels one after the other.
        """
        return np.concatenate([outcome.features.flatten(1).numpy() for outcome in self._outcomes(X)])

    def save(self, path: str | Path) -> Path:
        """Write a fitted estimator to ``<path>.json`` and ``<path>.safetensors``; returns the first."""
        check_is_fitted(self)
        return saving.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an estimator that :meth:`save` wrote. Nothing is executed by that, as it would be by unpickling."""
        estimator: Self = saving.load(cls, path)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and skops: arrays and plain values instead of torch's objects."""
        return saving.without_torch(super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(saving.with_torch(state))

    @property
    def _n_features_out(self) -> int:
        """How many features there are, for ``get_feature_names_out``."""
        added = int(self.model_.settings["augment"])
        return int(self.n_features_in_) + added * (1 if self.image is None else math.prod(self.image[1:]))

    @property
    def _goes_on(self) -> bool:
        """Whether training goes on from where it was."""
        return self.warm_start and hasattr(self, "model_")

    @property
    def _given(self) -> dict[str, Any]:
        """The parameters, with numbers of numpy as those of Python."""
        parameters = self.get_params(deep=False)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the estimator as it was if fitting it is an error."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _checked_weights(self, sample_weight: ArrayLike | None, X: Array) -> Array | None:
        return None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)

    def _train(self, X: Array, y: Array, weights: Array | None, outputs: int, loss: str) -> Self:
        """Train on checked rows and targets.

        Args:
            X: Rows.
            y: Class numbers, or numbers, [rows, outputs].
            weights: How much each row counts; ``None`` if all do alike.
            outputs: How many numbers are predicted.
            loss: The name of the loss.
        """
        given = self._given
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        model = from_seed(lambda: self._build(X.shape[1], outputs), seed)
        if self._goes_on:
            self._take_settings(model)
        else:
            self.offset_, self.scale_ = self._find_scale(X, weights)
            self.model_ = model.to(torch.float32 if X.dtype == np.float32 else torch.float64)
        rows = self._scaled(X)
        takes = "values of which mean and variance are finite numbers; scale them first"
        require(bool(rows.isfinite().all()), "X", f"values up to {np.abs(X).max():g}", takes)
        data = [rows, torch.tensor(y), *([] if weights is None else [torch.tensor(weights)])]
        held_out = None
        if self.early_stopping:
            data, held_out = self._split(data, seed)
        batch_size = BATCH if self.batch_size == "auto" else given["batch_size"]
        batch_size = number("batch_size", batch_size, whole=True)
        self.history_ = fit(
            self.model_,
            tuple(data),
            epochs=given["epochs"],
            batch_size=min(batch_size, len(data[0])),
            lr=given["lr"],
            weight_decay=given["weight_decay"],
            loss=loss,
            validation=held_out,
            patience=given["patience"] if self.early_stopping else None,
            seed=seed,
            progress=None if self.verbose else False,
        )
        self.n_iter_ = self.history_.epochs
        self.n_function_evaluations_ = float(self.history_.per_epoch("nfe")[-1]) if self.n_iter_ else 0.0
        if self.history_.stopped == "interrupted":
            warnings.warn("training was interrupted; the model is as it was then", UserWarning, stacklevel=3)
        for failure in self.history_.failures:
            what = f"training ended in iteration {failure.iteration}: {failure.reason}"
            warnings.warn(f"{what}; try a lower lr, or a higher weight_decay", ConvergenceWarning, stacklevel=3)
        return self

    def _build(self, features: int, outputs: int) -> NeuralODE | ImageNeuralODE:
        """A new model."""
        given = self._given
        require(isinstance(given["time"], bool), "time", self.time, "True or False")
        options = {name: given[name] for name in ("time", "activation", "solver")}
        augment = AUGMENT if self.augment == "auto" else given["augment"]
        options["augment"] = number("augment", augment, whole=True, zero=True)
        if self.image is None:
            return NeuralODE(features, outputs, given["hidden"], layers=given["layers"], **options)
        model = ImageNeuralODE(self.image, outputs, given["filters"], **options)
        takes = f"channels, height and width of images of {features} values"
        require(math.prod(self.image) == features, "image", self.image, takes)
        return model

    def _take_settings(self, model: NeuralODE | ImageNeuralODE) -> None:
        """Let the model go on with the solver's settings of another one, which has to be of the same shape."""
        for name, value in model.settings.items():
            before = self.model_.settings.get(name)
            takes = f"{before!r} as in the first fit, as warm_start is set"
            require(value == before or name == "solver", name, value, takes)
        self.model_ = deepcopy(self.model_)  # should this fit fail, the one before it still counts
        self.model_.flow.solver = model.flow.solver

    def _split(self, data: list[torch.Tensor], seed: int) -> tuple[list[torch.Tensor], Any]:
        """Rows to train on, and others to see whether that helps; of every class some, if there are enough."""
        fraction = self._given["validation_fraction"]
        is_fraction = isinstance(fraction, float) and 0 < fraction < 1
        require(is_fraction, "validation_fraction", fraction, "a number between 0 and 1")
        counting = np.arange(len(data[0])) if len(data) == 2 else data[2].numpy().nonzero()[0]
        fits = 1 <= round(fraction * len(counting)) < len(counting)
        takes = f"a part that leaves rows on both sides of the {len(counting)} that count"
        require(fits, "validation_fraction", fraction, takes)
        classes = None if data[1].is_floating_point() else data[1].numpy()[counting]
        if classes is not None and np.unique(classes, return_counts=True)[1].min() * min(fraction, 1 - fraction) < 1:
            classes = None
        _, held_out = train_test_split(counting, test_size=fraction, random_state=seed, stratify=classes)
        kept = np.setdiff1d(np.arange(len(data[0])), held_out)
        return [part[kept] for part in data], tuple(part[held_out] for part in data)

    def _find_scale(self, X: Array, weights: Array | None) -> tuple[Array, Array]:
        """What to subtract from rows, and what to divide them by."""
        if not self.scale:
            return np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.image is None:
            with np.errstate(over="ignore", invalid="ignore"):  # which is looked at afterwards
                found = StandardScaler().fit(X, sample_weight=weights)
            return found.mean_, found.scale_
        low, high = float(X.min()), float(X.max())  # the values of an image belong together
        return np.full(X.shape[1], low), np.full(X.shape[1], high - low if high > low else 1.0)

    def _scaled(self, X: Array) -> torch.Tensor:
        """Rows as the model takes them."""
        dtype = next(self.model_.parameters()).dtype
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = torch.from_numpy((X - self.offset_) / self.scale_).to(dtype)
        image = self.model_.settings.get("image")
        return scaled if image is None else scaled.reshape(-1, *image)

    @torch.no_grad()
    def _outcomes(self, X: ArrayLike) -> Iterator[Outcome]:
        """What the model makes of rows, some at a time."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=precision(X), reset=False)
        image = self.model_.settings.get("image")
        values = 1 if image is None else image[1] * image[2] * self.model_.settings["filters"]
        for part in self._scaled(rows).split(min(ROWS_AT_ONCE, max(1, VALUES_AT_ONCE // values))):
            yield self.model_.run(part, control=1).check()  # so that a prediction does not depend on other rows

    def _predictions(self, X: ArrayLike) -> torch.Tensor:
        return torch.cat([outcome.prediction for outcome in self._outcomes(X)])


def precision(X: Any) -> Any:
    """What rows are converted to, unless they are floating point numbers of 32 or 64 bits already.

    That is ``float32`` where it holds every value exactly, which it does for numbers of 8 and 16 bits.
    """
    types = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", ()))  # an array, or a data frame
    narrow = [isinstance(each, np.dtype) and each.kind in "biuf" and each.itemsize <= 2 for each in types]
    return (np.float32, np.float64) if types and all(narrow) else (np.float64, np.float32)
