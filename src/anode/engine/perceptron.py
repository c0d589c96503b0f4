"""Fields that tell the compiled engine what they compute."""

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
    """What the compiled engine has to know of a field.

    Attributes:
        sizes: Of the state, the hidden layers, and the state again.
        activations: Of each layer's output, the slope's included; names of unary functions of programs, or ``"none"``.
        parameters: Weights of time at the input, if there are any; weight matrices; biases. Stacked ones have a
            dimension of members in front.
        time: Whether there are weights of time.
        members: How many fields are stacked; ``None`` for one by itself.
    """

    sizes: Sequence[int]
    activations: Sequence[str]
    parameters: tuple[Tensor, ...]
    time: bool
    members: int | None

    def compiled(self) -> Compiled | None:
        """The same for the engine; ``None`` if the parameters have other shapes than the layers."""
        if [p.shape for p in self.parameters] != self.shapes:
            return None
        return Compiled(self.program, self.parameters, (False,) * len(self.parameters), self.members)

    @property
    def program(self) -> Program:
        """What it computes."""
        return perceptron_program(tuple(self.sizes), tuple(self.activations), self.time)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """What the parameters have to have."""
        layers = list(zip(self.sizes[1:], self.sizes, strict=False))
        front = () if self.members is None else (self.members,)
        biases = [(outputs,) for outputs, _ in layers]
        return [(*front, *shape) for shape in (*(biases[:1] if self.time else ()), *layers, *biases)]


@cache
def perceptron_program(sizes: tuple[int, ...], activations: tuple[str, ...], time: bool) -> Program:
    """The program of a perceptron, whose tensors are in the order of :attr:`Perceptron.parameters`."""
    builder = Builder(sizes[0])
    times = builder.tensor((sizes[1],)) if time else None
    weights = [builder.tensor((n, m)) for m, n in pairwise(sizes)]
    biases = [builder.tensor((n,)) for n in sizes[1:]]
    x = builder.state(sizes[0])
    if times is not None:  # the weights of time are those of one more input
        x, weights[0] = np.append(builder.time(), x), np.column_stack([times, weights[0]])
    for weight, bias, activation in zip(weights, biases, activations, strict=True):
        x = builder.linear(x, weight, bias)
        if activation != "none":
            numbers = (1.0, 20.0) if activation == "softplus" else ()
            x = builder.unary(activation, x, *numbers)
    return builder.finish(x)


class Transparent(Field):
    """A field that can tell the compiled engine what it computes."""

    @abstractmethod
    def perceptron(self) -> Perceptron | None:
        """What the engine has to know to integrate this field; ``None`` if it cannot."""
