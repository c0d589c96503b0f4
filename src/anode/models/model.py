"""What all models have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anode.checks import describe
from anode.models.layers import Stackable
from anode.ode.field import Field
from anode.ode.solution import Solution


@dataclass
class Outcome:
    """What a model makes of some inputs.

    Attributes:
        prediction: The output.
        features: What the output is computed from: the state at the end of the flow, a tensor or a tuple of them.
        solution: The solve that the features come from, with its cost and status; ``None`` for a model without one.
        integrals: Integrals along the trajectories, [batch] each, of a run that was asked for them.
    """

    prediction: Any
    features: Any
    solution: Solution | None = None
    integrals: tuple[Tensor, ...] = ()

    def check(self) -> Outcome:
        """Return the outcome itself, or raise :class:`anode.SolveError` if its solve failed."""
        if self.solution is not None:
            self.solution.check()
        return self


class Model(nn.Module, ABC):
    """A network that :func:`anode.fit` can train, made of parts such as a flow and a head.

    Models of one shape can be stacked (:func:`anode.stack`) and then take inputs ``[members, batch, ...]``.

    Attributes:
        default_loss: The loss that :func:`anode.fit` trains it with unless it is given another; ``None`` if the targets
            decide.
    """

    default_loss: ClassVar[Callable[..., Tensor] | None] = None

    @property
    def members(self) -> int | None:
        """How many models are stacked in this one; ``None`` for a model by itself."""
        return members_in(self)

    @abstractmethod
    def run(self, x: Tensor, **options: Any) -> Outcome:
        """Everything about some inputs. A failed solve does not raise here: look at ``outcome.solution``.

        Args:
            x: The inputs.
            **options: Options of :func:`anode.solve` for this time only, such as tighter tolerances, and those of
                :meth:`anode.Flow.run`; a model that solves nothing ignores them.
        """

    def forward(self, x: Tensor) -> Any:
        """The prediction; :class:`anode.SolveError` if the solve failed."""
        return self.run(x).check().prediction

    def features(self, x: Tensor) -> Any:
        """The features; :class:`anode.SolveError` if the solve failed."""
        return self.run(x).check().features


def over_paths(once: Callable[[], Outcome], paths: int) -> Outcome:
    """The outcome of a model whose solves are noisy: means over several of them.

    Args:
        once: Runs the model.
        paths: How often.
    """
    if paths == 1:
        return once()
    outcomes = [once() for _ in range(paths)]
    failed = [each.solution for each in outcomes if each.solution is not None and not each.solution.success]
    prediction, features = (
        tree_map(lambda *parts: torch.stack(parts).mean(0), *each)
        for each in zip(*((outcome.prediction, outcome.features) for outcome in outcomes), strict=True)
    )
    return Outcome(prediction, features, failed[0] if failed else outcomes[-1].solution)


class Predictor(Model):
    """Any module that maps a batch to predictions, as a model.

    Args:
        module: The module, which keeps its own parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def run(self, x: Tensor, **options: Any) -> Outcome:
        prediction = self.module(x)
        return Outcome(prediction, prediction)


def as_model(module: Any) -> Model:
    """A module as a model."""
    if isinstance(module, Model):
        return module
    if not isinstance(module, nn.Module):
        raise TypeError(f"model: takes a torch.nn.Module, such as an anode.NeuralODE, got {type(module).__name__}")
    return Predictor(module)


def members_in(module: nn.Module) -> int | None:
    """How many members are stacked in a module, as its parts know; ``None`` for one by itself.

    An attribute ``members`` of a module that knows nothing of stacks means something else.
    """
    found = (part.members for part in module.children() if isinstance(part, Model | Field | Stackable))
    return next((members for members in found if members is not None), None)


def check_input(x: Any, like: Tensor, name: str = "x") -> None:
    """Raise ``TypeError`` unless x is a tensor in the precision of a model, or of bytes.

    Args:
        x: What the model is given.
        like: A parameter of the model.
        name: What the error calls it.
    """
    if not isinstance(x, Tensor):
        hint = f"convert it with torch.as_tensor(x, dtype={like.dtype})"
        raise TypeError(f"{name}: takes a tensor, got {describe(x)}; {hint}")
    if x.dtype not in (like.dtype, torch.uint8) and not torch.is_autocast_enabled(x.device.type):
        takes = f"{like.dtype}, as the model's parameters are, or torch.uint8, which is scaled to [0, 1]"
        raise TypeError(f"{name}: takes {takes}, got {x.dtype}; convert it with x.to({like.dtype})")


def as_input(x: Tensor, like: Tensor) -> Tensor:
    """What a model is shown: images of bytes as numbers from 0 to 1, on the model's device.

    Example:
        >>> as_input(torch.tensor([0, 51, 255], dtype=torch.uint8), torch.empty(()))
        tensor([0.0000, 0.2000, 1.0000])
    """
    x = x.to(like.device)
    return x.to(like.dtype).div_(255) if x.dtype == torch.uint8 else x
