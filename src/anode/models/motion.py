"""Second-order flows: the state is a position and its velocity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anode.checks import flag, require
from anode.models.augment import Augment, as_augment, laid_out
from anode.models.description import described
from anode.models.layers import features_at
from anode.models.wrapped import Wrapped
from anode.ode.field import Field


@described
class WithVelocity(Augment):
    """Map an input to a position, and append a velocity of the same size: h(0) = [q, v(q)].

    This is the initial state of a :class:`SecondOrder` or :class:`HeavyBall` field.

    Args:
        position: Maps an input x to a position q: the number of zeros to append, or an :class:`anode.Augment`.
        start: The initial velocity: a module that maps a position to a velocity. Defaults to zero.
        dim: The dimension that holds the features: the last for vectors, -3 (the channels) for images.

    Example:
        >>> import torch, anode
        >>> at_rest = anode.WithVelocity()
        >>> at_rest(torch.tensor([[3.0, 4.0]]))
        tensor([[3., 4., 0., 0.]])
        >>> learned = anode.WithVelocity(start=torch.nn.Linear(2, 2))
        >>> learned(torch.rand(8, 2)).shape
        torch.Size([8, 4])
    """

    def __init__(self, position: int | Augment = 0, start: nn.Module | None = None, dim: int = -1) -> None:
        super().__init__()
        takes = "a torch.nn.Module that maps a position to a velocity, or None for zero"
        require(start is None or isinstance(start, nn.Module), "start", start, takes)
        self.dim = features_at(dim)
        self.position, self.start = as_augment(position, self.dim), start
        takes = "None for a position that holds the input, as WithInput's does: with a velocity, the input would move"
        require(start is None or not self.position.holds_input, "start", start, takes)

    def forward(self, x: Tensor) -> Tensor:
        q: Any = self.position(x)
        v = torch.zeros_like(q) if self.start is None else self.start(q)
        takes = f"a module that maps a position to a velocity of its shape, {tuple(q.shape)}"
        require(v.shape == q.shape, "start", v, takes)
        return laid_out(torch.cat([q, v], self.dim), self.dim)

    def remove(self, h: Any) -> Tensor:
        if self.start is not None:
            raise NotImplementedError(
                "inverse: the velocity at the start is learned, and few states have it; use WithVelocity(), which "
                "starts at rest, or solve back with flow.solve_from(features, (flow.t1, 0.0)) and read the position"
            )
        return self.position.remove(h.narrow(self.dim, 0, h.shape[self.dim] // 2))

    def shown(self, features: int, inputs: int) -> int:
        """Return the size of the position: the head sees only that, as in the papers on these flows."""
        return self.position.shown(features // 2, inputs)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an augmentation like this one."""
        return {"position": self.position, "start": self.start, "dim": self.dim}


