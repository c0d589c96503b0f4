"""A classifier for scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from anode.checks import require
from anode.estimators.base import NeuralODEEstimator
from anode.estimators.exported import graph
from anode.estimators.parameters import documented
from anode.estimators.rows import Array
from anode.exporting.export import Graph, graph_of


@documented(NeuralODEEstimator)
@dataclass(kw_only=True, eq=False, repr=False)
class ANODEClassifier(ClassifierMixin, NeuralODEEstimator):  # type: ignore[misc]
    """A scikit-learn classifier that is an augmented neural ODE, or a plain one if ``augment`` is 0.

    Args:
        class_weight: Weight of the rows of each class, as a dictionary. ``"balanced"`` gives all classes the same total
            weight. By default all rows have the same weight.

    Attributes:
        classes_: The class labels, in the order of the columns of ``predict_proba``.

    Example:
        >>> import anode
        >>> from sklearn.datasets import make_circles
        >>> X, y = make_circles(200, factor=0.3, noise=0.05, random_state=0)
        >>> model = anode.ANODEClassifier(random_state=0).fit(X, y)
        >>> model.score(X, y) > 0.95, model.transform(X).shape
        (True, (200, 7))
    """

    class_weight: dict[Any, float] | str | None = None

    _loss = "cross_entropy"
    _one_per_output = ("classes_",)

    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable class of each row."""
        most = self._predictions(X).argmax(-1).numpy()
        found: Array = self.classes_[most]
        return found

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each class, [rows, classes]."""
        return self._predictions(X).softmax(-1).numpy()

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return the logarithm of the probability of each class, [rows, classes]."""
        return self._predictions(X).log_softmax(-1).numpy()

    @property
    def _outputs(self) -> int:
        return len(self.classes_)

    def _learn_targets(self, y: Array, weights: Array | None) -> Array | None:
        check_classification_targets(y)
        if not self._goes_on:
            self.classes_: Array = np.unique(y)
        given = self.class_weight
        if given is None:
            return weights
        by_class = isinstance(given, dict) and all(isinstance(each, Real) and each >= 0 for each in given.values())
        fits = by_class or (isinstance(given, str) and given == "balanced")
        require(fits, "class_weight", given, '"balanced", a dictionary of numbers from 0 by class, or None')
        of_class: Array = compute_sample_weight(given, y)
        return of_class if weights is None else weights * of_class

    def _numbers(self, y: Array, name: str = "y", like: str = "the first fit, because warm_start is set") -> Array:
        known, classes = self.classes_, np.unique(y)
        takes = f"the classes of {like}: {known.tolist()}"
        require(bool(np.isin(classes, known).all()), name, classes.tolist(), takes)
        return np.searchsorted(known, y)

    def _colored_by(self, y: Array) -> tuple[Array, list[str]]:
        return self._numbers(y, like="the fit"), [str(each) for each in self.classes_]


@graph_of.register
def _(estimator: ANODEClassifier, X: Any) -> Graph:
    """Return the graph that maps rows to classes and probabilities."""
    check_is_fitted(estimator)
    classes = estimator.classes_
    as_numbers = classes.dtype.kind in "biu"
    numbers = torch.tensor(classes.astype(np.int64)) if as_numbers else torch.arange(len(classes))

    def finish(prediction: Tensor) -> tuple[Tensor, Tensor]:
        return numbers[prediction.argmax(-1)], prediction.softmax(-1)

    labels = () if as_numbers else tuple(str(each) for each in classes)
    return graph(estimator, X, finish, ("label", "probabilities"), labels)
