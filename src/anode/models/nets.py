"""Neural ODEs: a flow and a head, with the paper's networks or with your own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.checks import number, require, whole_number
from anode.models.augment import Augment, as_augment, augmented_size
from anode.models.description import described
from anode.models.fields import ConvField, MLPField
from anode.models.flow import PAPER, Flow, features_dim
from anode.models.layers import ImageHead, LinearHead, check_state, members_of
from anode.models.misfit import tried
from anode.models.model import Model, Outcome, as_input, check_input, over_paths
from anode.ode.solver import Solver, check_settings


@described
class NeuralODE(Model):
    """A flow and then a head: a neural ODE, augmented if ``augment`` is above 0.

    ``NeuralODE(in_features, out_features)`` is the paper's model for vectors: an :class:`anode.MLPField` and a linear
    map. Pass ``field`` and ``head`` for networks of your own, on states of any shape.

    Args:
        in_features: Size of an input. Not needed beside ``field`` and ``head``.
        out_features: Size of a prediction. Not needed beside ``head``.
        hidden, layers, time, activation: Those of the :class:`anode.MLPField`.
        augment: How many zeros are appended to the input; 0 is the plain neural ODE. Or an :class:`anode.Augment`.
        field: f(t, h), any ``nn.Module``, in place of the perceptron. Zeros are appended to its attribute
            ``features_dim`` if it has one, else to the last dimension.
        head: Maps the state at the end of the flow to a prediction, any ``nn.Module``. Defaults to a linear map, which
            sees the position of a second-order flow, and not the input that a flow with data control holds.
        t1, solver, **settings: As for :class:`anode.Flow`.

    Attributes:
        settings: The arguments that build a model like this one.

    Example:
        >>> import torch, anode
        >>> model = anode.NeuralODE(2, 1, augment=5)
        >>> model(torch.rand(64, 2)).shape
        torch.Size([64, 1])
        >>> model.run(torch.rand(64, 2)).solution.success
        True
        >>> class Swirl(torch.nn.Module):
        ...     def __init__(self, dim):
        ...         super().__init__()
        ...         self.linear = torch.nn.Linear(dim, dim)
        ...     def forward(self, t, h):
        ...         return torch.sin(self.linear(h) + t)
        >>> anode.NeuralODE(field=Swirl(2 + 3), head=torch.nn.Linear(5, 4), augment=3)(torch.rand(64, 2)).shape
        torch.Size([64, 4])
    """

    def __init__(
        self,
        in_features: int | None = None,
        out_features: int | None = None,
        hidden: int | None = None,
        *,
        augment: int | Augment = 0,
        layers: int | None = None,
        time: bool | None = None,
        activation: str | None = None,
        field: nn.Module | None = None,
        head: nn.Module | None = None,
        t1: float = 1.0,
        solver: Solver | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        check_settings(settings, type(self))
        described = {"hidden": hidden, "layers": layers, "time": time, "activation": activation}
        given: dict[str, Any] = {name: value for name, value in described.items() if value is not None}
        augmentation = as_augment(augment, features_dim(field))
        self.in_features = number("in_features", in_features, whole=True, optional=field is not None)
        state = None if self.in_features is None else augmented_size(augmentation, (self.in_features,))
        if field is None:
            assert state is not None
            field = MLPField(state, **given)
        else:
            takes = "nothing beside field, which takes the place of the perceptron it describes"
            require(not given, next(iter(given), ""), next(iter(given.values()), None), takes)
        self.flow = Flow(field, augment=augmentation, t1=t1, solver=solver, **settings)
        if head is None:
            require(state is not None, "in_features", None, "the size of an input, or pass head=, a module")
            assert state is not None
            assert self.in_features is not None
            seen = augmentation.shown(state, self.in_features)
            head = LinearHead(seen, number("out_features", out_features, whole=True), state)
        else:
            require(out_features is None, "out_features", out_features, "nothing beside head, which says it already")
            require(isinstance(head, nn.Module), "head", head, "a torch.nn.Module")
        self.head: Any = head

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a model like this one, as its parts are now."""
        field, head = self.flow.field, self.head
        shared = {"augment": self.flow.augment_setting, "t1": self.flow.t1}
        if self.flow.solver != PAPER:
            shared["solver"] = self.flow.solver
        sizes: dict[str, Any] = {} if self.in_features is None else {"in_features": self.in_features}
        shown = self.flow.augment.shown
        if self.in_features and type(head) is LinearHead and head.in_features == shown(head.features, self.in_features):
            sizes["out_features"] = head.out_features
        else:
            sizes["head"] = head
        if type(field) is not MLPField or self.in_features is None:
            return {**sizes, "field": field, **shared}
        return {**sizes, **{name: value for name, value in field.settings.items() if name != "dim"}, **shared}

    @property
    def members(self) -> int | None:
        return self.flow.members

    def check(self, x: Tensor) -> None:
        """Raise ``ValueError`` or ``TypeError`` unless x is an input of this model."""
        if self.in_features is not None:
            check_input(x, next(self.parameters()))
            check_state(x, self.in_features, self.members, "x")

    def run(self, x: Tensor, **options: Any) -> Outcome:
        self.check(x)
        if x.dtype == torch.uint8:
            x = as_input(x, next(self.parameters()))
        return over_paths(lambda: self._run_once(x, **options), self.flow.paths)

    def _run_once(self, x: Tensor, **options: Any) -> Outcome:
        flown = self.flow.run(x, **options)
        prediction = tried("head", self.head, flown.features, x)
        return Outcome(prediction, flown.features, flown.solution, flown.integrals)


