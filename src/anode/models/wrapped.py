"""Fields that are made of another field."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from anode.checks import require
from anode.engine.sequential import knows_no_time
from anode.models.flow import features_dim
from anode.ode.field import Field


class Wrapped(Field):
    """A field whose slope is put together from a state and from what another field makes of it.

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
        """The part of a state that the other field is given; all of it."""
        return h

    @abstractmethod
    def combine(self, h: Tensor, slope: Tensor) -> Tensor:
        """The slope of a state h, from what the other field has made of it."""

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """The derivative of h at time t, which is a scalar or broadcasts against h."""
        given = self.given(h)
        return self.combine(h, self.field(given) if knows_no_time(self.field) else self.field(t, given))
