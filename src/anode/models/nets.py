"""Complete models: neural ODEs for vectors and images, and the ResNet baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.checks import describe, number, require, whole_number
from anode.models.augment import Augment, as_augment, augmented_size
from anode.models.description import described
from anode.models.fields import ConvField, MLPField, field_or_perceptron
from anode.models.flow import PAPER, Flow, features_dim
from anode.models.layers import ImageHead, LinearHead, check_state
from anode.models.misfit import tried
from anode.models.model import Model, Outcome, as_input, check_input, first_parameter, members_in, over_paths
from anode.ode.solver import Solver, check_settings


@described
class NeuralODE(Model):
    """A neural ODE: a flow followed by a head. It is an augmented neural ODE if ``augment`` is above 0.

    ``NeuralODE(in_features, out_features)`` is the paper's model for vectors, with an :class:`anode.MLPField` and a
    linear head. Pass ``field`` and ``head`` to use your own networks, on states of any shape.

    Args:
        in_features: Size of each input. Optional if ``field`` and ``head`` are given.
        out_features: Size of each prediction. Must not be given with ``head``.
        hidden, layers, time, activation: Arguments of the :class:`anode.MLPField`. Must not be given with ``field``.
        augment: Number of zeros to append to the input, or an :class:`anode.Augment`. Defaults to 0, the plain neural
            ODE.
        field: The right-hand side f(t, h), any ``nn.Module``. Defaults to an :class:`anode.MLPField`. Zeros are
            appended to the dimension ``field.features_dim`` if it has this attribute, otherwise to the last dimension.
        head: Any ``nn.Module`` that maps the final state of the flow to a prediction. Defaults to a linear layer.
            That layer uses only the position of a second-order flow, and ignores the inputs that a flow with data
            control holds.
        t1, solver, **settings: See :class:`anode.Flow`.

    Attributes:
        settings: The arguments that build a model with the same architecture.

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
        network = {"hidden": hidden, "layers": layers, "time": time, "activation": activation}
        augmentation = as_augment(augment, features_dim(field))
        self.in_features = number("in_features", in_features, whole=True, optional=field is not None)
        state = None if self.in_features is None else augmented_size(augmentation, (self.in_features,))
        field = field_or_perceptron(field, state, network)
        self.flow = Flow(field, augment=augmentation, t1=t1, solver=solver, **settings)
        if head is None:
            require(state is not None, "in_features", None, "the size of each input, unless head= is given")
            assert state is not None
            assert self.in_features is not None
            seen = augmentation.shown(state, self.in_features)
            head = LinearHead(seen, number("out_features", out_features, whole=True), state)
        else:
            require(out_features is None, "out_features", out_features, "None with head=, which determines it")
            require(isinstance(head, nn.Module), "head", head, "a torch.nn.Module")
        self.head: Any = head

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a model with the same architecture, read from its current parts."""
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

    def first_flow(self) -> Flow:
        return self.flow

    def _check_input(self, x: Tensor) -> None:
        """Raise ``ValueError`` or ``TypeError`` if x is not a valid input of this model."""
        if self.in_features is not None:
            check_input(x, first_parameter(self))
            check_state(x, self.in_features, self.members, "x")

    def run(self, x: Tensor, *, paths: int | None = None, **options: Any) -> Outcome:
        """Return prediction, features and solution. A failed solve does not raise; check ``outcome.solution``.

        Args:
            x: Inputs.
            paths: Number of noisy solves whose mean is returned. Defaults to 1 in training mode, otherwise to the
                ``paths`` of :class:`anode.Noise`. Without noise there is one solve.
            **options: Options of :meth:`anode.Flow.run` for this call.
        """
        self._check_input(x)
        paths = number("paths", self.flow.paths(options) if paths is None else paths, whole=True)
        return over_paths(lambda: self._run_once(x, **options), 1 if self.flow.noise(options) is None else paths)

    def _run_once(self, x: Tensor, **options: Any) -> Outcome:
        flown = self.flow.run(x, **options)
        prediction = tried("head", self.head, flown.features, x)
        return Outcome(prediction, flown.features, flown.solution, flown.integrals)


@described
class ImageNeuralODE(NeuralODE):
    """The paper's neural ODE for images: an :class:`anode.ConvField` followed by a linear layer.

    Inputs are ``[batch, channels, height, width]``, in the model's dtype or as ``uint8``, which is scaled to [0, 1].

    Args:
        image: Channels, height and width of each input.
        classes: Size of each prediction.
        filters: Number of channels of the field's hidden layers.
        augment: Number of channels of zeros to append to the input, or an :class:`anode.Augment`. Defaults to 0, the
            plain neural ODE.
        time: Whether the field depends on time. It does in the paper's text, but the paper's parameter counts are those
            without time.
        activation: One of ``anode.models.fields.ACTIVATIONS``.
        head_channels: Number of channels of the final state that the linear layer uses. Defaults to all. Pass the
            number of input channels to give models with and without augmentation the same linear layer.
        t1, solver, **settings: See :class:`anode.Flow`.

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
        require(len(sizes) == 3, "image", image, "three numbers: channels, height and width")
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
        if type(field) is not ConvField or type(self.head) is not ImageHead:
            replaced = self.head if type(field) is ConvField else field
            raise TypeError(
                f"model: the field or the head of this ImageNeuralODE was replaced by {describe(replaced)}, which its "
                "arguments do not describe; build anode.NeuralODE(field=..., head=..., augment=...) of these parts"
            )
        own = {name: value for name, value in field.settings.items() if name != "channels"}
        seen = self.head.image[0]
        shown = self.flow.augment.shown(field.channels, self.image[0])
        head_channels = None if seen == shown else seen
        classes = self.head.out_features
        return {"image": list(self.image), "classes": classes, **own, "head_channels": head_channels, **made}

    def _check_input(self, x: Tensor) -> None:
        """Raise ``ValueError`` or ``TypeError`` if x does not hold images of this model's shape."""
        check_input(x, first_parameter(self))
        front = 1 if self.members is None else 2
        if x.shape[front:] != self.image or (self.members is not None and x.shape[0] != self.members):
            sizes = ", ".join(map(str, self.image))
            stacked = "" if self.members is None else f"{self.members}, "
            raise ValueError(f"x: takes images of shape [{stacked}batch, {sizes}], got {tuple(x.shape)}")


@described
class ResNet(Model):
    """The ResNet baseline: residual layers ``h + f_i(h)``, followed by a linear layer.

    Args:
        in_features: Size of each input.
        out_features: Size of each prediction.
        hidden: Width of the two hidden layers of each f_i.
        layers: Number of residual layers.
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
        return members_in(self.blocks)

    def run(self, x: Tensor, **options: Any) -> Outcome:
        context = options.get("context")
        require(context is None, "context", context, "None for a ResNet, which has no flow")
        features = self.trajectory(x)[-1]
        return Outcome(self.head(features), features)

    def trajectory(self, x: Tensor) -> list[Tensor]:
        """Return the input and the state after each layer."""
        like = first_parameter(self)
        check_input(x, like)
        check_state(x, self.in_features, self.members, "x")
        states, now = [as_input(x, like)], torch.zeros(())
        for block in self.blocks:
            states.append(states[-1] + block(now, states[-1]))
        return states
