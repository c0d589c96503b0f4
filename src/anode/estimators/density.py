"""A density estimator for scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from anode.checks import flag, number, require
from anode.estimators.building import field_of
from anode.estimators.parameters import documented
from anode.estimators.rows import Array, dense, precision
from anode.estimators.saving import check_sizes
from anode.estimators.trained import Trained
from anode.models.density import MOST_EXACT, DensityFlow, log_normal
from anode.models.divergence import signs
from anode.ode.solver import Solver
from anode.train.points import no_targets

SHAPE = ("hidden", "layers", "activation", "time")
"""The parameters that describe the field."""

VALUES_AT_ONCE = 2**15
"""The limit of points to compute together, in elements of their states, each of which needs a derivative."""


@documented(Trained)
@dataclass(kw_only=True, eq=False, repr=False)
class ANODEDensity(DensityMixin, Trained):  # type: ignore[misc]
    """A scikit-learn density estimator that is a continuous normalizing flow.

    Use it like :class:`sklearn.neighbors.KernelDensity`. The flow sees columns scaled to mean 0 and variance 1.
    Log-probabilities and samples refer to the original rows.

    With ``augment`` above 0, log-probabilities are **lower bounds**, see :class:`anode.DensityFlow`.

    Args:
        augment: Number of normal coordinates that are appended to a row; 0 is the plain flow.
        hidden: Width of the field's hidden layers.
        layers: Number of the field's hidden layers.
        activation: ``"relu"``, ``"softplus"``, ``"tanh"``, ``"silu"`` or ``"gelu"``; smooth ones suit densities.
        time: Whether the field depends on time.
        field: A function or class that takes the size of the state and returns the right-hand side f(t, z), a
            ``torch.nn.Module``. z is [rows, size]. t must broadcast against z: it is a scalar in training, and
            [rows, 1] in prediction. Leave ``hidden``, ``layers``, ``activation`` and ``time`` at their defaults,
            because the field replaces the network that they configure.
        trace: How training computes the trace of the field's Jacobian: ``"exact"``, or ``"hutchinson"``, an estimate
            for more than 64 columns. Predictions use the exact trace for up to 64 columns, otherwise the estimate.
        draws: Number of draws over which a prediction averages. All rows share the draws of the added coordinates and
            of the noise of the estimate. More draws of the coordinates make the bound tighter. Ignored if ``augment``
            is 0 and there are at most 64 columns.
        solver: An :class:`anode.Solver`. Defaults to dopri5 with tolerances of 1e-5. Its ``control`` is used in
            training only.

    Attributes:
        model_: The :class:`anode.DensityFlow`; it takes scaled inputs.

    Example:
        >>> import anode, numpy as np
        >>> X = np.random.default_rng(0).exponential([1.0, 100.0], size=(300, 2))
        >>> model = anode.ANODEDensity(hidden=16, layers=2, epochs=30, random_state=0).fit(X)
        >>> model.score_samples(X[:3]).shape, model.sample(5, random_state=0).shape
        ((3,), (5, 2))
    """

    augment: int = 0
    hidden: int = 64
    layers: int = 3
    activation: str = "tanh"
    time: bool = True
    field: Callable[[int], nn.Module] | None = None
    trace: str = "exact"
    draws: int = 20
    solver: Solver | None = None
    batch_size: int | str = 128
    weight_decay: float = 0.0

    def fit(
        self,
        X: ArrayLike,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        validation: ArrayLike | None = None,
    ) -> Self:
        """Train the model and return the estimator.

        Args:
            X: Rows, [rows, features], dense or sparse.
            y: Ignored; scikit-learn's pipelines pass it.
            sample_weight: Weight of each row. By default all rows have the same weight.
            validation: Rows of a validation set, scaled like the training data. Their mean negative log-probability
                after each epoch is recorded in ``history_.validation``. With ``early_stopping`` they are used instead
                of a part of the training rows.

        Returns:
            The fitted estimator.
        """
        with self._all_or_nothing():
            rows = self._checked(X, reset=not self._goes_on)
            weights = None
            if sample_weight is not None:
                weights = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
            held_out = None if validation is None else self._checked(validation, reset=False)
            seed = self._seed()
            number("draws", self._given["draws"], whole=True)
            self._make_model(rows, weights, seed)
            data = self._tensors(rows, weights)
            self._learn(rows, data, None if held_out is None else tuple(self._tensors(held_out)), seed)
            self._warn()
            return self

    def score_samples(self, X: ArrayLike) -> Array:
        """Return the log-probability of each row, [rows]; with ``augment`` above 0 a lower bound.

        Args:
            X: Rows, [rows, features], dense or sparse.

        Raises:
            FloatingPointError: If a log-probability is not finite.
        """
        check_is_fitted(self)
        with self._seeded(0):  # every call draws the same numbers
            found: Array = self._computed(X, self._log_prob()).numpy()
        return found - float(np.log(self.scale_).sum())

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log-probability of rows, as ``GaussianMixture.score`` does: the higher, the better.

        Args:
            X: Rows, [rows, features], dense or sparse.
            y: Ignored.
        """
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> Array:
        """Draw rows from the density.

        Args:
            n_samples: Number of rows.
            random_state: Random seed.

        Returns:
            [n_samples, features].
        """
        check_is_fitted(self)
        count = number("n_samples", n_samples, whole=True)
        with self._seeded(int(check_random_state(random_state).randint(2**31 - 1))):
            drawn: Array = self.model_.eval().sample(count).numpy(force=True)
        return (drawn * self.scale_ + self.offset_).astype(drawn.dtype)

    # Training

    def _checked(self, X: Any, reset: bool) -> Array:
        return dense(validate_data(self, X, dtype=precision(X), accept_sparse="csr", reset=reset))

    def _tensors(self, X: Array, weights: Array | None = None) -> list[Tensor]:
        rows = self._scaled(X)
        return [rows, no_targets(rows), *([] if weights is None else [torch.tensor(weights, device="cpu")])]

    def _build(self, features: int) -> DensityFlow:
        given = self._given
        flag("time", given["time"])
        shared = {name: given[name] for name in ("augment", "trace", "solver")}
        if given["field"] is None:
            return DensityFlow(features, **{name: given[name] for name in SHAPE}, **shared)
        why = "no value with field, which replaces the network that it configures; leave it at its default"
        for name in SHAPE:
            require(not self._is_changed(name), name, given[name], why)
        size = features + number("augment", given["augment"], whole=True, zero=True)
        return DensityFlow(features, field=field_of(given["field"], size), **shared)

    @property
    def _draws_numbers(self) -> bool:
        return self.field is not None or self._given["augment"] > 0 or self.trace != "exact"

    def _check_learned(self) -> None:
        check_sizes(self, {"offset_": self.model_.dim, "scale_": self.model_.dim})
        if self.n_features_in_ != self.model_.dim:
            raise ValueError(f"its n_features_in_ is {self.n_features_in_!r}, which its model does not take")

    # What was learned

    @property
    def _state(self) -> tuple[int, ...]:
        return (self.model_.dim + self.model_.augment,)

    @property
    def _draws(self) -> int:
        """The number of draws for which each row is computed."""
        draws: int = number("draws", self._given["draws"], whole=True)
        return draws if self.model_.augment or self._state[0] > MOST_EXACT else 1

    @property
    def _rows_at_once(self) -> int:
        return min(super()._rows_at_once, max(1, VALUES_AT_ONCE // (self._draws * self._state[0])))

    def _log_prob(self) -> Callable[[Tensor], Tensor]:
        """Return a function from scaled rows to log-probabilities. A row's result does not depend on other rows."""
        joint, extra, draws = self.model_.joint().eval(), self.model_.augment, self._draws
        if joint.dim <= MOST_EXACT:
            joint.trace = "exact"
        added = self._like.new_empty(draws, 1, extra).normal_()  # the same for all rows
        noise = None if joint.trace == "exact" else signs(added.new_empty(draws, 1, joint.dim))

        def log_prob(part: Tensor) -> Tensor:
            if noise is not None:
                joint.start.noise = noise.expand(draws, len(part), joint.dim).flatten(0, 1)
            both = torch.cat([part.expand(draws, *part.shape), added.expand(draws, len(part), extra)], dim=-1)
            found = joint.log_prob(both.flatten(0, 1), control=1).unflatten(0, (draws, -1)) - log_normal(added)
            return found.logsumexp(0) - math.log(draws) if joint.trace == "exact" else found.mean(0)

        return log_prob
