"""The divergence of a field, which is the rate at which a flow changes volumes, and the state to solve it with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from anode.checks import lookup, number, require
from anode.engine.mapped import Mapped, Member, first_of, is_mapped
from anode.engine.timeless import rate_at
from anode.models.augment import Augment
from anode.models.description import described
from anode.models.layers import Stackable
from anode.ode.field import Field, Rate, conditioned

TRACES = {
    "exact": "one derivative for each number of the state",
    "hutchinson": "one derivative, of a random direction",
}
"""How the trace of a Jacobian is computed."""


@described
class Divergence(Field, Mapped):
    """A field that also integrates its divergence, as one more number of the state.

    Along a solution of dz/dt = f(t, z), volumes grow at the rate tr(∂f/∂z), the divergence of f. The state is [z, v]
    and its derivative [f(t, z), tr(∂f/∂z)], so v is the logarithm of the growth.

    Hutchinson's estimate takes εᵀ(∂f/∂z)ε in place of the trace, where E[εεᵀ] = I. The state is then [z, v, ε], with
    dε/dt = 0. Every point has its own ε, which is constant during a solve, so the solver sees a smooth function.

    Autograd computes the derivatives for all points at once. This is correct only if f does not mix the points of a
    batch.

    Args:
        field: f, as ``f(t, z)``.
        trace: ``"exact"``, or ``"hutchinson"``.

    Example:
        >>> import torch
        >>> class Cubes(torch.nn.Module):
        ...     def forward(self, t, z):
        ...         return z**3
        >>> Divergence(Cubes())(torch.tensor(0.0), torch.tensor([[1.0, 2.0, 0.0]])).detach()
        tensor([[ 1.,  8., 15.]])
    """

    def __init__(self, field: nn.Module, trace: str = "exact") -> None:
        super().__init__()
        lookup("trace", trace, TRACES)
        self.field, self.trace = field, trace

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a field like this one."""
        return {"field": self.field, "trace": self.trace}

    @property
    def members(self) -> int | None:
        return self.field.members if isinstance(self.field, Field) else None

    def with_context(self, context: Tensor) -> Field:
        return Divergence(conditioned(self.field, context), self.trace)

    def check(self, y: Tensor) -> None:
        if isinstance(self.field, Field):
            self.field.check(parts(y, self.trace)[0])

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Return the derivative of the state at time t."""
        return self.rate(self.points, t, h)

    def member(self) -> Member:
        """Return the first field of a stack with its divergence."""
        first = self.first()
        return Member(lambda t, h: self.rate(first.f, t, h), first.pairs)

    def first(self) -> Member:
        """Return the first field of a stack."""
        found: Member = self.field.member() if is_mapped(self.field) else first_of(self.field)  # type: ignore[operator]
        return found

    def extra_repr(self) -> str:
        return f"trace={self.trace!r}"

    def points(self, t: Tensor, z: Tensor) -> Tensor:
        """Return f, the derivative of the points alone."""
        found: Tensor = rate_at(self.field, t, z)
        return found

    def rate(self, f: Rate, t: Tensor, h: Tensor) -> Tensor:
        """Return the derivative of the state, given the field of points."""
        with torch.enable_grad():
            z, _, noise = parts(h, self.trace)
            z = z.requires_grad_()
            slope = f(t, z)
            if not slope.requires_grad:  # it does not depend on z, nor on a parameter
                return torch.cat([slope, torch.zeros_like(h[..., z.shape[-1] :])], dim=-1)
            if self.trace == "exact":
                return torch.cat([slope, _trace(slope, z)], dim=-1)
            (pulled,) = torch.autograd.grad(slope, z, noise, create_graph=True, materialize_grads=True)
            return torch.cat([slope, (pulled * noise).sum(-1, keepdim=True), torch.zeros_like(noise)], dim=-1)


def refuse_mixing(field: nn.Module, of: str) -> None:
    """Raise ``ValueError`` if batch normalisation in a field mixes the samples of a batch.

    Args:
        field: The field.
        of: What needs the derivative of each sample by itself.
    """
    norms = (part for part in field.modules() if isinstance(part, _BatchNorm))
    mixing = next((part for part in norms if part.training or not part.track_running_stats), None)
    takes = f"no batch normalisation in training mode, because {of} needs the derivative of each sample alone; use"
    require(mixing is None, "field", mixing, f"{takes} torch.nn.LayerNorm, or call .eval() on that module")


def _trace(slope: Tensor, z: Tensor) -> Tensor:
    """Return the trace of the Jacobian of each point, [..., 1]."""
    total = torch.zeros_like(z[..., :1])
    for i in range(z.shape[-1]):
        (row,) = torch.autograd.grad(slope[..., i].sum(), z, create_graph=True, materialize_grads=True)
        total = total + row[..., i : i + 1]
    return total


def parts(h: Tensor, trace: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the point, the logarithm of the growth [..., 1], and Hutchinson's noise; empty for an exact trace."""
    size = h.shape[-1] - 1
    size = size if trace == "exact" else size // 2
    return h[..., :size], h[..., size : size + 1], h[..., size + 1 :]


@described
class DensityStart(Augment, Stackable):
    """Appends the rest of the state of a density flow: normal coordinates, a zero, and Hutchinson's noise.

    Args:
        extra: Number of normal coordinates.
        trace: As for :class:`anode.DensityFlow`. The noise of ``"hutchinson"`` is -1 or 1 (Rademacher). It has the
            smallest variance of all independent noise, because the diagonal of the Jacobian does not contribute.

    Attributes:
        noise: The noise of ``"hutchinson"`` in the shape of the points; ``None`` to draw it in every call.
    """

    noise: Tensor | None = None

    def __init__(self, extra: int, trace: str) -> None:
        super().__init__()
        self.extra, self.trace = number("extra", extra, whole=True, zero=True), trace
        lookup("trace", trace, TRACES)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an augmentation like this one."""
        return {"extra": self.extra, "trace": self.trace}

    def forward(self, x: Tensor) -> Tensor:
        z = torch.cat([x, x.new_empty(*x.shape[:-1], self.extra).normal_()], dim=-1) if self.extra else x
        noise = [] if self.trace == "exact" else [signs(z) if self.noise is None else self.noise]
        return torch.cat([z, torch.zeros_like(x[..., :1]), *noise], dim=-1)

    def remove(self, h: Any) -> Tensor:
        z = parts(h, self.trace)[0]
        return z[..., : z.shape[-1] - self.extra]


def signs(like: Tensor) -> Tensor:
    """Return random numbers that are -1 or 1."""
    return torch.empty_like(like).bernoulli_().mul_(2).sub_(1)
