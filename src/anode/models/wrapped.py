"""Fields made of another field."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anode.checks import require
from anode.engine.timeless import rate_at
from anode.models.flow import features_dim
from anode.ode.field import Derivative, Field, is_hooked


class Wrapped(Field):
    """A field that computes its slope from a state and from the slope of another field.

    Args:
        field: The other field, f(t, h).
    """

    holds_input: ClassVar[bool] = False
    """Whether states end with the input itself, which the field keeps as it is."""

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

    def forward(self, t: Tensor, h: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the derivative of h at time t. t is a scalar or broadcasts against h."""
        return self.combine(h, self.inner(t, self.given(h), context))

    def inner(self, t: Tensor, given: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the slope of the other field."""
        slope: Tensor = rate_at(self.field, t, given) if context is None else self.field(t, given, context)
        return slope

    def derivative(self) -> Derivative | None:
        return self.part()

    def part(self) -> Derivative | None:
        """Return a derivative that uses that of the other field, if it has one and this field was not modified."""
        if not isinstance(self.field, Field) or type(self).forward is not Wrapped.forward or is_hooked(self):
            return None
        inner = self.field.part()
        return None if inner is None else WrappedDerivative(self, inner)


class WrappedDerivative(Derivative):
    """The derivative of a wrapped field: autograd's of what the wrapper does, and that of the other field.

    Args:
        field: The wrapped field.
        inner: The derivative of the other field.
    """

    def __init__(self, field: Wrapped, inner: Derivative) -> None:
        self._field, self._inner = field, inner
        theirs = {id(p) for p in inner.parameters}
        self._own = tuple(p for p in field.parameters() if id(p) not in theirs)
        self._sums = [torch.zeros_like(p) for p in self._own]
        self.parameters = (*self._own, *inner.parameters)

    def compiled(self, y: Tensor) -> Derivative:
        return WrappedDerivative(self._field, self._inner.compiled(self._field.given(y)))

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        return self._inner.steps_to_keep(self._field.given(y), stages)

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self._field.combine(y, self._inner.rate(t, self._field.given(y)))

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            given = self._field.given(y)
            inner = self._inner.evaluate(t, given.detach())
            leaf = inner.detach().requires_grad_()
            recorded = self._field.combine(y, leaf)
        slope = recorded.detach()
        slope.tape = (y, given, inner, leaf, recorded)  # type: ignore[attr-defined]
        return slope

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        y, given, inner, leaf, recorded = slope.tape  # type: ignore[attr-defined]
        live = [i for i, p in enumerate(self._own) if p.requires_grad]
        inputs = (y, leaf, *(self._own[i] for i in live))
        # The graphs are retained, because the slope at the end of a step is also that at the start of the next.
        at_y, at_inner, *own = torch.autograd.grad(recorded, inputs, cotangent, retain_graph=True, allow_unused=True)
        for i, gradient in zip(live, own, strict=True):
            if gradient is not None:
                self._sums[i] += gradient
        if at_inner is None:
            return at_y, None
        at_given, _ = self._inner.pull(inner, at_inner)
        if at_given is None:
            return at_y, None
        if given is not y:
            (at_given,) = torch.autograd.grad(given, y, at_given, retain_graph=True)
        return at_given if at_y is None else at_y + at_given, None

    def take_gradients(self) -> Sequence[Tensor]:
        sums, self._sums = self._sums, [torch.zeros_like(p) for p in self._own]
        return [*sums, *self._inner.take_gradients()]
