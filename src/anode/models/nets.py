"""The paper's models: for vectors, and for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.checks import number, require, whole_number
from anode.models.augment import Augment, Zeros, as_augment, augmented_size
from anode.models.fields import ConvField, MLPField
from anode.models.flow import Flow
from anode.models.layers import Linear, check_state, members_of
from anode.models.model import Model, Outcome, as_input
from anode.ode.solver import Solver


class NeuralODE(Model):
    """A flow and then a linear map: a neural ODE, augmented if ``augment`` is above 0.

    ``settings`` holds the arguments it was made with, but for the solver, which is ``flow.solver``.

    Args:
        in_features: Size of an input.
        out_features: Size of a prediction.
        hidden: Width of the field's hidden layers.
        augment: How many zeros are appended to the input; 0 is the plain neural ODE. Or an :class:`anode.Augment`; such
            a model can be trained, but not be saved with :func:`anode.save`.
        layers: Number of the field's hidden layers.
        time: Whether the field depends on time.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        t1, solver, **settings: As for :class:`anode.Flow`.

    Example:
        >>> import torch, anode
        >>> model = anode.NeuralODE(2, 1, augment=5)
        >>> model(torch.rand(64, 2)).shape
        torch.Size([64, 1])
        >>> model.run(torch.rand(64, 2)).solution.success
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: int = 32,
        *,
        augment: int | Augment = 0,
        layers: int = 2,
        time: bool = True,
        activation: str = "relu",
        t1: float = 1.0,
        solver: Solver | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        _refuse_field("NeuralODE", settings)
        in_features = number("in_features", in_features, whole=True)
        out_features = number("out_features", out_features, whole=True)
        augmentation = as_augment(augment)
        state = augmented_size(augmentation, (in_features,))
        field = MLPField(state, hidden, layers=layers, time=time, activation=activation)
        self.flow = Flow(field, augment=augmentation, t1=t1, solver=solver, **settings)
        self.settings = {
            "in_features": in_features,
            "out_features": out_features,
            "hidden": field.hidden,
            "augment": augmentation.extra if type(augmentation) is Zeros else augmentation,
            "layers": field.layers,
            "time": time,
            "activation": activation,
            "t1": self.flow.t1,
        }
        self.in_features = in_features
        self.head = Linear(state, out_features)

    @property
    def members(self) -> int | None:
        return self.flow.members

    def run(self, x: Tensor, **options: Any) -> Outcome:
        check_state(x, self.in_features, self.members, "x")
        flown = self.flow.run(x, **options)
        return Outcome(self.head(flown.features), flown.features, flown.solution)


