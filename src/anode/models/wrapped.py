"""Fields made of another field."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from anode.checks import require
from anode.engine.sequential import knows_no_time
from anode.models.flow import features_dim
from anode.ode.field import Field


class Wrapped(Field):
    """A field that computes its slope from a state and from the slope of another field.

    Args:
        field: The other field, f(t, h).
    """

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        require(isinstance(field, nn.Module), "field", field, "a torch.nn.Module f(t, h)")
        self.field, self.features_dim = field, features_dim(field)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a field like this one."""
        return {"field": self.field}

    def given(self, h: Tensor) -> Tensor:
        """Return the part of a state that the other field takes; by default, all of it."""
        return h

    @abstractmethod
    def combine(self, h: Tensor, slope: Tensor) -> Tensor:
        """Return the slope of a state h, given the slope of the other field."""

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Return the derivative of h at time t. t is a scalar or broadcasts against h."""
        given = self.given(h)
        return self.combine(h, self.field(given) if knows_no_time(self.field) else self.field(t, given))
