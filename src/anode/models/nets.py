"""The paper's models: for vectors, and for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anode.models.augment import Zeros
from anode.models.fields import ConvField, MLPField
from anode.models.flow import Flow
from anode.models.layers import Linear, check_state, members_of
from anode.models.model import Model, Outcome, as_input
from anode.ode.inputs import number, require


class NeuralODE(Model):
    """A flow and then a linear map: a neural ODE, augmented if ``augment`` is above 0.

    ``settings`` holds the arguments it was made with, from which an equal one can be made.

    Args:
        in_features: Size of an input.
        out_features: Size of a prediction.
        hidden: Width of the field's hidden layers.
        augment: How many zeros are appended to the input; 0 is the plain neural ODE.
        layers: Number of the field's hidden layers.
        time: Whether the field depends on time.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        **solver: Further options of :class:`anode.Flow`, such as ``rtol``.

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
        augment: int = 0,
        layers: int = 2,
        time: bool = True,
        activation: str = "relu",
        **solver: Any,
    ) -> None:
        super().__init__()
        _check_sizes(in_features=in_features, out_features=out_features)
        number("augment", augment, whole=True, zero=True)
        self.settings = {
            "in_features": in_features,
            "out_features": out_features,
            "hidden": hidden,
            "augment": augment,
            "layers": layers,
            "time": time,
            "activation": activation,
            **solver,
        }
        field = MLPField(in_features + augment, hidden, layers=layers, time=time, activation=activation)
        self.in_features = in_features
        self.flow = Flow(field, augment=Zeros(augment), **solver)
        self.head = Linear(in_features + augment, out_features)

    @property
    def members(self) -> int | None:
        return self.flow.members

    def run(self, x: Tensor) -> Outcome:
        check_state(x, self.in_features, self.members, "x")
        flown = self.flow.run(x)
        return Outcome(self.head(flown.features), flown.features, flown.solution)


class ImageNeuralODE(Model):
    """A convolutional flow and then a linear map: a neural ODE for images, augmented if ``augment`` is above 0.

    ``settings`` holds the arguments it was made with, from which an equal one can be made.

    Args:
        image: Channels, height and width of an input.
        classes: Size of a prediction.
        filters: Channels of the field's hidden layers.
        augment: How many channels of zeros are appended to the input; 0 is the plain neural ODE.
        time: Whether the field depends on time. The paper's text says so; its parameter counts are those without.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        head_channels: How many channels of the features the linear map sees; by default all. The channels of the input
            alone give models with and without augmentation the same linear map.
        **solver: Further options of :class:`anode.Flow`, such as ``rtol``.

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
        augment: int = 0,
        time: bool = True,
        activation: str = "relu",
        head_channels: int | None = None,
        **solver: Any,
    ) -> None:
        super().__init__()
        sizes = tuple(image) if isinstance(image, Sequence) else ()
        require(len(sizes) == 3, "image", image, "three numbers: channels, height, width")
        for size in sizes:
            number("image", size, whole=True)
        _check_sizes(classes=classes)
        number("augment", augment, whole=True, zero=True)
        self.image = sizes
        channels = sizes[0] + augment
        seen = channels if head_channels is None else head_channels
        fits = isinstance(seen, int) and 0 < seen <= channels
        require(fits, "head_channels", head_channels, f"a whole number from 1 to the {channels} channels of the state")
        self.settings = {
            "image": list(sizes),
            "classes": classes,
            "filters": filters,
            "augment": augment,
            "time": time,
            "activation": activation,
            "head_channels": head_channels,
            **solver,
        }
        field = ConvField(channels, filters, time=time, activation=activation)
        self.flow = Flow(field, augment=augment, **solver)
        self.head = nn.Linear(seen * sizes[1] * sizes[2], classes)

    @property
    def members(self) -> int | None:
        return None

    def run(self, x: Tensor) -> Outcome:
        if x.shape[1:] != self.image:
            raise ValueError(
                f"x: takes images of shape [batch, {', '.join(map(str, self.image))}], got {tuple(x.shape)}"
            )
        flown = self.flow.run(as_input(x, self.head.weight) if x.dtype == torch.uint8 else x)
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
        _check_sizes(in_features=in_features, out_features=out_features, layers=layers)
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

    def run(self, x: Tensor) -> Outcome:
        features = self.trajectory(x)[-1]
        return Outcome(self.head(features), features)

    def trajectory(self, x: Tensor) -> list[Tensor]:
        """The input and the state after every layer."""
        check_state(x, self.in_features, self.members, "x")
        states, now = [x], torch.zeros(())
        for block in self.blocks:
            states.append(states[-1] + block(now, states[-1]))
        return states


def _check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        number(name, size, whole=True)
