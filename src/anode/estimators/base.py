"""What classifier and regressor have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from anode.checks import describe, require
from anode.estimators import saving
from anode.estimators.building import SHAPE, build, state_shape
from anode.estimators.parameters import documented
from anode.estimators.rows import Array, dense, precision, scale_of
from anode.estimators.trained import Trained
from anode.models.augment import Augment
from anode.models.layers import ImageHead
from anode.models.model import Outcome
from anode.models.nets import NeuralODE
from anode.ode.solver import Solver
from anode.train.regularisers import Regularised, Regulariser

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALUES_AT_ONCE = 2**23
"""How much of images is computed together: values of a hidden layer, of which there are several at a time."""
DRAWN = 300
"""Rows that :meth:`NeuralODEEstimator.plot_flow` draws: more would hide each other."""
MOMENTS = 40
"""Times at which it draws them."""


@documented(Trained)
@dataclass(kw_only=True, eq=False, repr=False)
class NeuralODEEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Trained):  # type: ignore[misc]
    """The part of an estimator that does not know what is predicted.

    Inputs are scaled: columns to mean 0 and variance 1, images to values from 0 to 1.

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
        regularisers: Objects of :class:`anode.Regulariser`, such as ``anode.Kinetic(0.01)``, which add to the loss that
            is minimised.

    Attributes:
        model_: The :class:`anode.NeuralODE` or :class:`anode.ImageNeuralODE`; it takes scaled inputs.
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
    regularisers: Sequence[Regulariser] = ()

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
            self._warn()
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

    # Training

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
        seed = self._seed()
        self._make_model(X, weights, seed)
        data = self._tensors(X, y, weights)
        held_out = None if validation is None else tuple(self._tensors(*validation))
        loss = Regularised(*self.regularisers, loss=self._loss) if self.regularisers else self._loss
        self._learn(X, data, held_out, seed, loss=loss)

    def _check_learned(self) -> None:
        model, columns = self.model_, self.n_features_in_
        sizes = {"offset_": columns, "scale_": columns}
        of_kind = ("classes_",) if hasattr(type(self), "predict_proba") else ("target_offset_", "target_scale_")
        saving.check_sizes(self, sizes | dict.fromkeys(of_kind, model.head.out_features))
        features, *others = self._state
        if math.prod((model.flow.augment.shown(features, self._shape[0]), *others)) != model.head.in_features:
            raise ValueError(f"its n_features_in_ is {columns!r}, which its model does not take")

    def _build(self, features: int) -> NeuralODE:
        changed = [name for name in SHAPE if self._is_changed(name)]
        return build(self._given, changed, features, self._outputs)

    def _find_scale(self, X: Array, weights: Array | None) -> tuple[Array, Array]:
        return scale_of(X, weights, together=self.image is not None, enabled=self.scale)

    @property
    def _draws_numbers(self) -> bool:
        return bool(self.regularisers) or self._is_noisy or self.field is not None or isinstance(self.augment, Augment)

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
    def _state(self) -> tuple[int, ...]:
        return state_shape(self.model_.flow.augment, self._shape)

    @property
    def _n_features_out(self) -> int:
        """How many features there are, for ``get_feature_names_out``."""
        return math.prod(self._state)

    @property
    def _is_noisy(self) -> bool:
        """Whether solves add noise to the state."""
        return self.model_.flow.solver.noise is not None

    @property
    def _rows_at_once(self) -> int:
        width = self.model_.settings.get("filters", type(self).filters)
        values = 1 if len(self._shape) == 1 else math.prod(self._shape[1:]) * width
        return min(super()._rows_at_once, max(1, VALUES_AT_ONCE // values))

    def _in_parts(self, rows: Any, compute: Callable[[Tensor], Tensor]) -> Tensor:
        with self._seeded(0) if self._is_noisy else nullcontext():  # the same rows get the same predictions
            return super()._in_parts(rows, compute)

    def _run(self, part: Tensor) -> Outcome:
        """What the model makes of scaled rows, each with its own step size: it does not depend on other rows."""
        return self.model_.run(part, control=1).check()

    def _predictions(self, X: ArrayLike) -> Tensor:
        return self._computed(X, lambda part: self._run(part).prediction)

    def _states(self, part: Tensor, times: list[float]) -> Tensor:
        """The states of scaled rows at some times, [rows, times, features]."""
        states: Any = self.model_.flow.solve(part, save_at=times, control=1).check().ys
        return states.flatten(2).swapaxes(0, 1)
