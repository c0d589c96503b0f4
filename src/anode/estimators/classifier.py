"""A classifier for scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from anode.checks import require
from anode.estimators.base import Array, NeuralODEEstimator, precision


@dataclass(kw_only=True, eq=False, repr=False)
class ANODEClassifier(ClassifierMixin, NeuralODEEstimator):  # type: ignore[misc]
    """A neural ODE that classifies, as an estimator of scikit-learn; augmented unless ``augment`` is 0.

    Args:
        class_weight: How much rows of a class count, by the class; ``"balanced"`` for all classes alike.
        **others: Those of :class:`anode.estimators.base.NeuralODEEstimator`, which also describes what is learned.

    Attributes:
        classes_: The classes, in the order of the columns of ``predict_proba``.

    Example:
        >>> import anode
        >>> from sklearn.datasets import make_circles
        >>> X, y = make_circles(200, factor=0.3, noise=0.05, random_state=0)
        >>> model = anode.ANODEClassifier(random_state=0).fit(X, y)
        >>> model.score(X, y) > 0.95, model.transform(X).shape
        (True, (200, 7))
    """

    class_weight: dict[Any, float] | str | None = None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train.

        Args:
            X: Rows, [rows, features].
            y: Their classes, numbers or texts.
            sample_weight: How much each row counts.
        """
        with self._all_or_nothing():
            return self._fit(X, y, sample_weight)

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Self:
        rows, labels = validate_data(self, X, y, dtype=precision(X), reset=not self._goes_on)
        check_classification_targets(labels)
        classes = np.unique(labels)
        if self._goes_on:
            takes = f"the classes of the first fit, {self.classes_.tolist()}, as warm_start is set"
            require(bool(np.isin(classes, self.classes_).all()), "y", classes.tolist(), takes)
        else:
            self.classes_: Array = classes
        weights = self._checked_weights(sample_weight, rows)
        if isinstance(self.class_weight, dict):
            takes = "numbers from 0, by class"
            require(all(weight >= 0 for weight in self.class_weight.values()), "class_weight", self.class_weight, takes)
        if self.class_weight is not None:
            of_class = compute_sample_weight(self.class_weight, labels)
            weights = of_class if weights is None else weights * of_class
        numbers = np.searchsorted(self.classes_, labels)
        return self._train(rows, numbers, weights, len(self.classes_), "cross_entropy")

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row."""
        most = self._predictions(X).argmax(-1).numpy()
        found: Array = self.classes_[most]
        return found

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class, [rows, classes]."""
        return self._predictions(X).softmax(-1).numpy()

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """The logarithms of the probabilities."""
        return self._predictions(X).log_softmax(-1).numpy()
