"""diffrax, compiled by XLA, with equinox for the network and optax for Adam.

The whole batch is one state with one step size, as in torchdiffeq. ``vmap`` combines
several models. The adjoint is the default, ``RecursiveCheckpointAdjoint``. ``DirectAdjoint`` takes at least twice as
long for training, and many times as long for density flows (measured).
"""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from anode.bench.sides import Work
from anode.bench.sides.fields_in_jax import Model, field, start
from anode.bench.tasks import Array, Task

jax.config.update("jax_platforms", "cpu")

METHODS = {"dopri5": diffrax.Dopri5, "euler": diffrax.Euler, "midpoint": diffrax.Midpoint}
STAGES = {"dopri5": 6, "euler": 1, "midpoint": 2}
"""Evaluations in every step."""


def work(task: Task) -> Work:
    """Prepare a task."""
    jax.config.update("jax_enable_x64", task.double)

    def network(member: int) -> Model:
        return field(task, member), tuple(jnp.asarray(part) for part in task.head(member))

    def solve(model: Model, y0: Any) -> diffrax.Solution:
        fixed = diffrax.ConstantStepSize()
        return diffrax.diffeqsolve(
            diffrax.ODETerm(model[0]),
            METHODS[task.method](),
            t0=0.0,
            t1=task.t1,
            dt0=task.step or None,
            y0=y0,
            saveat=diffrax.SaveAt(ts=task.times) if task.outputs > 1 else diffrax.SaveAt(t1=True),
            stepsize_controller=fixed if task.step else diffrax.PIDController(rtol=task.tol, atol=task.tol),
        )

    def end(model: Model, y0: Any) -> jax.Array:
        ys = jax.tree.leaves(solve(model, y0).ys)
        return jnp.concatenate([y.mean(0) if task.outputs > 1 else y[-1] for y in ys], 1)

    def loss(model: Model, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        solution = solve(model, jnp.concatenate([x, jnp.zeros((len(x), task.zeros))], 1))
        matrix, bias = model[1]
        value = optax.losses.huber_loss(solution.ys[-1] @ matrix.T + bias, y).mean()
        return value, solution.stats["num_steps"]

    adam = optax.adam(1e-3)

    def step(net: Model, state: Any, x: jax.Array, y: jax.Array) -> tuple[Model, Any, tuple[jax.Array, jax.Array]]:
        loss_and_steps, gradients = eqx.filter_value_and_grad(loss, has_aux=True)(net, x, y)
        updates, state = adam.update(gradients, state)
        return eqx.apply_updates(net, updates), state, loss_and_steps

    compiled_step = eqx.filter_jit(step if task.members == 1 else eqx.filter_vmap(step))

    def course() -> tuple[list[jax.Array], list[jax.Array]]:
        sets = [task.data(member) for member in range(task.members)]
        nets = [network(member) for member in range(task.members)]
        xs, ys = (np.stack([getattr(data, name).numpy() for data in sets]) for name in ("x", "y"))
        if task.members == 1:
            net, state = nets[0], adam.init(nets[0])
        else:
            net = jax.tree.map(lambda *parts: jnp.stack(parts), *nets)
            state = eqx.filter_vmap(adam.init)(net)
        losses, steps = [], []
        for epoch in range(task.epochs):
            orders = np.stack([task.order(epoch, member).numpy() for member in range(task.members)])
            for first in range(0, orders.shape[1], task.batch):
                batch = orders[:, first : first + task.batch, None]
                x, y = (np.take_along_axis(values, batch, axis=1) for values in (xs, ys))
                if task.members == 1:
                    x, y = x[0], y[0]
                net, state, (value, count) = compiled_step(net, state, x, y)
                losses.append(value)
                steps.append(count)
        return losses, steps

    def train() -> Array:
        return np.array([np.atleast_1d(value)[0] for value in course()[0]])

    net, y0 = network(0), start(task)
    forward = eqx.filter_jit(end)

    @eqx.filter_jit
    def value_and_gradient(net: Model, y0: Any) -> Any:
        def total(net: Model) -> tuple[jax.Array, jax.Array]:
            y1 = end(net, y0)
            return y1.sum(), y1

        return eqx.filter_value_and_grad(total, has_aux=True)(net)

    def gradient() -> Array:
        (_, y1), _ = jax.block_until_ready(value_and_gradient(net, y0))
        return np.asarray(y1)

    @eqx.filter_jit
    def classes(net: Model, rows: jax.Array, offset: jax.Array, scale: jax.Array) -> jax.Array:
        start = jnp.concatenate([(rows - offset) / scale, jnp.zeros((len(rows), task.zeros))], 1)
        matrix, bias = net[1]
        scores = end(net, start) @ matrix.T + bias
        return (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)

    def predict() -> Array:
        parts = (part.astype(task.dtype) for part in (task.estimator.offset_, task.estimator.scale_))
        return np.asarray(classes(net, task.rows, *parts))

    def nfe() -> Array:
        first = 1 if task.method == "dopri5" else 0  # at the start; none to choose a step: in 0.7.2 it is always 0.01
        steps = course()[1] if task.kind == "train" else [eqx.filter_jit(solve)(net, y0).stats["num_steps"]]
        return first + STAGES[task.method] * np.array(steps)

    runs = {"train": train, "gradient": gradient, "solve": lambda: np.asarray(forward(net, y0)), "predict": predict}
    return Work(runs[task.kind], nfe)
