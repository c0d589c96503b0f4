"""What a recording of a right-hand side consists of: operations, and the memory on which they work.

Tensors are named by the memory that they occupy, not by Python objects: autograd makes new objects for the same memory,
and a write into a view changes every tensor that shares it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anode.engine.trace.calls import Calls


class Untraceable(Exception):  # noqa: N818  (an answer, not a mistake)
    """Why a right-hand side cannot be compiled, as a fragment of a sentence."""


class Ref(NamedTuple):
    """A tensor, named by its memory."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements, and so no values on which anything could depend."""
        return 0 in self.size

    @property
    def overlaps(self) -> bool:
        """Whether several elements are at the same place in memory."""
        pairs = [(n, step) for n, step in zip(self.size, self.stride, strict=True) if n > 1]
        span = 1 + sum((n - 1) * step for n, step in pairs)
        return any(step == 0 for _, step in pairs) or span < math.prod(self.size)


@dataclass(frozen=True)
class Event:
    """One operation.

    Attributes:
        function: The operation, of ATen or of another library.
        args, kwargs: Its arguments, with a `Ref` for each tensor.
        reads: The tensors whose values it uses.
        outs: What it returned; ``None`` for outputs that are not tensors.
        writes: The tensors whose values it set. A view sets none.
        values: The values that it set, if they depend on neither state nor time.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[Ref, ...]
    outs: tuple[Ref | None, ...]
    writes: tuple[Ref, ...]
    values: tuple[Tensor, ...] | None

    @property
    def name(self) -> str:
        """Name of the operation, without its overload."""
        return operation_name(self.function)


def operation_name(function: Any) -> str:
    """Return the name of an operation, without its overload; with its namespace in front if it is not one of ATen."""
    name: str = function.overloadpacket.__name__
    return name if function.namespace == "aten" else f"{function.namespace}.{name}"


def label(function: Any) -> str:
    """Return the name of an operation for messages, with its namespace."""
    return f"{function.namespace}.{function.overloadpacket.__name__}"


def leaves(tree: Any) -> Iterator[Any]:
    """Yield everything in nested lists and tuples."""
    if isinstance(tree, (list, tuple)) and not isinstance(tree, Ref):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


@dataclass
class Storage:
    """A piece of memory.

    Attributes:
        origin: "input" (the state, the time, or a tensor with a row per point), "outside" (a tensor that f did not make
            with an operation) or "made".
        identity: Address of torch's storage object.
        length: Number of elements.
        moves: Whether its values depend on the state or time.
        follows: Whether its values depend on existing tensors of floating point numbers, such as parameters.
        seen: The tensors in it that were handed to operations before f wrote them, in the order in which they came.
        twins: Further tensors, which show what one of these does or what f has made of one.
    """

    origin: str
    identity: int
    length: int
    moves: bool
    follows: bool
    seen: dict[Ref, Tensor] = field(default_factory=dict)
    twins: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Recording:
    """The recording of one call of f.

    Attributes:
        batch: Number of points that f was given; 0 without a batch dimension.
        events: The operations.
        storages: The pieces of memory.
        inputs: The state's components, and time last.
        context: The tensors with a row per point that f was given, besides the state.
        results: The components of what f returned.
        shapes: The shapes that they broadcast to.
        given, returned: The tensors that inputs and context, and results are.
        alive: Everything that holds the memory that the recording names.
        stops_gradients: Whether f detached something or computed while autograd was off, as an autograd.Function does.
        calls: Which functions f called.
    """

    batch: int
    events: list[Event]
    storages: list[Storage]
    inputs: tuple[Ref, ...]
    context: tuple[Ref, ...]
    results: tuple[Ref, ...]
    shapes: tuple[tuple[int, ...], ...]
    given: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]
    alive: list[Any]
    stops_gradients: bool
    calls: Calls
