"""What all models have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anode.ode.solution import Solution


@dataclass
class Outcome:
    """What a model makes of some inputs.

    Attributes:
        prediction: The output.
        features: What the output is a linear map of.
        solution: The solve that the features come from, with its cost and status; ``None`` for a model without one.
    """

    prediction: Tensor
    features: Tensor
    solution: Solution | None = None


class Model(nn.Module, ABC):
    """A network that :func:`anode.fit` can train.

    Models of one shape can be stacked (:func:`anode.stack`) and then take inputs ``[members, batch, ...]``.
    """

    @property
    @abstractmethod
    def members(self) -> int | None:
        """How many models are stacked in this one; ``None`` for a model by itself."""

    @abstractmethod
    def run(self, x: Tensor, **options: Any) -> Outcome:
        """Everything about some inputs. A failed solve does not raise here: look at ``outcome.solution``.

        Args:
            x: The inputs.
            **options: Options of :func:`anode.solve` for this time only, such as tighter tolerances; a model that
                solves nothing ignores them.
        """

    def forward(self, x: Tensor) -> Tensor:
        """The prediction; :class:`anode.SolveError` if the solve failed."""
        return checked(self.run(x)).prediction

    def features(self, x: Tensor) -> Tensor:
        """The features; :class:`anode.SolveError` if the solve failed."""
        return checked(self.run(x)).features


def checked(outcome: Outcome) -> Outcome:
    """The outcome itself, or :class:`anode.SolveError` if its solve failed."""
    if outcome.solution is not None:
        outcome.solution.check()
    return outcome


def as_input(x: Tensor, like: Tensor) -> Tensor:
    """What a model is shown: images of bytes as numbers from 0 to 1, on the model's device.

    Example:
        >>> as_input(torch.tensor([0, 51, 255], dtype=torch.uint8), torch.empty(()))
        tensor([0.0000, 0.2000, 1.0000])
    """
    x = x.to(like.device)
    return x.to(like.dtype).div_(255) if x.dtype == torch.uint8 else x
