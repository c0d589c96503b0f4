"""The base class of all estimators: training, saving and row-wise prediction."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from anode.checks import require, usable_device
from anode.estimators import saving
from anode.estimators.building import check_alike, check_field
from anode.estimators.parameters import TrainingParameters, documented
from anode.estimators.rows import Array, dense, precision, scale_of, split
from anode.models.ensemble import from_seed
from anode.models.randomness import with_seed
from anode.train.fit import fit

ROWS_AT_ONCE = 4096
"""Number of rows to compute together: enough to keep a CPU busy, few enough for its memory."""


@documented(TrainingParameters)
@dataclass(kw_only=True, eq=False, repr=False)
class Trained(TrainingParameters, ABC):
    """The base class of all estimators.

    Computations use the precision of the input; 8-bit and 16-bit numbers, such as ``uint8`` images, are computed in
    ``float32``, which holds them exactly. Sparse input is converted to dense input. In training, a batch shares one
    step size. In prediction, each row has its own step size, so its prediction does not depend on other rows.

    Attributes:
        history_: The history of the last fit, an :class:`anode.History`.
        loss_curve_: The mean loss of each epoch of the last fit.
        n_iter_: Number of epochs of the last fit.
        n_function_evaluations_: Number of evaluations of the field per batch, averaged over the last epoch.
        offset_, scale_: The scaling of the inputs: ``(X - offset_) / scale_``.
    """

    def save(self, path: str | Path) -> Path:
        """Save a fitted estimator to ``<path>.json`` and ``<path>.safetensors``.

        Functions and objects passed as ``optimizer``, ``scheduler``, ``callbacks`` and ``regularisers`` cannot be
        saved. They are omitted with a warning; predictions do not need them. Register your own ``field`` or ``augment``
        with :func:`anode.register` first.

        Args:
            path: Path of the two files, without a suffix or with ``.json``.

        Returns:
            The path of the JSON file.
        """
        check_is_fitted(self)
        return saving.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load an estimator that :meth:`save` wrote. Unlike unpickling, this does not execute code from the file.

        Args:
            path: The path that was passed to :meth:`save`, or one of the two files.

        Raises:
            DamagedFileError: If the files do not hold an estimator of this class.
        """
        estimator: Self = saving.load(cls, path)
        return estimator

    @property
    def loss_curve_(self) -> list[float]:
        """The mean loss of each epoch of the last fit."""
        return self.history_.per_epoch("loss").tolist()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and skops, with arrays and plain values instead of torch objects."""
        return saving.without_torch(super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(saving.with_torch(state))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # What subclasses define

    @abstractmethod
    def _build(self, features: int) -> Any:
        """Return a new model for rows with this number of features, built from the parameters."""

    @abstractmethod
    def _check_learned(self) -> None:
        """Raise ``ValueError`` unless all attributes that predictions need are present and have the right sizes."""

    @property
    @abstractmethod
    def _draws_numbers(self) -> bool:
        """Whether the model draws random numbers in training, as a field with dropout does."""

    def _find_scale(self, X: Array, weights: Array | None) -> tuple[Array, Array]:
        """Return the offset and the scale of the inputs."""
        return scale_of(X, weights, together=False, enabled=self.scale)

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of a row for the model."""
        return (int(self.n_features_in_),)

    @property
    @abstractmethod
    def _state(self) -> tuple[int, ...]:
        """The shape of the state of a row, which the field takes."""

    @property
    def _rows_at_once(self) -> int:
        """The number of rows to compute together."""
        return ROWS_AT_ONCE

    # Training

    @property
    def _goes_on(self) -> bool:
        """Whether training continues from the last fit."""
        return self.warm_start and hasattr(self, "model_")

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator if the body raises an error."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _seed(self) -> int:
        """Check the settings of a fit and return its random seed."""
        for name in ("scale", "early_stopping", "warm_start"):
            require(isinstance(self._given[name], bool), name, self._given[name], "True or False")
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _make_model(self, X: Array, weights: Array | None, seed: int) -> None:
        """Build a model, or prepare the last one to continue."""
        model = from_seed(lambda: self._build(X.shape[1]), seed)
        if not self._goes_on:
            self.offset_, self.scale_ = self._find_scale(X, weights)
            self.model_: Any = model.to(torch.float32 if X.dtype == np.float32 else torch.float64)
        else:
            check_alike(model, self.model_)
            self.model_ = deepcopy(self.model_)  # if this fit fails, the previous model is kept
            self.model_.flow.solver = model.flow.solver
        self.model_.to(None if self.device is None else usable_device(self.device)).train()
        if self._given["field"] is not None:
            check_field(self.model_, self._shape, self._state)

    def _learn(
        self, X: Array, data: list[Tensor], held_out: tuple[Tensor, ...] | None, seed: int, **options: Any
    ) -> None:
        """Train the model.

        Args:
            X: The rows before scaling.
            data: Scaled rows, targets and optional weights, as :func:`anode.fit` takes them.
            held_out: The user's validation set.
            seed: Random seed.
            **options: Further arguments of :func:`anode.fit`.
        """
        takes = "values whose mean and variance are finite; scale them first"
        require(bool(data[0].isfinite().all()), "X", f"values up to {np.abs(X).max():g}", takes)
        if self.early_stopping and held_out is None:
            data, held_out = split(data, self._given["validation_fraction"], seed)
        options |= {**self._for_fit(len(data[0])), "validation": held_out, "seed": seed}
        with self._seeded(seed) if self._draws_numbers else nullcontext():  # without random numbers, no lock is needed
            self.history_ = fit(self.model_, tuple(data), **options)
        self.n_iter_ = self.history_.epochs
        self.n_function_evaluations_ = float(self.history_.per_epoch("nfe")[-1]) if self.n_iter_ else 0.0

    def _seeded(self, seed: int) -> AbstractContextManager[None]:
        """Seed torch's random numbers in the body, and restore their state afterwards."""
        return with_seed(seed, [self._like.device] if self._like.device.type == "cuda" else [])

    def _warn(self) -> None:
        """Warn if a fit ended early. Call it in ``fit`` itself: the warning then points to the caller of ``fit``."""
        if self.history_.stopped == "interrupted":
            warnings.warn("training was interrupted; the model is not fully trained", UserWarning, stacklevel=3)
        for failure in self.history_.failures:
            what = f"training ended in iteration {failure.iteration}: {failure.reason}"
            warnings.warn(f"{what}; try a lower lr, or a higher weight_decay", ConvergenceWarning, stacklevel=3)

    # What was learned

    @property
    def _like(self) -> Tensor:
        """A tensor with the model's dtype and device."""
        return next(self.model_.parameters())

    def _scaled(self, X: Array) -> Tensor:
        """Return rows scaled and shaped for the model."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = torch.from_numpy((X - self.offset_) / self.scale_)
        return scaled.to(self._like.dtype).reshape(-1, *self._shape)

    def _computed(self, X: ArrayLike, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Check rows, apply a function to them scaled, and return the result on the CPU."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=precision(X), accept_sparse="csr", reset=False)
        return self._in_parts(rows, compute)

    @torch.no_grad()
    def _in_parts(self, rows: Any, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function to checked rows, scaled, some at a time."""
        self.model_.eval()
        device, size = self._like.device, self._rows_at_once
        parts = (dense(rows[start : start + size]) for start in range(0, rows.shape[0], size))
        return torch.cat([compute(self._scaled(part).to(device)).cpu() for part in parts])