class Moving(Wrapped):
    """A field on states [position, velocity]."""

    def check(self, y: Tensor) -> None:
        size = y.shape[self.features_dim] if y.ndim >= -self.features_dim else 0
        if size == 0 or size % 2:
            takes = f"positions and velocities of one size in dimension {self.features_dim} of the state"
            raise ValueError(
                f"h: takes {takes}, got shape {tuple(y.shape)}; pass augment=WithVelocity(), or an even state"
            )

    def parts(self, h: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return position and velocity, each with this many features. The state may have more after them."""
        dim = self.features_dim
        takes = f"positions and velocities of size {size}, as the field returns, side by side in dimension {dim}"
        require(h.shape[dim] >= 2 * size, "h", h, takes)
        return h.narrow(dim, 0, size), h.narrow(dim, size, size)


@described
class SecondOrder(Moving):
    """The second-order ODE q'' = f(t, [q, q']), as one of first order: q' = v, v' = f(t, [q, v]).

    Norcliffe et al. (2020), "On Second Order Behaviour in Augmented Neural ODEs" (SONODE). The initial velocity is zero
    or learned, see :class:`WithVelocity`. Trajectories of positions may cross, so a second-order flow can represent
    maps, such as x -> -x, that a neural ODE of the same size cannot.

    Args:
        field: f, which maps [position, velocity] to an acceleration of half that size. Its attribute ``features_dim``
            names the dimension of the features; it defaults to the last.

    Example:
        >>> import torch, anode
        >>> field = anode.SecondOrder(anode.MLPField(2, inputs=4))
        >>> model = anode.NeuralODE(2, 1, field=field, augment=anode.WithVelocity())
        >>> model(torch.rand(8, 2)).shape
        torch.Size([8, 1])
        >>> images = anode.SecondOrder(anode.ConvField(1, filters=4, inputs=2))
        >>> anode.Flow(images, augment=anode.WithVelocity(dim=-3))(torch.rand(8, 1, 6, 6)).shape
        torch.Size([8, 2, 6, 6])
    """

    def combine(self, h: Tensor, slope: Tensor) -> Tensor:
        _, v = self.parts(h, slope.shape[self.features_dim])
        return torch.cat([v, slope], self.features_dim)


@described
class HeavyBall(Moving):
    """The heavy ball ODE q'' + c q' = f(t, q), as one of first order: q' = m, m' = f(t, q) - c m.

    Xia et al. (2021), "Heavy Ball Neural Ordinary Differential Equations" (HBNODE): the continuous limit of gradient
    descent with momentum. The damping is c = sigmoid(w) with a parameter w, initialised to -3 as in their code.

    The generalised form (GHBNODE) keeps states from blowing up: q' = tanh(m), m' = f(t, q) - c m - k q, where
    k = softplus(u) with a parameter u, initialised to 2 as in their experiments with images.

    Args:
        field: f, which maps a position to a force of the same size. Its attribute ``features_dim`` names the dimension
            of the features; it defaults to the last.
        generalised: Whether to use the generalised form.

    Example:
        >>> import torch, anode
        >>> field = anode.HeavyBall(anode.MLPField(2))
        >>> model = anode.NeuralODE(2, 1, field=field, augment=anode.WithVelocity())
        >>> model(torch.rand(8, 2)).shape
        torch.Size([8, 1])
        >>> images = anode.HeavyBall(anode.ConvField(1 + 2, filters=4), generalised=True)
        >>> anode.Flow(images, augment=anode.WithVelocity(2, dim=-3))(torch.rand(8, 1, 6, 6)).shape
        torch.Size([8, 6, 6, 6])
    """

    def __init__(self, field: nn.Module, *, generalised: bool = False) -> None:
        super().__init__(field)
        flag("generalised", generalised)
        takes = "False around DataControl, whose input would decay like every position"
        require(not (generalised and isinstance(field, Wrapped) and field.holds_input), "generalised", True, takes)
        self.damping = nn.Parameter(torch.tensor([-3.0]))
        self.stiffness = nn.Parameter(torch.tensor([2.0])) if generalised else None

    def given(self, h: Tensor) -> Tensor:
        return h.narrow(self.features_dim, 0, h.shape[self.features_dim] // 2)

    def noisy(self, y: Tensor) -> Tensor:
        """Return where noise is added: to the positions that the other field lets move, and to their momenta."""
        q = self.field.noisy(self.given(y)) if isinstance(self.field, Field) else torch.ones_like(self.given(y))
        return torch.cat([q, q], self.features_dim)

    def combine(self, h: Tensor, slope: Tensor) -> Tensor:
        q, m = self.parts(h, slope.shape[self.features_dim])
        # Zeros, so that the engine computes the two numbers with every point; of a stack they differ between members.
        still = 0.0 * m.narrow(self.features_dim, 0, 1)
        force = slope - torch.sigmoid(self.damping + still) * m
        if self.stiffness is None:
            return torch.cat([m, force], self.features_dim)
        return torch.cat([torch.tanh(m), force - F.softplus(self.stiffness + still) * q], self.features_dim)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a field like this one."""
        return {**super().settings, "generalised": self.stiffness is not None}
