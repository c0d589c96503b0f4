"""A regressor for scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from anode.checks import lookup, require
from anode.estimators.base import Array, NeuralODEEstimator, precision

LOSSES = ("mse", "huber")


@dataclass(kw_only=True, eq=False, repr=False)
class ANODERegressor(RegressorMixin, NeuralODEEstimator):  # type: ignore[misc]
    """A neural ODE that predicts numbers, as an estimator of scikit-learn; augmented unless ``augment`` is 0.

    Targets are scaled to mean 0 and variance 1 as well.

    Args:
        loss: ``"mse"``, or ``"huber"`` which cares less about outliers.
        **others: Those of :class:`anode.estimators.base.NeuralODEEstimator`, which also describes what is learned.

    Attributes:
        target_offset_, target_scale_: What is subtracted from the targets, and what they are then divided by.
        target_ndim_: 1 if there is one target and 2 if there are columns of them.

    Example:
        >>> import anode, numpy as np
        >>> x = np.linspace(-3, 3, 200)
        >>> model = anode.ANODERegressor(random_state=0).fit(x[:, None], np.sin(x))
        >>> model.score(x[:, None], np.sin(x)) > 0.95
        True
    """

    loss: str = "mse"

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train.

        Args:
            X: Rows, [rows, features].
            y: Their targets, [rows] or [rows, targets].
            sample_weight: How much each row counts.
        """
        with self._all_or_nothing():
            return self._fit(X, y, sample_weight)

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Self:
        lookup("loss", self.loss, dict.fromkeys(LOSSES))
        options = {"multi_output": True, "y_numeric": True, "reset": not self._goes_on}
        rows, targets = validate_data(self, X, y, dtype=precision(X), **options)
        weights = self._checked_weights(sample_weight, rows)
        columns = np.asarray(targets, dtype=np.float64).reshape(len(rows), -1)
        if self._goes_on:
            known = len(self.target_offset_)
            takes = f"{known} targets, as in the first fit, as warm_start is set"
            require(columns.shape[1] == known, "y", f"{columns.shape[1]} targets", takes)
        else:
            found = StandardScaler().fit(columns, sample_weight=weights)
            self.target_offset_: Array = found.mean_
            self.target_scale_: Array = found.scale_
        self.target_ndim_ = int(np.ndim(targets))
        scaled = ((columns - self.target_offset_) / self.target_scale_).astype(rows.dtype)
        return self._train(rows, scaled, weights, columns.shape[1], self.loss)

    def predict(self, X: ArrayLike) -> Array:
        """The target of each row, or all its targets, [rows, targets]."""
        found: Array = self._predictions(X).numpy()
        found = (found * self.target_scale_ + self.target_offset_).astype(found.dtype)
        return found[:, 0] if self.target_ndim_ == 1 else found

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
