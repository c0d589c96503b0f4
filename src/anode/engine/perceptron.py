"""Fields that describe themselves to the compiled engine, without tracing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from torch import Tensor

from anode.engine.compiled import Compiled
from anode.engine.program.program import Builder, Program
from anode.ode.field import Field


@dataclass(frozen=True)
class Perceptron:
    """The description of a multilayer perceptron for the compiled engine.

    Attributes:
        sizes: Sizes of the state, the hidden layers, and the state again.
        activations: Activation of each layer, including the last: the name of a unary function of programs, or
            ``"none"``.
        parameters: Time weights, if there are any; weight matrices; biases. Their shapes match ``sizes``. For a stack
            they have a leading dimension of members.
        time: Whether there are time weights.
        members: Number of stacked fields; ``None`` for a single field.
    """

    sizes: Sequence[int]
    activations: Sequence[str]
    parameters: tuple[Tensor, ...]
    time: bool
    members: int | None

    def compiled(self) -> Compiled:
        """Return the compiled field."""
        return Compiled(self.program, self.parameters, (False,) * len(self.parameters), self.members)

    @property
    def program(self) -> Program:
        """The program of the perceptron."""
        return perceptron_program(tuple(self.sizes), tuple(self.activations), self.time)


@cache
def perceptron_program(sizes: tuple[int, ...], activations: tuple[str, ...], time: bool) -> Program:
    """Return the program of a perceptron, with tensors in the order of :attr:`Perceptron.parameters`."""
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
    def perceptron(self) -> Perceptron | None:
        """Return the description of this field; ``None`` if the engine cannot run it."""
