"""A regressor for scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from anode.checks import Words, lookup, require
from anode.estimators.base import NeuralODEEstimator
from anode.estimators.exported import graph
from anode.estimators.parameters import documented
from anode.estimators.rows import Array
from anode.exporting.export import Graph, graph_of

LOSSES = ("mse", "huber")


@documented(NeuralODEEstimator)
@dataclass(kw_only=True, eq=False, repr=False)
class ANODERegressor(RegressorMixin, NeuralODEEstimator):  # type: ignore[misc]
    """A scikit-learn regressor that is an augmented neural ODE, or a plain one if ``augment`` is 0.

    Targets are scaled to mean 0 and variance 1 too.

    Args:
        loss: ``"mse"``, or ``"huber"``, which is less sensitive to outliers.

    Attributes:
        target_offset_, target_scale_: The scaling of the targets: ``(y - target_offset_) / target_scale_``.
        target_ndim_: Number of dimensions of ``y``: 1 for [rows], 2 for [rows, targets].

    Example:
        >>> import anode, numpy as np
        >>> x = np.linspace(-3, 3, 200)
        >>> model = anode.ANODERegressor(random_state=0).fit(x[:, None], np.sin(x))
        >>> model.score(x[:, None], np.sin(x)) > 0.95
        True
    """

    loss: str = "mse"

    _y: ClassVar[dict[str, Any]] = {"multi_output": True, "y_numeric": True}
    _one_per_output = ("target_offset_", "target_scale_")

    def predict(self, X: ArrayLike) -> Array:
        """Return the predictions, [rows] or [rows, targets], like ``y`` in ``fit``."""
        found: Array = self._predictions(X).numpy()
        found = (found * self.target_scale_ + self.target_offset_).astype(found.dtype)
        return found[:, 0] if self.target_ndim_ == 1 else found

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _loss(self) -> str:
        return self.loss

    @property
    def _outputs(self) -> int:
        return len(self.target_offset_)

    def _learn_targets(self, y: Array, weights: Array | None) -> Array | None:
        lookup("loss", self.loss, dict.fromkeys(LOSSES))
        if not self._goes_on:
            with np.errstate(over="ignore", invalid="ignore"):
                found = StandardScaler().fit(_columns(y), sample_weight=weights)
            takes = "values whose mean and variance are finite; scale them first"
            finite = bool(np.isfinite([found.mean_, found.scale_]).all())
            require(finite, "y", Words(f"values up to {np.abs(_columns(y)).max():g}"), takes)
            self.target_offset_: Array = found.mean_
            self.target_scale_: Array = found.scale_
        self.target_ndim_ = int(np.ndim(y))
        return weights

    def _numbers(self, y: Array, name: str = "y", like: str = "the first fit, because warm_start is set") -> Array:
        columns = _columns(y)
        got, known = columns.shape[1], self._outputs
        require(got == known, name, f"{got} targets", f"{known} targets, as in {like}")
        scaled: Array = (columns - self.target_offset_) / self.target_scale_
        return scaled

    def _colored_by(self, y: Array) -> tuple[Array, list[str]]:
        return _columns(y)[:, 0], []


@graph_of.register
def _(estimator: ANODERegressor, X: Any) -> Graph:
    """Return the graph that maps rows to values."""
    check_is_fitted(estimator)
    offset, scale = (
        torch.tensor(each, dtype=torch.float32) for each in (estimator.target_offset_, estimator.target_scale_)
    )

    def finish(prediction: Tensor) -> Tensor:
        found = prediction * scale + offset
        return found[:, 0] if estimator.target_ndim_ == 1 else found

    return graph(estimator, X, finish, ("value",))


def _columns(y: Array) -> Array:
    """Return targets as columns, even if there is only one."""
    return np.asarray(y, dtype=np.float64).reshape(len(y), -1)
