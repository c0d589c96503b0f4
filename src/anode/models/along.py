"""Integrals along the trajectories of a flow, solved together with it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import describe, require
from anode.engine.mapped import Mapped, Member
from anode.engine.timeless import rate_at
from anode.models.divergence import Divergence, parts, refuse_mixing
from anode.models.ensemble import StackedField, members_of
from anode.models.layers import Stackable
from anode.ode.field import Field, Rate

Pull = Callable[[Tensor], tuple[Tensor]]
"""Maps a cotangent of a slope to that of the state: the product with the transposed Jacobian of f."""


class Quantity(ABC):
    """A quantity to integrate along trajectories: one number per sample."""

    needs_pull = False
    """Whether it depends on derivatives of f."""

    def needs_probe(self, size: int) -> bool:
        """Whether it is estimated with random numbers, which are fixed during a solve, for this number of features."""
        return False

    @abstractmethod
    def rate(self, h: Tensor, slope: Tensor, pull: Pull | None, probe: Tensor | None) -> Tensor:
        """Return the derivative of the integral with respect to time, [batch].

        Args:
            h: The states, [batch, ...].
            slope: The values of f at these states.
            pull: Multiplies by the transposed Jacobian of f, if :attr:`needs_pull` is true.
            probe: Random numbers in the shape of h, if :meth:`needs_probe` is true.
        """


class Extended(Field):
    """A field on (h, integrals) or on (h, probe, integrals).

    Args:
        field: The field on h, of one model.
        quantities: The quantities to integrate.
        probed: Whether the state has a probe.
    """

    def __init__(self, field: nn.Module, quantities: Sequence[Quantity], probed: bool) -> None:
        super().__init__()
        self.field, self.quantities, self.probed = field, tuple(quantities), probed

    def noisy(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return where noise is added: to h, as without integrals, and to nothing else."""
        h: Tensor = self.field.noisy(state[0]) if isinstance(self.field, Field) else torch.ones_like(state[0])
        return (h, *map(torch.zeros_like, state[1:]))

    def forward(self, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the derivatives of all components."""
        h, probe = state[0], state[1] if self.probed else None
        t = t.reshape(-1, *[1] * (h.ndim - 1)) if t.ndim else t

        def f(h: Tensor) -> Any:
            return rate_at(self.field, t, h)

        pulled = any(each.needs_pull for each in self.quantities)
        made: Any = torch.func.vjp(f, h) if pulled else (f(h), None)
        slope, pull = made
        rates = (each.rate(h, slope, pull, probe) for each in self.quantities)
        return (slope, *(() if probe is None else (torch.zeros_like(probe),)), *rates)


class StackedExtended(StackedField):
    """An :class:`Extended` field for a stack of fields, whose tensors it shares.

    Args:
        field: The stack.
        quantities, probed: See :class:`Extended`.
    """

    def __init__(self, field: nn.Module, quantities: Sequence[Quantity], probed: bool) -> None:
        Stackable.__init__(self)
        members = members_of(field)
        assert members is not None
        # A field that supports members behaves as a single field if it is given the tensors of one member.
        own = field.module if isinstance(field, StackedField) else field
        self.module, self._members = Extended(own, quantities, probed), members


class DensityExtended(Extended, Mapped):
    """An :class:`Extended` field for a density flow or a stack of them. The quantities are those of its points.

    Args:
        field: The field of points with its divergence.
        quantities, probed: See :class:`Extended`.
    """

    field: Divergence

    @property
    def members(self) -> int | None:
        return self.field.members

    def member(self) -> Member:
        first = self.field.first()
        return Member(lambda t, state: self._rates(first.f, t, state), first.pairs)

    def forward(self, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self._rates(self.field.points, t, state)

    def _rates(self, f: Rate, t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the derivatives of all components, given the field of points."""
        h, front = state[0], state[0].shape[:-1]
        t = t.reshape(*t.shape[: len(front)], *[1] * (h.ndim - min(t.ndim, len(front)))) if t.ndim else t
        rate = self.field.rate(f, t, h)
        # A stack computes its members' points as one batch, because autograd cannot compute divergences inside vmap.
        z, slope = (parts(each, self.field.trace)[0] for each in (h, rate))
        probe = state[1].flatten(0, -2) if self.probed else None
        pull = None
        if any(each.needs_pull for each in self.quantities):
            back = torch.func.vjp(lambda z: f(t, z), z)[1]

            def pull(cotangent: Tensor) -> tuple[Tensor]:
                return (back(cotangent.reshape(z.shape))[0].flatten(0, -2),)

        rates = (each.rate(z.flatten(0, -2), slope.flatten(0, -2), pull, probe) for each in self.quantities)
        still = (torch.zeros_like(state[1]),) if self.probed else ()
        return (rate, *still, *(each.reshape(front) for each in rates))


class Along:
    """Quantities to integrate along the trajectories of a flow. Pass it to ``Flow.run(x, along=...)``.

    Args:
        quantities: The quantities to integrate.
    """

    def __init__(self, quantities: Sequence[Quantity]) -> None:
        self.quantities = tuple(quantities)
        self._made: Extended | StackedExtended | None = None  # so that it is traced once
        self._of: tuple[Any, ...] = ()

    def problem(self, field: nn.Module, h: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the extended field and its initial state."""
        require(
            isinstance(h, Tensor), "augment", describe(h), "a state that is one tensor if the loss has regularisers"
        )
        if any(each.needs_pull for each in self.quantities):
            refuse_mixing(field, "a Jacobian")
        dims = 1 if members_of(field) is None else 2
        z = parts(h, field.trace)[0] if isinstance(field, Divergence) else h
        size = math.prod(z.shape[dims:])
        probed = any(each.needs_probe(size) for each in self.quantities)
        if self._made is None or self._of != (field, dims, probed):
            kind: type[Any] = Extended if dims == 1 else StackedExtended
            kind = DensityExtended if isinstance(field, Divergence) else kind
            self._made, self._of = kind(field, self.quantities, probed), (field, dims, probed)
        probe = (torch.randn_like(z),) if probed else ()
        zeros = h.new_zeros(h.shape[:dims])
        return self._made, (h, *probe, *(zeros for _ in self.quantities))

    def read(self, state: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the state of the flow and the integrals, [batch] each, from the extended state."""
        return state[0], state[len(state) - len(self.quantities) :]
