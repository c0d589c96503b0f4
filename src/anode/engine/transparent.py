"""Fields that describe themselves to the compiled engine, without tracing."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from itertools import pairwise

import numpy as np

from anode.engine.compiled import Compiled
from anode.engine.program.program import Builder, Program
from anode.ode.field import Field


@cache
def perceptron_program(sizes: tuple[int, ...], activations: tuple[str, ...], time: bool) -> Program:
    """Return the program of a multilayer perceptron.

    Its tensors are the time weights, if there are any, then the weight matrices, then the biases.

    Args:
        sizes: Sizes of the state, the hidden layers, and the result.
        activations: Activation of each layer, including the last: the name of a unary function of programs, or
            ``"none"``.
        time: Whether there are time weights.
    """
    builder = Builder(sizes[0])
    times = builder.tensor((sizes[1],)) if time else None
    weights = [builder.tensor((n, m)) for m, n in pairwise(sizes)]
    biases = [builder.tensor((n,)) for n in sizes[1:]]
    x = builder.state(sizes[0])
    if times is not None:  # time is one more input
        x, weights[0] = np.append(builder.time(), x), np.column_stack([times, weights[0]])
    for weight, bias, activation in zip(weights, biases, activations, strict=True):
        x = builder.linear(x, weight, bias)
        if activation != "none":
            numbers = (1.0, 20.0) if activation == "softplus" else ()
            x = builder.unary(activation, x, *numbers)
    return builder.finish(x)


class Transparent(Field):
    """A field that can describe itself to the compiled engine."""

    @abstractmethod
    def compiled(self) -> Compiled | None:
        """Return this field for the engine; ``None`` if the engine cannot run it."""
