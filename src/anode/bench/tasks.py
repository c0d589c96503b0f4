"""The tasks: the same network, data and tolerances for every library, as plain arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from anode.data import toy

if TYPE_CHECKING:
    from anode.estimators.classifier import ANODEClassifier

Array = NDArray[Any]

KINDS = ("train", "gradient", "solve", "predict")

FIELDS = ("network", "opaque", "squash", "cubic", "cubic network", "lotka-volterra", "second order", "density")
"""Right-hand sides as users write them, from the same weights in every library.

- ``network``: a perceptron, with time as one more input if the task says so.
- ``opaque``: the same, but each evaluation also appends the time to a list. Only torch can compute it.
- ``squash``: layers ``(W y + b) * sigmoid(gate(t)) + shift(t)``, with an activation after each.
- ``cubic``: ``y**3 @ A`` with a learned matrix.
- ``cubic network``: the perceptron of ``y**3``.
- ``lotka-volterra``: predators and prey, with four learned rates.
- ``second order``: position and velocity, one after the other in the state; the perceptron gives the acceleration.
- ``density``: the perceptron moves points, and a second part of the state collects minus its exact divergence.
"""

SPIRAL = ((-0.1, 2.0), (-2.0, -0.1))
"""The matrix of ``cubic``."""

RATES = (1.5, 1.0, 3.0, 1.0)
"""The rates of ``lotka-volterra``: births of prey, prey eaten, deaths of predators, births of predators."""


@cache
def points(dim: int, seed: int) -> toy.Dataset:
    """Return a dataset. It is cached, so that no measured time includes it."""
    return toy.load("g", dim=dim, seed=seed)


@dataclass(frozen=True)
class Task:
    """A task to measure.

    Attributes:
        kind: ``train``: epochs of the paper's toy protocol. ``gradient``: a solve and the gradient of the sum of its
            final state. ``solve``: a solve alone. ``predict``: the classes of many rows by a fitted classifier.
        sizes: Of the state, the hidden layers, and the state again.
        activations: Of each layer's output.
        time: Whether the network is given the time.
        zeros: How many numbers of the state are zero at the start.
        batch: Points in a solve.
        t1: Where a solve ends; it begins at 0.
        tol: Both tolerances.
        members: How many models are trained.
        epochs: Passes over the data.
        double: Whether to compute in double precision.
        field: The right-hand side, one of :data:`FIELDS`.
        method: The Runge-Kutta method, by torchdiffeq's name.
        step: The step size of a method with fixed steps; 0 to choose steps by the tolerances.
        outputs: Number of times, evenly spaced from 0 to ``t1``, whose states are averaged; 1 for the final state
            alone.
        fused: Whether training in torch uses its fused Adam.
        family: The member of ``anode.family`` that is trained instead of a perceptron with zeros; empty for none. Its
            field has the hidden layers of ``sizes``, and ``zeros`` is its augmentation.
    """

    kind: str
    sizes: tuple[int, ...] = (7, 32, 32, 7)
    activations: tuple[str, ...] = ("relu", "relu", "none")
    time: bool = False
    zeros: int = 0
    batch: int = 64
    t1: float = 1.0
    tol: float = 1e-3
    members: int = 1
    epochs: int = 1
    double: bool = False
    field: str = "network"
    method: str = "dopri5"
    step: float = 0.0
    outputs: int = 1
    fused: bool = False
    family: str = ""

    @property
    def dim(self) -> int:
        """Dimension of the state."""
        return self.sizes[0]

    @property
    def times(self) -> Array:
        """The start and the times whose states are wanted."""
        return np.linspace(0.0, self.t1, max(2, self.outputs)).astype(self.dtype)

    @property
    def dtype(self) -> str:
        """NumPy's name of the precision."""
        return "float64" if self.double else "float32"

    def weights(self, member: int = 0) -> list[tuple[Array, Array]]:
        """Return matrices [outputs, inputs] and biases of all layers; time is the last input of the first layer."""
        if self.kind == "predict":
            return self._fitted_weights
        random = np.random.default_rng(member)
        made = []
        for i, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            columns = inputs + (self.time and i == 0)
            bound = 1 / math.sqrt(columns)
            matrix, bias = (random.uniform(-bound, bound, shape) for shape in ((outputs, columns), (outputs,)))
            made.append((matrix.astype(self.dtype), bias.astype(self.dtype)))
        return made

    def gates(self) -> list[Array]:
        """Return [3, outputs] per layer of ``squash``: slope and offset of its gate, and the slope of its shift."""
        random = np.random.default_rng(500)
        return [random.uniform(-1, 1, (3, outputs)).astype(self.dtype) for outputs in self.sizes[1:]]

    def head(self, member: int = 0) -> tuple[Array, Array]:
        """Return matrix and bias of the linear layer that predicts."""
        if self.kind == "predict":
            head = self.estimator.model_.head
            return head.weight.detach().numpy(), head.bias.detach().numpy()
        bound = 1 / math.sqrt(self.dim)
        random = np.random.default_rng(1000 + member)
        return random.uniform(-bound, bound, (1, self.dim)).astype(self.dtype), np.zeros(1, self.dtype)

    def state(self) -> Array:
        """Return the initial states, [batch, dim]."""
        if self.kind == "predict":
            scaled = (self.rows - self.estimator.offset_) / self.estimator.scale_
            return np.pad(scaled, ((0, 0), (0, self.zeros))).astype(self.dtype)
        if self.kind == "train":
            rows = self.data().x[self.order(0)[: self.batch]].numpy()
        else:
            rows = np.random.default_rng(7).uniform(0, 1, (self.batch, self.dim - self.zeros))
        return np.pad(rows, ((0, 0), (0, self.zeros))).astype(self.dtype)

    def data(self, member: int = 0) -> toy.Dataset:
        """Return the training data."""
        return points(self.dim - self.zeros, member)

    def order(self, epoch: int, member: int = 0) -> torch.Tensor:
        """Return the order of the points in an epoch, as in :func:`anode.fit`."""
        seeded = torch.Generator().manual_seed(member * 1_000_003 + epoch)
        return torch.randperm(len(self.data(member)), generator=seeded)

    @property
    def iterations(self) -> int:
        """Iterations per run: those of training, or 1 for a solve."""
        if self.kind != "train":
            return 1
        return self.epochs * -(-len(self.data()) // self.batch)

    def operations(self, nfe: float) -> float:
        """Return the multiplications and additions of one model, for a mean number of evaluations per solve.

        Twice as many again for a gradient. What is computed a second time is not counted. Only those of perceptrons
        are known; 0 for other right-hand sides.
        """
        if self.field not in ("network", "opaque"):
            return 0.0
        layers = zip(self.sizes, self.sizes[1:], strict=False)
        evaluation = sum(2 * self.batch * n * (m + (self.time and i == 0)) for i, (m, n) in enumerate(layers))
        return nfe * evaluation * (3 if self.kind in ("train", "gradient") else 1)

    @cached_property
    def estimator(self) -> ANODEClassifier:
        """A fitted classifier, the same in every process."""
        from anode.estimators.classifier import ANODEClassifier  # importing scikit-learn is slow

        data = toy.load("moons", seed=0)
        model = ANODEClassifier(augment=self.zeros, hidden=self.sizes[1], activation=self.activations[0], epochs=5)
        return model.set_params(random_state=0).fit(data.x.numpy(), data.labels.numpy())

    @cached_property
    def rows(self) -> Array:
        """The rows to predict."""
        return np.random.default_rng(1).uniform(-2, 2, (self.batch, self.dim - self.zeros)).astype(self.dtype)

    @cached_property
    def _fitted_weights(self) -> list[tuple[Array, Array]]:
        field: Any = self.estimator.model_.flow.field
        matrices = [weight.detach().numpy() for weight in field.weights]
        matrices[0] = np.concatenate([matrices[0], field.time_weight.detach().numpy()[:, None]], axis=1)
        return list(zip(matrices, (bias.detach().numpy() for bias in field.biases), strict=True))
