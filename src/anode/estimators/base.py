"""The base class of classifier and regressor."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
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
from anode.ode.noise import SharedNoise
from anode.ode.solver import Solver
from anode.train.regularisers import Regularised, Regulariser

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALUES_AT_ONCE = 2**23
"""The limit of images to compute together, in values of a hidden layer."""
DRAWN = 300
"""Maximum number of rows that :meth:`NeuralODEEstimator.plot_flow` draws."""
MOMENTS = 40
"""Number of times at which :meth:`NeuralODEEstimator.plot_flow` draws them."""


@documented(Trained)
@dataclass(kw_only=True, eq=False, repr=False)
class NeuralODEEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Trained):  # type: ignore[misc]
    """The base class of classifier and regressor.

    Inputs are scaled: columns to mean 0 and variance 1, images to [0, 1].

    Args:
        augment: Number of zeros to append to each row, or of channels of zeros to append to each image; 0 is the plain
            neural ODE. ``"auto"`` means 5. Or an :class:`anode.Augment`; each fit trains a copy of it.
        hidden: Width of the field's hidden layers; not for images.
        layers: Number of the field's hidden layers; not for images.
        activation: ``"relu"``, ``"softplus"``, ``"tanh"``, ``"silu"`` or ``"gelu"``.
        time: Whether the field depends on time.
        image: Channels, height and width, if rows are images. The field is then convolutional.
        filters: Number of channels of the convolutional field's hidden layers; only for images.
        field: A function or class that takes the size of the state and returns the right-hand side f(t, h), a
            ``torch.nn.Module``. For images it takes channels, height and width of the state. h is [rows, size], or
            [rows, channels, height, width]. t must broadcast against h: it is a scalar in training, and [rows, 1] or
            [rows, 1, 1, 1] in prediction. Leave ``hidden``, ``layers``, ``activation``, ``time`` and ``filters`` at
            their defaults, because the field replaces the network that they configure.
        solver: An :class:`anode.Solver`. Defaults to dopri5 with the paper's tolerances. Its ``control`` is used in
            training only.
        regularisers: A sequence of :class:`anode.Regulariser` objects, such as ``anode.Kinetic(0.01)``. Each adds a
            penalty to the training loss.

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
    """Arguments of scikit-learn's ``validate_data`` about the targets."""
    _one_per_output: ClassVar[tuple[str, ...]]
    """The learned attributes with one value per predicted value."""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Train the model and return the estimator.

        Args:
            X: Rows, [rows, features], dense or sparse.
            y: Class labels, numbers or texts, [rows]. For a regressor, targets, [rows] or [rows, targets].
            sample_weight: Weight of each row. By default all rows have the same weight.
            validation: A validation set ``(X, y)``, scaled like the training data, with equal weights. Its loss after
                each epoch is recorded in ``history_.validation``. With ``early_stopping`` it is used instead of a part
                of the training rows.

        Returns:
            The fitted estimator.
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
        """Return the features: the final states of the flow, from which a linear layer predicts.

        Args:
            X: Rows, [rows, features], dense or sparse.

        Returns:
            The features, [rows, features + augment]; for images, the flattened channels.
        """
        return self._computed(X, lambda part: self._run(part).features.flatten(1)).numpy()

    def plot_flow(self, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
        """Plot the paths of rows from input to features. Requires matplotlib.

        The paths are projected to the two principal components of all states; a one-dimensional flow is plotted
        against time. Hollow dots mark the start of a path, full dots its end. The colour shows the class or, for a
        regressor, the first target.

        Args:
            X: Rows, [rows, features]. If there are more than 300, a fixed random sample of 300 is plotted.
            y: Their classes or targets.
            ax: Axes to plot on. By default new axes are created, whose ``figure`` you can save or show.

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
        """The number of predicted values."""

    @abstractmethod
    def _learn_targets(self, y: Array, weights: Array | None) -> Array | None:
        """Learn the classes or the scale of the targets, and return the weights of the rows."""

    @abstractmethod
    def _numbers(self, y: Array, name: str = "y", like: str = "the first fit, because warm_start is set") -> Array:
        """Return targets as the model learns them; ``name`` and ``like`` are used in error messages."""

    @abstractmethod
    def _colored_by(self, y: Array) -> tuple[Array, list[str]]:
        """Return the values that colours stand for and, if they are class indices, the names of the classes."""

    # Training

    def _checked(self, X: Any, y: Any, reset: bool) -> Any:
        """Return checked rows, possibly sparse, and targets."""
        rows, targets = validate_data(self, X, y, dtype=precision(X), accept_sparse="csr", reset=reset, **self._y)
        return rows, dense(targets)

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
            weights: Weight of each row; ``None`` if all are equal.
            validation: Rows and targets of the user's validation set.
        """
        seed = self._seed()
        self._make_model(X, weights, seed)
        data = self._tensors(X, y, weights)
        held_out = None if validation is None else tuple(self._tensors(*validation))
        takes = "a sequence of anode.Regulariser objects"
        require(isinstance(self.regularisers, Sequence), "regularisers", self.regularisers, takes)
        loss = Regularised(*self.regularisers, loss=self._loss) if self.regularisers else self._loss
        self._learn(X, data, held_out, seed, loss=loss)

    def _check_learned(self) -> None:
        model, columns = self.model_, self.n_features_in_
        sizes = {"offset_": columns, "scale_": columns}
        saving.check_sizes(self, sizes | dict.fromkeys(self._one_per_output, model.head.out_features))
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
        """Return rows, targets and optional weights as :func:`anode.fit` takes them."""
        rows, targets = self._scaled(X), torch.tensor(y, device="cpu")
        targets = targets.to(rows.dtype) if targets.is_floating_point() else targets
        return [rows, targets, *([] if weights is None else [torch.tensor(weights, device="cpu")])]

    # What was learned

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of a row for the model: (features,), or (channels, height, width)."""
        features, head = int(self.n_features_in_), self.model_.head
        if not isinstance(head, ImageHead):
            return (features,)
        return features // math.prod(head.image[1:]), *head.image[1:]

    @property
    def _state(self) -> tuple[int, ...]:
        return state_shape(self.model_.flow.augment, self._shape)

    @property
    def _n_features_out(self) -> int:
        """The number of features, for ``get_feature_names_out``."""
        return math.prod(self._state)

    @property
    def _is_noisy(self) -> bool:
        """Whether the solver adds noise to the state."""
        return self.model_.flow.solver.noise is not None

    @property
    def _rows_at_once(self) -> int:
        width = self.model_.settings.get("filters", type(self).filters)
        values = 1 if len(self._shape) == 1 else math.prod(self._shape[1:]) * width
        return min(super()._rows_at_once, max(1, VALUES_AT_ONCE // values))

    def _in_parts(self, rows: Any, compute: Callable[[Tensor], Tensor]) -> Tensor:
        def alike(part: Tensor) -> Tensor:
            with self._seeded(0):  # all parts get the same paths of the noise
                return compute(part)

        return super()._in_parts(rows, alike if self._is_noisy else compute)

    @property
    def _alone(self) -> dict[str, Any]:
        """Options with which rows do not affect each other: each has its own step size, and all have the same noise."""
        noise = self.model_.flow.solver.noise
        return {"control": 1} if noise is None else {"control": 1, "noise": SharedNoise(noise.scale, noise.paths)}

    def _run(self, part: Tensor) -> Outcome:
        """Run the model on scaled rows, which do not affect each other."""
        return self.model_.run(part, **self._alone).check()

    def _predictions(self, X: ArrayLike) -> Tensor:
        return self._computed(X, lambda part: self._run(part).prediction)

    def _states(self, part: Tensor, times: list[float]) -> Tensor:
        """Return the states of scaled rows at some times, [rows, times, features]."""
        states: Any = self.model_.flow.solve(part, save_at=times, **self._alone).check().ys
        return states.flatten(2).swapaxes(0, 1)
