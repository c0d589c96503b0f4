"""The compiled version of a model's field, for training by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anode.engine import obstacles
from anode.engine.compiled import Compiled
from anode.engine.compiling import Example, field_of, known_for
from anode.engine.known import Known, memory_of
from anode.engine.perceptron import Transparent
from anode.engine.sequential import as_function
from anode.models.flow import Flow
from anode.models.nets import NeuralODE
from anode.models.randomness import apart
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.training import Training


@dataclass(frozen=True)
class Followed:
    """The compiled version of a field.

    Attributes:
        field: The compiled field; ``None`` if it cannot be compiled.
        known: What is known from tracing it; ``None`` for a field that describes itself.
        obstacle: Why the engine cannot train it; empty if it can.
    """

    field: Compiled | None
    known: Known | None = None
    obstacle: str = ""

    def count(self, calls: int) -> None:
        """Advance the field's own counters by this number of calls."""
        if self.known is not None:
            self.known.count(calls)

    def forget(self) -> None:
        """Discard the trace, because the field computes something else now."""
        if self.known is not None:
            memory_of(self.known.f).forget(self.known)


def followed(training: Training) -> Followed:
    """Return the compiled field of a run whose model is a ``NeuralODE`` and whose points are rows of numbers."""
    model, data = training.network, training.protocol.data
    assert isinstance(model, NeuralODE)
    assert isinstance(data, Points)
    field, state = model.flow.field, model.flow.augment(data.x[..., :1, :]).detach()
    perceptron = field.perceptron() if isinstance(field, Transparent) else None
    told = None if perceptron is None else perceptron.compiled()
    if told is not None:
        return Followed(told, obstacle=_misfit(told, training, state))
    known = _traced(model.flow, state)
    if known.obstacle:
        return Followed(None, known, known.obstacle)
    assert known.traced is not None
    if known.traced.derived is not None:
        return Followed(None, known, "f computes tensors from its parameters alone")
    if known.first is not None:
        return Followed(None, known, "f takes all points of a batch together")
    compiled = field_of(known, (state,))
    why = _misfit(compiled, training, state) or _computed(compiled.tensors, training.parameters)
    return Followed(compiled, known, why)


def _traced(flow: Flow, state: Tensor) -> Known:
    """Trace a flow's field and return what is known of it. Its buffers and torch's random state are restored."""
    f, t, looked = as_function(flow.field), state.new_zeros(()), False

    def look() -> None:
        nonlocal looked
        looked = True
        buffers = [(buffer, buffer.clone()) for buffer in flow.field.buffers()]
        with apart():
            f(t, state)
        for buffer, value in buffers:  # such as statistics of a batch
            if not torch.equal(buffer, value):
                buffer.copy_(value)

    with torch.enable_grad():
        known = known_for(f, Example((state,), False, 0.0, int(flow.members is not None)), look)
    if looked:
        known.count(-1)
    return known


def _misfit(field: Compiled, training: Training, state: Tensor) -> str:
    """Return why the engine cannot train a field on such states; empty if it can."""
    if field.program.dim != state.shape[-1] or field.members != training.protocol.members:
        return "the field takes states of another size"
    if not all(x.is_contiguous() for x in field.tensors):
        return "parameters are not contiguous"
    return obstacles.unfit(field, state)


def _computed(tensors: Sequence[Tensor], parameters: Sequence[Tensor]) -> str:
    """Return why gradients would not reach all parameters through these tensors; empty if they would."""
    trained = {id(p) for p in parameters}
    memory = {p.untyped_storage()._cdata for p in parameters}
    others = [x for x in tensors if id(x) not in trained]
    if any(x.grad_fn is not None for x in others):
        return "f uses tensors that are computed outside of it"
    if any(x.untyped_storage()._cdata in memory for x in others):
        return "f uses a tensor that shares memory with a parameter"
    return ""
