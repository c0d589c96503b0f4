"""Recompute tensors that f computes from parameters alone with torch, so that gradients reach the parameters."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anode.engine.trace.calls import mapped
from anode.engine.trace.events import Event, Ref, leaves


def needed(events: Sequence[Event], storages: set[int]) -> list[Event]:
    """Return the events that some storages depend on, in order."""
    wanted = set(storages)
    kept = []
    for event in reversed(events):
        if any(x.storage in wanted for x in event.writes):
            kept.append(event)
            wanted.update(x.storage for x in event.reads)
    return kept[::-1]


@dataclass(frozen=True)
class Recipe:
    """How to compute tensors from existing ones.

    Attributes:
        sources: Existing tensors, and the memory that they had when f was recorded.
        literals: Tensors that f makes anew on every call with the same values.
        events: The operations, each with whether its result is the same each time.
        results: The tensors to compute.
    """

    sources: tuple[tuple[Ref, Tensor], ...]
    literals: tuple[tuple[Ref, Tensor], ...]
    events: tuple[tuple[Event, bool], ...]
    results: tuple[Ref, ...]

    def fits(self, swaps: dict[int, Tensor]) -> bool:
        """Whether the sources, some of them replaced, have the layout that they had when f was recorded."""
        now = ((ref, swaps.get(id(x), x)) for ref, x in self.sources)
        return all(x.shape == ref.size and x.stride() == ref.stride for ref, x in now)

    def compute(self, swaps: dict[int, Tensor]) -> list[Tensor]:
        """Compute the results from the present values of the sources, some of them replaced, by the ids of these."""
        memory = _Memory()
        for ref, tensor in (*self.sources, *self.literals):
            memory.put(ref, swaps.get(id(tensor), tensor))
        for event, constant in self.events:
            memory.run(event, constant)
        return [memory.get(ref) for ref in self.results]


class _Memory:
    """Tensors by the memory that they had when f was recorded."""

    def __init__(self) -> None:
        self._tensors: dict[int, dict[Ref, Tensor]] = {}

    def put(self, ref: Ref, tensor: Tensor) -> None:
        self._tensors.setdefault(ref.storage, {})[ref] = tensor

    def get(self, ref: Ref) -> Tensor:
        known = self._tensors.get(ref.storage, {})
        if ref in known:
            return known[ref]
        if ref.is_empty:
            return torch.empty(ref.size, dtype=ref.dtype)
        base_ref, base = max(known.items(), key=lambda item: item[1].numel())
        return base.as_strided(ref.size, ref.stride, base.storage_offset() + ref.offset - base_ref.offset)

    def set(self, ref: Ref, value: Tensor) -> None:
        """Write to a tensor. This replaces its memory, because autograd may need the old values."""
        ((base_ref, base),) = self._tensors[ref.storage].items()
        whole = base.clone()
        whole.as_strided(ref.size, ref.stride, ref.offset - base_ref.offset).copy_(value)
        self._tensors[ref.storage] = {base_ref: whole}

    def run(self, event: Event, constant: bool) -> None:
        in_place = event.function._schema.is_mutable
        if constant and event.values is not None:
            for ref, value in zip(event.writes, event.values, strict=True):
                (self.set if in_place else self.put)(ref, value.clone())
            return
        owned = {ref: self.get(ref).clone() for ref in event.writes} if in_place else {}
        args, kwargs = mapped(
            (event.args, list(event.kwargs.values())), Ref, lambda ref: owned[ref] if ref in owned else self.get(ref)
        )
        result = event.function(*args, **dict(zip(event.kwargs, kwargs, strict=True)))
        for ref, value in owned.items():
            self.set(ref, value)
        for out, value in [] if in_place else zip(event.outs, leaves(result), strict=True):
            if out is not None and isinstance(value, Tensor):
                self.put(out, value)


@dataclass(frozen=True)
class Derived:
    """Computed tensors among a program's tensors.

    Attributes:
        recipe: How to compute them.
        places: Their places among the program's tensors.
    """

    recipe: Recipe
    places: tuple[int, ...]

    def filled(self, tensors: Sequence[Tensor], swaps: dict[int, Tensor]) -> tuple[Any, ...]:
        """Return all tensors of a program: the existing ones, with the computed ones in their places."""
        result: list[Any] = list(tensors)
        for place, tensor in zip(self.places, self.recipe.compute(swaps), strict=True):
            result.insert(place, tensor)
        return tuple(result)


class Shared:
    """Tensors that share memory, so that a program may read one of them where f reads another.

    Tensors that f makes during its call no longer exist afterwards. If several remain, they must keep sharing memory.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [(weakref.ref(x), _place(x)) for x in tensors]

    def alive(self) -> list[tuple[Tensor, Any]]:
        """Return the remaining tensors, if there are several, and where in memory they were."""
        left = [(x, place) for each, place in self._tensors if (x := each()) is not None]
        if len({id(x) for x, _ in left}) > 1:
            return left
        self._tensors = []  # it stays so, and every solve asks
        return []

    def holds(self) -> bool:
        """Whether they still share memory."""
        return not self._tensors or all(_place(x) == place for x, place in self.alive())


def _place(x: Tensor) -> Any:
    return x.untyped_storage()._cdata, x.storage_offset(), x.stride()


@dataclass(frozen=True)
class Captured:
    """The tensors of a program.

    Attributes:
        tensors: Existing tensors that the program reads: parameters, buffers and those in closures.
        derived: The tensors that f computes from existing ones alone; ``None`` if there are none.
        sources: Existing tensors that those are computed from.
        baked: Existing integer and boolean tensors whose values are part of the program, with these values.
        shared: Existing tensors that share memory.
    """

    tensors: tuple[Tensor, ...]
    derived: Derived | None
    sources: tuple[Tensor, ...]
    baked: tuple[tuple[Tensor, Tensor], ...]
    shared: tuple[Shared, ...]
