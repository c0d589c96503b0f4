"""Fields that the compiled engine can see through."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anode.ode.field import Field


@dataclass(frozen=True)
class Perceptron:
    """What the compiled engine has to know of a field.

    Attributes:
        sizes: Of the state, the hidden layers, and the state again.
        activations: Of each layer's output, the slope's included; from ``anode.engine.native.ACTIVATIONS``.
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

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """What the parameters have to have."""
        layers = list(zip(self.sizes[1:], self.sizes, strict=False))
        front = () if self.members is None else (self.members,)
        biases = [(outputs,) for outputs, _ in layers]
        return [(*front, *shape) for shape in (*(biases[:1] if self.time else ()), *layers, *biases)]


class Transparent(Field):
    """A field that can tell the compiled engine what it computes."""

    @abstractmethod
    def perceptron(self) -> Perceptron | None:
        """What the engine has to know to integrate this field; ``None`` if it cannot."""
