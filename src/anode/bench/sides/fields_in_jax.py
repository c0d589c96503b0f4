"""The right-hand sides of :mod:`fields_in_torch` in JAX, as equinox modules."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from anode.bench.tasks import RATES, SPIRAL, Task

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
}
Model = tuple[Any, Any]
"""A right-hand side, and matrix and bias of the linear layer that predicts."""


class Network(eqx.Module):
    """A perceptron."""

    weights: list[tuple[jax.Array, jax.Array]]
    activations: tuple[str, ...] = eqx.field(static=True)
    time: bool = eqx.field(static=True)

    def __init__(self, task: Task, member: int) -> None:
        self.weights = [(jnp.asarray(matrix), jnp.asarray(bias)) for matrix, bias in task.weights(member)]
        self.activations, self.time = task.activations, task.time

    def __call__(self, t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        if self.time:
            y = jnp.concatenate([y, jnp.broadcast_to(t, (len(y), 1)).astype(y.dtype)], 1)
        for (matrix, bias), activation in zip(self.weights, self.activations, strict=True):
            y = ACTIVATIONS[activation](y @ matrix.T + bias)
        return y


class Squash(eqx.Module):
    """Layers whose outputs are scaled and shifted by functions of time."""

    weights: list[tuple[jax.Array, jax.Array]]
    gates: list[jax.Array]
    activations: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, task: Task, member: int) -> None:
        self.weights = [(jnp.asarray(matrix), jnp.asarray(bias)) for matrix, bias in task.weights(member)]
        self.gates, self.activations = [jnp.asarray(gates) for gates in task.gates()], task.activations

    def __call__(self, t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        for (matrix, bias), gates, activation in zip(self.weights, self.gates, self.activations, strict=True):
            slope, offset, shift = gates
            y = ACTIVATIONS[activation]((y @ matrix.T + bias) * jax.nn.sigmoid(slope * t + offset) + shift * t)
        return y


class Cubic(eqx.Module):
    """``y**3 @ A`` with a learned matrix A: a spiral."""

    matrix: jax.Array

    def __init__(self, task: Task, member: int) -> None:
        self.matrix = jnp.asarray(SPIRAL, dtype=task.dtype)

    def __call__(self, t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        return y**3 @ self.matrix


class CubicNetwork(Network):
    """A perceptron of the cubes of the state."""

    def __call__(self, t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        return super().__call__(t, y**3, args)


class LotkaVolterra(eqx.Module):
    """The Lotka-Volterra equations of predators and prey, with learned rates."""

    rates: jax.Array

    def __init__(self, task: Task, member: int) -> None:
        self.rates = jnp.asarray(RATES, dtype=task.dtype)

    def __call__(self, t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        prey, predators = y[:, 0], y[:, 1]
        births, eaten, deaths, fed = self.rates
        return jnp.stack([births * prey - eaten * prey * predators, fed * prey * predators - deaths * predators], -1)


class SecondOrder(Network):
    """A second-order ODE, whose acceleration is a perceptron."""

    def __call__(self, t: jax.Array, y: jax.Array, args: Any) -> jax.Array:
        velocity = y[:, y.shape[1] // 2 :]
        return jnp.concatenate([velocity, super().__call__(t, y, args)], 1)


class Density(Network):
    """A perceptron that moves points, with minus its divergence for the log-density.

    With gradient, ``linearize`` is about as fast as ``vjp`` and twice as fast as one ``jvp`` per direction (measured).
    """

    def __call__(self, t: jax.Array, y: Any, args: Any) -> Any:
        points, _ = y
        slopes, along = jax.linearize(lambda z: super(Density, self).__call__(t, z, args), points)
        basis = jnp.eye(points.shape[1], dtype=points.dtype)
        columns = [along(jnp.broadcast_to(unit, points.shape))[:, i] for i, unit in enumerate(basis)]
        return slopes, -sum(columns)[:, None]


FIELDS = {
    "network": Network,
    "squash": Squash,
    "cubic": Cubic,
    "cubic network": CubicNetwork,
    "lotka-volterra": LotkaVolterra,
    "second order": SecondOrder,
    "density": Density,
}


def field(task: Task, member: int = 0) -> Any:
    """Return the right-hand side of a task."""
    return FIELDS[task.field](task, member)


def start(task: Task) -> Any:
    """Return the initial state: an array or, for ``density``, a tuple."""
    y0 = jnp.asarray(task.state())
    return (y0, jnp.zeros((len(y0), 1), y0.dtype)) if task.field == "density" else y0
