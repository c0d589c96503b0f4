"""The compiled parts of a model, for training by the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.engine import native, obstacles
from anode.engine.compiled import Compiled
from anode.engine.compiling import Example, field_of, known_for, unlike
from anode.engine.known import Known
from anode.engine.mapped import TimelessStack
from anode.engine.memory import memory_of
from anode.engine.program.program import Builder, Program
from anode.engine.timeless import Timeless, as_function
from anode.engine.trace.events import Untraceable
from anode.engine.transparent import Transparent, perceptron_program
from anode.engine.watch.purity import observe
from anode.models.augment import Zeros
from anode.models.ensemble import Stacked
from anode.models.layers import LinearHead
from anode.models.nets import NeuralODE
from anode.models.randomness import apart
from anode.train.points import Points

if TYPE_CHECKING:
    from anode.train.training import Training


@dataclass(frozen=True)
class Part:
    """A part of a model: its augmentation, its field or its head.

    Attributes:
        name: What it is called in obstacles.
        f: The part as a function of time and state.
        compiled: Its compiled version; ``None`` if it cannot be compiled.
        shape: The shape of what it returns for one point.
        known: What is known from tracing it; ``None`` if it describes itself.
        example: The point that it was traced on; ``None`` if it describes itself.
        obstacle: Why the engine cannot train it; empty if it can.
    """

    name: str
    f: Any
    compiled: Compiled | None
    shape: tuple[int, ...] = ()
    known: Known | None = None
    example: Example | None = None
    obstacle: str = ""

    def unlike(self, points: int) -> str:
        """Return why the engine cannot take this number of points; empty if it can."""
        if self.known is None or self.example is None:
            return ""
        (x,) = self.example.states
        states = (x.repeat_interleave(points, self.example.group_dims),)
        return unlike(self.known, self.f, replace(self.example, states=states))

    def evaluated(self, x: Tensor) -> Tensor:
        """Return what the engine computes from inputs x."""
        assert self.compiled is not None
        return native.evaluated(self.compiled, rows(x, self.compiled.members)).unflatten(-1, self.shape)

    def computes_the_same(self, x: Tensor) -> bool:
        """Whether the part and the engine compute the same from x. A call of the part does not count."""
        if self.known is None:
            return True
        own = self.evaluated(x)
        with torch.no_grad():
            result = self.f(x.new_zeros(()), x)
        self.count(-1)
        return native.agree(own, result.expand_as(own))

    @property
    def swapped(self) -> dict[int, int] | None:
        """Which tensors replace traced ones now, as ids that can be compared; ``None`` if more has changed."""
        swaps = {} if self.known is None else self.known.swaps(self.known.f)
        return None if swaps is None else {old: id(new) for old, new in swaps.items()}

    def count(self, calls: int) -> None:
        """Advance the part's own counters by this number of calls."""
        if self.known is not None:
            self.known.count(calls)

    def forget(self) -> None:
        """Discard the trace, because the part computes something else now."""
        if self.known is not None:
            memory_of(self.known.f).forget(self.known)