class ImageNeuralODE(Model):
    """A convolutional flow and then a linear map: a neural ODE for images, augmented if ``augment`` is above 0.

    ``settings`` holds the arguments it was made with, but for the solver, which is ``flow.solver``.

    Args:
        image: Channels, height and width of an input.
        classes: Size of a prediction.
        filters: Channels of the field's hidden layers.
        augment: How many channels of zeros are appended to the input; 0 is the plain neural ODE. Or an
            :class:`anode.Augment`, as :class:`NeuralODE` takes it.
        time: Whether the field depends on time. The paper's text says so; its parameter counts are those without.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        head_channels: How many channels of the features the linear map sees; by default all. The channels of the input
            alone give models with and without augmentation the same linear map.
        t1, solver, **settings: As for :class:`anode.Flow`.

    Example:
        >>> import torch, anode
        >>> model = anode.ImageNeuralODE((1, 28, 28), 10, augment=5)
        >>> model(torch.rand(4, 1, 28, 28)).shape
        torch.Size([4, 10])
        >>> sum(p.numel() for p in model.parameters())
        85462
        >>> model(torch.zeros(4, 1, 28, 28, dtype=torch.uint8)).shape  # bytes stand for numbers from 0 to 1
        torch.Size([4, 10])
    """

    def __init__(
        self,
        image: Sequence[int],
        classes: int,
        filters: int = 64,
        *,
        augment: int | Augment = 0,
        time: bool = True,
        activation: str = "relu",
        head_channels: int | None = None,
        t1: float = 1.0,
        solver: Solver | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        sizes = tuple(image) if isinstance(image, Sequence | np.ndarray) else ()
        require(len(sizes) == 3, "image", image, "three numbers: channels, height, width")
        _refuse_field("ImageNeuralODE", settings)
        self.image = sizes = tuple(number("image", size, whole=True) for size in sizes)
        classes = number("classes", classes, whole=True)
        augmentation = as_augment(augment, ConvField.features_dim)
        channels = augmented_size(augmentation, sizes, ConvField.features_dim)
        seen = channels if head_channels is None else whole_number(head_channels)
        fits = seen is not None and 0 < seen <= channels
        require(fits, "head_channels", head_channels, f"a whole number from 1 to the {channels} channels of the state")
        assert seen is not None
        field = ConvField(channels, filters, time=time, activation=activation)
        self.flow = Flow(field, augment=augmentation, t1=t1, solver=solver, **settings)
        self.settings = {
            "image": list(sizes),
            "classes": classes,
            "filters": field.filters,
            "augment": augmentation.extra if type(augmentation) is Zeros else augmentation,
            "time": time,
            "activation": activation,
            "head_channels": None if head_channels is None else seen,
            "t1": self.flow.t1,
        }
        self.head = nn.Linear(seen * sizes[1] * sizes[2], classes)

    @property
    def members(self) -> int | None:
        return None

    def run(self, x: Tensor, **options: Any) -> Outcome:
        if x.shape[1:] != self.image:
            raise ValueError(
                f"x: takes images of shape [batch, {', '.join(map(str, self.image))}], got {tuple(x.shape)}"
            )
        flown = self.flow.run(as_input(x, self.head.weight) if x.dtype == torch.uint8 else x, **options)
        seen = self.head.in_features // (self.image[1] * self.image[2])
        return Outcome(self.head(flown.features[:, :seen].flatten(1)), flown.features, flown.solution)


class ResNet(Model):
    """The baseline: ``h + f_i(h)`` with a network of its own in every layer, then a linear map.

    Args:
        in_features: Size of an input.
        out_features: Size of a prediction.
        hidden: Width of the two hidden layers of every f_i.
        layers: How many f_i.
        activation: One of ``anode.models.fields.ACTIVATIONS``.

    Example:
        >>> import torch, anode
        >>> anode.ResNet(2, 1, hidden=32, layers=5)(torch.rand(64, 2)).shape
        torch.Size([64, 1])
    """

    def __init__(
        self, in_features: int, out_features: int, hidden: int = 32, layers: int = 5, *, activation: str = "relu"
    ) -> None:
        super().__init__()
        given = {"in_features": in_features, "out_features": out_features, "hidden": hidden, "layers": layers}
        in_features, out_features, hidden, layers = (number(name, size, whole=True) for name, size in given.items())
        self.settings = {
            "in_features": in_features,
            "out_features": out_features,
            "hidden": hidden,
            "layers": layers,
            "activation": activation,
        }
        self.in_features = in_features
        self.blocks = nn.ModuleList(
            MLPField(in_features, hidden, time=False, activation=activation) for _ in range(layers)
        )
        self.head = Linear(in_features, out_features)

    @property
    def members(self) -> int | None:
        return members_of(self.head.bias)

    def run(self, x: Tensor, **options: Any) -> Outcome:
        features = self.trajectory(x)[-1]
        return Outcome(self.head(features), features)

    def trajectory(self, x: Tensor) -> list[Tensor]:
        """The input and the state after every layer."""
        check_state(x, self.in_features, self.members, "x")
        states, now = [x], torch.zeros(())
        for block in self.blocks:
            states.append(states[-1] + block(now, states[-1]))
        return states


def _refuse_field(model: str, settings: dict[str, Any]) -> None:
    """Say what to do for a model with a field of one's own."""
    if "field" in settings:
        raise TypeError(
            f"field: {model} builds its own field and takes no other, got {type(settings['field']).__name__}; pass a "
            "field of your own to anode.Flow(field, augment=...) and put a linear layer behind the flow"
        )