@described
class ImageNeuralODE(NeuralODE):
    """The paper's neural ODE for images: an :class:`anode.ConvField` and a linear map.

    Args:
        image: Channels, height and width of an input.
        classes: Size of a prediction.
        filters: Channels of the field's hidden layers.
        augment: How many channels of zeros are appended to the input; 0 is the plain neural ODE. Or an
            :class:`anode.Augment`.
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
        >>> model(torch.zeros(4, 1, 28, 28, dtype=torch.uint8)).shape  # uint8 is scaled to [0, 1]
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
        sizes = tuple(image) if isinstance(image, Sequence | np.ndarray) else ()
        require(len(sizes) == 3, "image", image, "three numbers: channels, height, width")
        sizes = tuple(number("image", size, whole=True) for size in sizes)
        classes = number("classes", classes, whole=True)
        augmentation = as_augment(augment, ConvField.features_dim)
        channels = augmented_size(augmentation, sizes, ConvField.features_dim)
        shown = augmentation.shown(channels, sizes[0])
        seen = shown if head_channels is None else whole_number(head_channels)
        fits = seen is not None and 0 < seen <= channels
        require(fits, "head_channels", head_channels, f"a whole number from 1 to the {channels} channels of the state")
        assert seen is not None
        field = ConvField(channels, filters, time=time, activation=activation)
        head = ImageHead((seen, *sizes[1:]), classes)
        super().__init__(field=field, head=head, augment=augmentation, t1=t1, solver=solver, **settings)
        self.image = sizes

    @property
    def settings(self) -> dict[str, Any]:
        made = {name: value for name, value in super().settings.items() if name not in ("field", "head")}
        field = self.flow.field
        assert isinstance(field, ConvField)
        own = {name: value for name, value in field.settings.items() if name != "channels"}
        seen = self.head.image[0]
        shown = self.flow.augment.shown(field.channels, self.image[0])
        head_channels = None if seen == shown else seen
        classes = self.head.out_features
        return {"image": list(self.image), "classes": classes, **own, "head_channels": head_channels, **made}

    def check(self, x: Tensor) -> None:
        check_input(x, next(self.parameters()))
        front = 1 if self.members is None else 2
        if x.shape[front:] != self.image or (self.members is not None and x.shape[0] != self.members):
            sizes = ", ".join(map(str, self.image))
            stacked = "" if self.members is None else f"{self.members}, "
            raise ValueError(f"x: takes images of shape [{stacked}batch, {sizes}], got {tuple(x.shape)}")


@described
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
        self.head = LinearHead(in_features, out_features)

    @property
    def members(self) -> int | None:
        return members_of(self.head.bias)

    def run(self, x: Tensor, **options: Any) -> Outcome:
        features = self.trajectory(x)[-1]
        return Outcome(self.head(features), features)

    def trajectory(self, x: Tensor) -> list[Tensor]:
        """The input and the state after every layer."""
        check_input(x, next(self.parameters()))
        check_state(x, self.in_features, self.members, "x")
        states, now = [x], torch.zeros(())
        for block in self.blocks:
            states.append(states[-1] + block(now, states[-1]))
        return states
