"""What is known of a right-hand side: its program, or why it has none, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anode.engine.compiled import Compiled
from anode.engine.program.program import Program
from anode.engine.trace.tracing import Traced
from anode.engine.watch.guard import Guard
from anode.engine.watch.purity import Counter as CallCounter
from anode.engine.watch.same import Comparison, form

Rate = Callable[..., Any]


@dataclass(frozen=True)
class Kind:
    """What a program depends on besides f: everything about the state except the number of points.

    Attributes:
        dtype: The dtype of the state.
        is_tuple: Whether the state is a tuple.
        shapes: The shapes of the components, without their first dimension.
        dims: Number of dimensions of each component.
        recording: Whether autograd is recording, which f can observe.
        group_dims: Number of leading dimensions with their own times.
        numbers: torch's default dtype, which tensors have that f makes from numbers.
        is_map: Whether f maps points to results of any size, instead of to slopes.
    """

    dtype: torch.dtype
    is_tuple: bool
    shapes: tuple[torch.Size, ...]
    dims: tuple[int, ...]
    recording: bool
    group_dims: int
    numbers: torch.dtype
    is_map: bool = False

    @classmethod
    def of(cls, states: tuple[Tensor, ...], is_tuple: bool, group_dims: int, is_map: bool) -> Kind:
        """Return the kind of a state."""
        shapes, dims = tuple(x.shape[1:] for x in states), tuple(x.ndim for x in states)
        recording, numbers = torch.is_grad_enabled(), torch.get_default_dtype()
        return cls(states[0].dtype, is_tuple, shapes, dims, recording, group_dims, numbers, is_map)


@dataclass
class Known:
    """What is known of a function on states of one kind.

    Attributes:
        f: The function.
        kind: The kind of the states.
        obstacle: Why it cannot be compiled; empty if it has a program.
        guard: Checks whether anything that f reads has changed; if f has side effects, what was found of it so far.
        counters: The counters of f.
        traced: The traced function with its tensors.
        program: The program.
        first: The first dimensions of the states, if the program is valid for this number of points only.
        tensors: The tensors that f can access: those of the program, and others whose shapes it may use.
        forms: The forms of these.
        members: Number of members; ``None`` for a function that is not mapped over members.
        shared: Whether all members share the tensor, for each traced tensor.
        unused: Parameters of f that the program does not use.
        swapped: The tensors that replace traced ones in the current solve, by the ids of the traced ones.
        tried: The shapes of states for which the program was compared with f away from the start.
        compiled: The compiled field, unless its program or tensors may change from solve to solve.
    """

    f: Rate
    kind: Kind
    obstacle: str = ""
    guard: Guard = field(default_factory=Guard)
    counters: tuple[CallCounter, ...] = ()
    traced: Traced | None = None
    program: Program | None = None
    first: tuple[int, ...] | None = None
    tensors: tuple[Tensor, ...] = ()
    forms: list[Any] = field(default_factory=list)
    members: int | None = None
    shared: tuple[bool, ...] = ()
    unused: tuple[Tensor, ...] = ()
    swapped: dict[int, Tensor] = field(default_factory=dict)
    tried: set[torch.Size] = field(default_factory=set)
    compiled: Compiled | None = None

    def keep(self, compiled: Compiled) -> None:
        """Cache the compiled field, unless its tensors may change before the next solve."""
        if self.traced is not None and self.traced.derived is None and not self.swapped:
            self.compiled = compiled

    def count(self, calls: int) -> None:
        """Advance the counters of f by this number of calls."""
        for counter in self.counters:
            counter.advance(calls)

    def has_rows(self, points: int) -> bool:
        """Whether the tensors with a row per point have as many; of one point, others may have been taken for such."""
        context = () if self.traced is None else self.traced.context
        return all(len(self.swapped.get(id(x), x)) == points for x in context)

    def of(self, f: Rate) -> Known | None:
        """Return what is known of f, which may be another function that does the same; ``None`` if nothing is.

        The result is a copy if tensors or counters were replaced: another thread may solve with others.
        """
        comparison = Comparison(self.guard.is_read)
        swaps = self.swaps(f, comparison)
        if swaps is None:
            return None
        counters = tuple(each.moved(comparison.objects) for each in self.counters)
        return replace(self, swapped=swaps, counters=counters) if swaps or counters != self.counters else self

    def swaps(self, f: Rate, comparison: Comparison | None = None) -> dict[int, Tensor] | None:
        """Return the tensors that replace traced ones now, by the ids of the traced ones.

        Returns ``None`` if what is known no longer applies to f. The side effects of f are assumed not to change.

        Args:
            f: The function.
            comparison: Compares it with the traced function.
        """
        comparison = comparison or Comparison(self.guard.is_read)
        if not comparison.is_same(self.f, f):
            return None
        if self.program is None or self.traced is None:
            return comparison.swaps if self.guard.holds() else None
        if forms(self.tensors) != self.forms:  # a parameter's data may be replaced
            return None
        found = self.guard.swap(comparison.swaps, comparison.places)
        replaced = comparison.replaced()
        if found is None or (replaced and self.guard.has_elsewhere(replaced, comparison.places)):
            return None
        found = {old: new for old, new in found.items() if id(new) != old}
        if found:
            if self.traced.asks or any(id(x) in found for x in self.traced.fixed()):
                return None
            pairs = ((x, found[id(x)]) for x in self.tensors if id(x) in found)
            rows = self.traced.rows(found)
            if any(old.shape != new.shape and (len(old), len(new)) != rows for old, new in pairs):
                return None
        return found if self.traced.is_current(found) else None


def forms(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the forms of tensors."""
    return [form(x) for x in tensors]


def first_sizes(states: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Return the first dimension of each state; 1 for scalars."""
    return tuple(x.shape[0] if x.ndim else 1 for x in states)