@dataclass(frozen=True)
class Parts:
    """The compiled parts of a model.

    Attributes:
        all: Augmentation, field and head; fewer if one of them cannot be compiled.
        given: The shape of a point.
        obstacle: Why the engine cannot train the model; empty if it can.
    """

    all: tuple[Part, ...] = ()
    given: tuple[int, ...] = ()
    obstacle: str = ""

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        """The compiled version of each part."""
        return tuple(part.compiled for part in self.all if part.compiled is not None)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of all parts."""
        return tuple(x for compiled in self.compiled for x in compiled.tensors)

    @property
    def shared(self) -> tuple[bool, ...]:
        """Whether all members share the tensor, for each tensor."""
        return tuple(shared for compiled in self.compiled for shared in compiled.shared)

    def unlike(self, points: int) -> str:
        """Return why the engine cannot take batches of this number of points; empty if it can."""
        obstacles = (f"{part.name}: {why}" for part in self.all if (why := part.unlike(points)))
        return next(obstacles, "")

    def computes_the_same(self, x: Tensor) -> bool:
        """Whether all parts and the engine compute the same from inputs x. The head is given initial states."""
        for part in self.all:
            if not part.computes_the_same(x):
                return False
            x = part.evaluated(x) if part is self.all[0] else x
        return True


def rows(x: Tensor, members: int | None) -> Tensor:
    """Return points of any shape as rows of numbers."""
    return x.flatten(1 if members is None else 2)


def compiled_parts(training: Training) -> Parts:
    """Return the compiled parts of a run whose model is a ``NeuralODE``."""
    x, parts = _example(training), []
    if x is None:
        return Parts(obstacle="the points are not rows of numbers of the model's dtype")
    for part in _parts(training, x):
        parts.append(part)
        if part.obstacle:
            break
    last, given = parts[-1], tuple(x.shape[training.protocol.dims :])
    return Parts(tuple(parts), given, f"{last.name}: {last.obstacle}" if last.obstacle else "")


def _parts(training: Training, x: Tensor) -> Iterator[Part]:
    model, members = training.network, training.protocol.members
    assert isinstance(model, NeuralODE)
    augment, field, head = model.flow.augment, model.flow.field, model.head
    first = _part("augment", _as_map(augment, members), _zeros(augment, x, members), training, x)
    yield first
    state = first.evaluated(x)
    told = field.compiled() if isinstance(field, Transparent) else None
    yield _part("field", as_function(field), told, training, state)
    yield _part("head", _as_map(head, members), _linear(head, state, members), training, state)


def _example(training: Training) -> Tensor | None:
    """Return one point, with a dimension of the batch; ``None`` if points are single numbers or of another dtype."""
    data, like, dims = training.protocol.data, training.parameters[0], training.protocol.dims
    if isinstance(data, Points) and training.protocol.transform is None:
        x = data.x
    elif len(training.record) < training.total:
        x = training.batch()[1][0]  # the next one, so that nothing is drawn that would not be drawn anyway
    else:
        x, _, _ = data.first(like)
    return x.narrow(dims - 1, 0, 1).detach() if x.ndim > dims and x.dtype == like.dtype else None


def _as_map(module: nn.Module, members: int | None) -> Timeless:
    """Return an augmentation or a head as a function of time and state."""
    if members is None:
        return Timeless(module)
    return TimelessStack(module, module.module if isinstance(module, Stacked) else module, members)


def _zeros(augment: nn.Module, x: Tensor, members: int | None) -> Compiled | None:
    """Return the compiled version of an augmentation that appends zeros; ``None`` for any other."""
    if type(augment) is not Zeros or augment.dim != -1 or rows(x, members).ndim != x.ndim:
        return None
    return Compiled(_zeros_program(x.shape[-1], augment.extra), (), (), members)


@cache
def _zeros_program(inputs: int, extra: int) -> Program:
    builder = Builder(inputs)
    return builder.finish(np.concatenate([builder.state(inputs), builder.numbers(np.zeros(extra))]))


def _linear(head: nn.Module, state: Tensor, members: int | None) -> Compiled | None:
    """Return the compiled version of a head that is a linear map of all features; ``None`` for any other."""
    inner = head.module if type(head) is Stacked else head
    if type(inner) not in (LinearHead, nn.Linear) or not isinstance(inner.bias, Tensor):
        return None
    outputs, inputs = inner.weight.shape[-2:]  # type: ignore[index]
    if (
        inputs != state.shape[-1]
        or rows(state, members).ndim != state.ndim
        or inner.bias.ndim != (1 if members is None else 2)
    ):
        return None
    program = perceptron_program((inputs, outputs), ("none",), time=False)
    return Compiled(program, (inner.weight, inner.bias), (False, False), members)  # type: ignore[arg-type]


def _part(name: str, f: Any, told: Compiled | None, training: Training, x: Tensor) -> Part:
    """Return a part that describes itself, or that is traced on inputs like x."""
    if told is not None:
        why = _misfit(told, training, x) or _computed(told.tensors, training.parameters)
        return Part(name, f, told, (len(told.program.slope),), obstacle=why)
    group_dims = int(training.protocol.members is not None)
    example = Example((x,), False, 0.0, group_dims, is_map=name != "field")
    known = _traced(f, example)
    if known.obstacle:
        return Part(name, f, None, known=known, obstacle=known.obstacle)
    assert known.traced is not None
    if known.traced.derived is not None:
        return Part(name, f, None, known=known, obstacle="f computes tensors from its parameters alone")
    if known.first is not None:
        return Part(name, f, None, known=known, obstacle="f takes all points of a batch together")
    compiled = field_of(known, (x,))
    why = _misfit(compiled, training, x) or _computed(compiled.tensors, training.parameters)
    (shape,) = known.traced.shapes
    if name == "head" and training.protocol.classifies and len(shape) != 1:
        why = why or "it predicts several classes for a point"
    return Part(name, f, compiled, shape, known, example, why)


def _traced(f: nn.Module, example: Example) -> Known:
    """Trace a part of a model and return what is known of it. Its own state and torch's random state are restored."""
    (x,) = example.states
    looks = 0

    def try_copy() -> None:  # a call of f itself could leave traces in its lists and other objects
        copy = deepcopy(f, {id(p): p for p in f.parameters()})

        def call() -> None:
            with apart():
                copy(x.new_zeros(()), x)

        if why := observe(copy, call).obstacle:
            raise Untraceable(why)

    def look() -> None:
        nonlocal looks
        looks += 1
        plain = (each for module in f.modules() for each in vars(module).values() if isinstance(each, Tensor))
        before = [(tensor, tensor.detach().clone()) for tensor in (*f.buffers(), *plain)]
        try:
            with apart():
                f(x.new_zeros(()), x)
        finally:
            for tensor, value in before:  # such as statistics of a batch
                if not torch.equal(tensor, value):
                    tensor.detach().copy_(value)

    try:
        with torch.enable_grad():
            known = known_for(f, example, look, try_copy)
    except Untraceable as error:
        known = Known(f, example.kind, str(error))
    except Exception as error:  # it may need several points, as batch normalisation does
        known = Known(f, example.kind, f"f raises {type(error).__name__} for a single point")
    known.count(-looks)
    return known


def _misfit(compiled: Compiled, training: Training, x: Tensor) -> str:
    """Return why the engine cannot train a part on such inputs; empty if it can."""
    if compiled.program.dim != rows(x, compiled.members).shape[-1] or compiled.members != training.protocol.members:
        return "it takes states of another size"
    if not all(tensor.is_contiguous() for tensor in compiled.tensors):
        return "parameters are not contiguous"
    return obstacles.unfit(compiled, x)


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
