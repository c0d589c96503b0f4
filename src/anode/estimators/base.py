"""What classifier and regressor have in common: training, and computing with single rows."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from anode.checks import describe, require, usable_device
from anode.estimators import saving
from anode.estimators.building import SHAPE, build, check_alike, check_field, state_shape
from anode.estimators.parameters import Parameters, documented
from anode.estimators.rows import Array, dense, precision, scale_of, split
from anode.models.augment import Augment
from anode.models.ensemble import from_seed
from anode.models.layers import ImageHead
from anode.models.model import Outcome
from anode.models.nets import NeuralODE
from anode.models.randomness import apart
from anode.train.fit import fit
from anode.train.regularisers import Regularised

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS_AT_ONCE = 4096
"""Rows that are computed together: enough to keep a processor busy, few enough for its memory."""
VALUES_AT_ONCE = 2**23
"""The same for images: values of a hidden layer, of which there are several at a time."""
DRAWN = 300
"""Rows that :meth:`NeuralODEEstimator.plot_flow` draws: more would hide each other."""
MOMENTS = 40
"""Times at which it draws them."""


@documented(Parameters)
@dataclass(kw_only=True, eq=False, repr=False)
class NeuralODEEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Parameters, ABC):  # type: ignore[misc]
    """The part of an estimator that does not know what is predicted.

    Inputs are scaled: columns to mean 0 and variance 1, images to values from 0 to 1. Computations are in the precision
    of the input; 8-bit and 16-bit numbers, such as ``uint8`` images, are computed in ``float32``, which holds them
    exactly. Sparse input is accepted and made dense. In training, a batch shares one step size. In prediction, every
    row has its own, so the prediction for a row does not depend on other rows.

    Attributes:
        model_: The :class:`anode.NeuralODE` or :class:`anode.ImageNeuralODE`; it takes scaled inputs.
        history_: The record of the last fit, an :class:`anode.History`.
        loss_curve_: The mean loss of each epoch of the last fit.
        n_iter_: Number of epochs of the last fit.
        n_function_evaluations_: Evaluations of the field per batch, the mean over the last epoch.
        offset_, scale_: What is subtracted from the inputs, and what they are then divided by.
    """

    _y: ClassVar[dict[str, Any]] = {}
    """What scikit-learn's ``validate_data`` has to know about targets."""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train.

        Args:
            X: Rows, [rows, features], dense or sparse.
            y: Their classes, numbers or texts; for a regressor their targets, [rows] or [rows, targets].
            sample_weight: Weight of each row.
            validation: Rows and targets of a validation set, ``(X, y)``, which are scaled like those above. Their loss
                after every epoch is recorded in ``history_.validation``; all rows have the same weight. With
                ``early_stopping`` they are used instead of a part of the rows.
        """
        with self._all_or_nothing():
            rows, targets = self._checked(X, y, reset=not self._goes_on)
            weights = None
            if sample_weight is not None:
                weights = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
            weights = self._learn_targets(targets, weights)
            held_out = None if validation is None else self._checked_validation(validation)
            self._train(dense(rows), self._numbers(targets), weights, held_out)
            if self.history_.stopped == "interrupted":
                warnings.warn("training was interrupted; the model is as it was then", UserWarning, stacklevel=2)
            for failure in self.history_.failures:
                what = f"training ended in iteration {failure.iteration}: {failure.reason}"
                warnings.warn(f"{what}; try a lower lr, or a higher weight_decay", ConvergenceWarning, stacklevel=2)
            return self

    def transform(self, X: ArrayLike) -> Array:
        """Return the features that the flow maps rows to, from which a linear map predicts.

        Args:
            X: Rows, [rows, features], dense or sparse.

        Returns:
            [rows, features + augment]; for images, all channels one after the other.
        """
        return self._computed(X, lambda part: self._run(part).features.flatten(1)).numpy()

    def plot_flow(self, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
        """Draw how the flow carries rows from the input to the features; needs matplotlib.

        The picture shows the plane of the two principal components of all states on the way; a flow of one dimension
        is shown against time. A hollow dot is where a row starts, a full one where it ends. The colour is that of the
        class or, for a regressor, of the first target.

        Args:
            X: Rows, [rows, features]. Of more than 300, a random sample of 300 is drawn, always the same.
            y: Their classes or targets.
            ax: Where to draw. By default on new axes, whose ``figure`` you can save or show.

        Returns:
            The axes.
        """
        from anode.estimators.drawing import draw_flow  # matplotlib is slow to import, and need not be installed

        check_is_fitted(self)
        rows, targets = self._checked(X, y, reset=False)
        some = np.sort(np.random.default_rng(0).permutation(rows.shape[0])[:DRAWN])
        times = torch.linspace(0.0, self.model_.flow.t1, MOMENTS, dtype=torch.float64).tolist()
        paths = self._in_parts(rows[some], lambda part: self._states(part, times)).numpy()
        return draw_flow(ax, times, paths.swapaxes(0, 1), *self._colored_by(targets[some]))

    def save(self, path: str | Path) -> Path:
        """Write a fitted estimator to ``<path>.json`` and ``<path>.safetensors``; returns the first.

        Functions and callbacks given as ``optimizer``, ``scheduler`` and ``callbacks`` cannot be written. They are left
        out with a warning: predictions do not need them. A ``field`` or ``augment`` of your own has to be registered,
        see :func:`anode.register`.
        """
        check_is_fitted(self)
        return saving.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an estimator that :meth:`save` wrote. Unlike unpickling, this executes nothing that is in the file."""
        estimator: Self = saving.load(cls, path)
        return estimator

    @property
    def loss_curve_(self) -> list[float]:
        """The mean loss of each epoch of the last fit."""
        return self.history_.per_epoch("loss").tolist()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and skops: arrays and plain values instead of torch's objects."""
        return saving.without_torch(super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(saving.with_torch(state))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # What classifiers and regressors do differently

    @property
    @abstractmethod
    def _loss(self) -> str:
        """The name of the loss."""

    @property
    @abstractmethod
    def _outputs(self) -> int:
        """How many values are predicted."""

    @abstractmethod
    def _learn_targets(self, y: Array, weights: Array | None) -> Array | None:
        """Learn which targets there are; return the weights of the rows."""

    @abstractmethod
    def _numbers(self, y: Array, name: str = "y", like: str = "the first fit, as warm_start is set") -> Array:
        """Return targets as the model learns them; ``name`` and ``like`` are for errors about others than learned."""

    @abstractmethod
    def _colored_by(self, y: Array) -> tuple[Array, list[str]]:
        """Return the values that colours stand for and, if they are numbers of classes, the classes' names."""

    @property
    def _goes_on(self) -> bool:
        """Whether training goes on from where it was."""
        return self.warm_start and hasattr(self, "model_")

    # Training

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

    def _checked(self, X: Any, y: Any, reset: bool) -> Any:
        """Rows, perhaps sparse, and targets."""
        return validate_data(self, X, y, dtype=precision(X), accept_sparse="csr", reset=reset, **self._y)

    def _checked_validation(self, validation: Any) -> tuple[Array, Array]:
        is_pair = isinstance(validation, list | tuple) and len(validation) == 2
        require(is_pair, "validation", describe(validation), "a pair (X, y)")
        try:
            rows, targets = self._checked(validation[0], validation[1], reset=False)
        except ValueError as error:
            raise ValueError(f"validation: {error}") from None
        return dense(rows), self._numbers(targets, "validation", "y")

    def _train(self, X: Array, y: Array, weights: Array | None, validation: tuple[Array, Array] | None) -> None:
        """Train on checked rows and targets.

        Args:
            X: Rows.
            y: Class numbers, or numbers, [rows, outputs].
            weights: How much each row counts; ``None`` if all do alike.
            validation: Rows and targets of the user's validation set.
        """
        for name in ("scale", "early_stopping", "warm_start"):
            require(isinstance(self._given[name], bool), name, self._given[name], "True or False")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._make_model(X, weights, seed)
        data = self._tensors(X, y, weights)
        takes = "values of which mean and variance are finite numbers; scale them first"
        require(bool(data[0].isfinite().all()), "X", f"values up to {np.abs(X).max():g}", takes)
        held_out = None if validation is None else tuple(self._tensors(*validation))
        if self.early_stopping and held_out is None:
            data, held_out = split(data, self._given["validation_fraction"], seed)
        loss = Regularised(*self.regularisers, loss=self._loss) if self.regularisers else self._loss
        options = {**self._for_fit(len(data[0])), "loss": loss, "validation": held_out, "seed": seed}
        with self._seeded(seed):
            self.history_ = fit(self.model_, tuple(data), **options)
        self.n_iter_ = self.history_.epochs
        self.n_function_evaluations_ = float(self.history_.per_epoch("nfe")[-1]) if self.n_iter_ else 0.0

    def _make_model(self, X: Array, weights: Array | None, seed: int) -> None:
        """Build a model, or make the last one ready to go on."""
        changed = [name for name in SHAPE if self._is_changed(name)]
        model = from_seed(lambda: build(self._given, changed, X.shape[1], self._outputs), seed)
        if not self._goes_on:
            self.offset_, self.scale_ = scale_of(X, weights, together=self.image is not None, enabled=self.scale)
            self.model_: NeuralODE = model.to(torch.float32 if X.dtype == np.float32 else torch.float64)
        else:
            check_alike(model, self.model_)
            self.model_ = deepcopy(self.model_)  # should this fit fail, the one before it still counts
            self.model_.flow.solver = model.flow.solver
        self.model_.to(None if self.device is None else usable_device(self.device)).train()
        if self.field is not None:
            check_field(self.model_, self._shape)

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Let noise, and a user's field or augmentation, draw random numbers that depend on the seed."""
        if (
            not self._is_noisy
            and not self.regularisers
            and self.field is None
            and not isinstance(self.augment, Augment)
        ):
            yield  # ours draw none, and threads need not wait
            return
        device = self.model_.head.weight.device
        with apart([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def _tensors(self, X: Array, y: Array, weights: Array | None = None) -> list[Tensor]:
        """Rows, targets and perhaps weights as :func:`anode.fit` takes them."""
        rows, targets = self._scaled(X), torch.tensor(y, device="cpu")
        targets = targets.to(rows.dtype) if targets.is_floating_point() else targets
        return [rows, targets, *([] if weights is None else [torch.tensor(weights, device="cpu")])]

    # What was learned

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of a row as the model takes it: (features,), or (channels, height, width)."""
        features, head = int(self.n_features_in_), self.model_.head
        if not isinstance(head, ImageHead):
            return (features,)
        return features // math.prod(head.image[1:]), *head.image[1:]

    @property
    def _n_features_out(self) -> int:
        """How many features there are, for ``get_feature_names_out``."""
        return math.prod(state_shape(self.model_.flow.augment, self._shape))

    @property
    def _is_noisy(self) -> bool:
        """Whether solves add noise to the state."""
        return self.model_.flow.solver.noise is not None

    def _scaled(self, X: Array) -> Tensor:
        """Rows as the model takes them."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = torch.from_numpy((X - self.offset_) / self.scale_)
        return scaled.to(self.model_.head.weight.dtype).reshape(-1, *self._shape)

    def _computed(self, X: ArrayLike, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """What a function makes of scaled rows, on the CPU."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=precision(X), accept_sparse="csr", reset=False)
        return self._in_parts(rows, compute)

    @torch.no_grad()
    def _in_parts(self, rows: Any, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """What a function makes of checked rows, some at a time."""
        self.model_.eval()
        device, width = self.model_.head.weight.device, self.model_.settings.get("filters", type(self).filters)
        values = 1 if len(self._shape) == 1 else math.prod(self._shape[1:]) * width
        size = min(ROWS_AT_ONCE, max(1, VALUES_AT_ONCE // values))
        parts = (dense(rows[start : start + size]) for start in range(0, rows.shape[0], size))
        with self._seeded(0) if self._is_noisy else nullcontext():  # the same rows get the same predictions
            return torch.cat([compute(self._scaled(part).to(device)).cpu() for part in parts])

    def _run(self, part: Tensor) -> Outcome:
        """What the model makes of scaled rows, each with its own step size: it does not depend on other rows."""
        return self.model_.run(part, control=1).check()

    def _predictions(self, X: ArrayLike) -> Tensor:
        return self._computed(X, lambda part: self._run(part).prediction)

    def _states(self, part: Tensor, times: list[float]) -> Tensor:
        """The states of scaled rows at some times, [rows, times, features]."""
        states: Any = self.model_.flow.solve(part, save_at=times, control=1).check().ys
        return states.flatten(2).swapaxes(0, 1)
