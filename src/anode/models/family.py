"""Build augmented neural ODEs and their successors by name, for points and for images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from anode.checks import lookup, number, require
from anode.models.augment import Augment, Zeros, augmented_size
from anode.models.control import DataControl, WithInput
from anode.models.fields import ConvField, MLPField
from anode.models.layers import ImageHead
from anode.models.learned import Constant, Learned
from anode.models.motion import HeavyBall, SecondOrder, WithVelocity
from anode.models.nets import ImageNeuralODE, NeuralODE

HIDDEN = 16
"""Width of the hidden layer of networks that compute a part of the initial state."""


class Shape:
    """Builds networks for points or for images.

    Args:
        inputs: Size of a point, or channels, height and width of an image.
        network: The arguments of the field's network.
    """

    def __init__(self, inputs: int | Sequence[int], network: dict[str, Any]) -> None:
        sizes = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        require(len(sizes) in (1, 3), "inputs", inputs, "the size of a point, or channels, height, width of an image")
        self.sizes = tuple(number("inputs", size, whole=True) for size in sizes)
        self.is_image, self.dim, self.features = len(sizes) == 3, -len(sizes), self.sizes[0]
        self.network = network

    def layer(self, inputs: int, outputs: int) -> nn.Module:
        """Return a linear map, or a 3x3 convolution for images."""
        return nn.Conv2d(inputs, outputs, 3, padding=1) if self.is_image else nn.Linear(inputs, outputs)

    def layers(self, inputs: int, outputs: int) -> nn.Module:
        """Return a network with one hidden layer."""
        return nn.Sequential(self.layer(inputs, HIDDEN), nn.ReLU(), self.layer(HIDDEN, outputs))

    def field(self, outputs: int, inputs: int) -> MLPField | ConvField:
        """Return the network of a field, which may take more features than it returns."""
        return (ConvField if self.is_image else MLPField)(outputs, inputs=inputs, **self.network)


Parts = tuple[Augment, nn.Module | None]
"""An augmentation and a field; ``None`` for the default field on augmented states."""


def _zeros(shape: Shape, extra: int) -> Parts:
    return Zeros(extra, shape.dim), None


def _constant(shape: Shape, extra: int) -> Parts:
    return Constant(extra, shape.dim), None


def _linear(shape: Shape, extra: int) -> Parts:
    return Learned(shape.layer(shape.features, extra), dim=shape.dim), None


def _hidden(shape: Shape, extra: int) -> Parts:
    return Learned(shape.layers(shape.features, extra), dim=shape.dim), None


def _control(shape: Shape, extra: int) -> Parts:
    size = shape.features + extra
    return WithInput(extra, shape.dim), DataControl(shape.field(size, size + shape.features))


def _second_order(shape: Shape, extra: int) -> Parts:
    size = shape.features + extra
    return WithVelocity(extra, dim=shape.dim), SecondOrder(shape.field(size, 2 * size))


def _second_order_learned(shape: Shape, extra: int) -> Parts:
    size = shape.features + extra
    start = shape.layers(size, size)
    return WithVelocity(extra, start, shape.dim), SecondOrder(shape.field(size, 2 * size))


def _heavy_ball(shape: Shape, extra: int) -> Parts:
    size = shape.features + extra
    return WithVelocity(extra, shape.layers(size, size), shape.dim), HeavyBall(shape.field(size, size))


def _heavy_ball_generalised(shape: Shape, extra: int) -> Parts:
    size = shape.features + extra
    field = HeavyBall(shape.field(size, size), generalised=True)
    return WithVelocity(extra, shape.layers(size, size), shape.dim), field


FAMILY: dict[str, Callable[[Shape, int], Parts]] = {
    "zeros": _zeros,
    "constant": _constant,
    "linear": _linear,
    "hidden": _hidden,
    "control": _control,
    "second-order": _second_order,
    "second-order-learned": _second_order_learned,
    "heavy-ball": _heavy_ball,
    "heavy-ball-generalised": _heavy_ball_generalised,
}
"""The members of the family by name. Heavy balls learn their initial velocity, as in the paper that introduced them."""
NEED_EXTRA = ("constant", "linear", "hidden")
"""The members that would be plain neural ODEs without added dimensions."""


def build(
    name: str,
    inputs: int | Sequence[int],
    outputs: int,
    *,
    augment: int = 0,
    head_channels: int | None = None,
    t1: float = 1.0,
    solver: Any = None,
    **network: Any,
) -> NeuralODE:
    """Build a model of the family.

    Args:
        name: One of ``anode.family.FAMILY``: ``"zeros"`` (the paper's; a plain neural ODE if ``augment`` is 0),
            ``"constant"`` (a learned constant), ``"linear"`` and ``"hidden"`` (learned, without and with a hidden
            layer), ``"control"`` (data control), ``"second-order"`` (initially at rest),
            ``"second-order-learned"`` (with a learned initial velocity), ``"heavy-ball"`` or
            ``"heavy-ball-generalised"``.
        inputs: Size of a point, or channels, height and width of an image.
        outputs: Size of a prediction.
        augment: Number of features, or channels, to add. With data control and second-order flows they are zeros,
            which are added to the state or position.
        head_channels: As for :class:`anode.ImageNeuralODE`; only for images.
        t1, solver: As for :class:`anode.Flow`.
        **network: Settings of the field's network: ``hidden``, ``layers``, ``time`` and ``activation`` of an
            :class:`anode.MLPField`, or ``filters``, ``time`` and ``activation`` of an :class:`anode.ConvField`.

    Example:
        >>> import torch, anode
        >>> anode.family.build("second-order", 2, 1, hidden=16)(torch.rand(8, 2)).shape
        torch.Size([8, 1])
        >>> anode.family.build("hidden", (1, 8, 8), 10, augment=2, filters=4)(torch.rand(8, 1, 8, 8)).shape
        torch.Size([8, 10])
    """
    parts, shape = lookup("name", name, FAMILY), Shape(inputs, network)
    extra = number("augment", augment, whole=True, zero=name not in NEED_EXTRA)
    augmentation, field = parts(shape, extra)
    options = {"augment": augmentation, "t1": t1, "solver": solver}
    if not shape.is_image:
        require(head_channels is None, "head_channels", head_channels, "no value without images")
        made = network if field is None else {"field": field}
        return NeuralODE(shape.features, outputs, **made, **options)
    if field is None:
        return ImageNeuralODE(shape.sizes, outputs, head_channels=head_channels, **network, **options)
    channels = augmented_size(augmentation, shape.sizes, shape.dim)
    seen = augmentation.shown(channels, shape.features) if head_channels is None else head_channels
    head = ImageHead((number("head_channels", seen, whole=True), *shape.sizes[1:]), outputs)
    return NeuralODE(field=field, head=head, **options)
