"""A cache of what is known of right-hand sides: their programs, or why they have none."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from anode.engine.compiled import Compiled
from anode.engine.program.program import Program
from anode.engine.timeless import MEMORY, Timeless
from anode.engine.trace.tracing import Traced
from anode.engine.watch.guard import Guard
from anode.engine.watch.purity import Counter as CallCounter
from anode.engine.watch.same import Comparison, form
from anode.recent import Recent

Rate = Callable[..., Any]

MOST_FUNCTIONS = 64
"""Maximum number of functions in the cache. A module keeps what is known of it itself."""
MOST_TRACES = 12
"""How often a function that changes is traced again before it is no longer compiled."""
CHANGES = f"f has changed {MOST_TRACES} times since it was first solved"


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


class Memory:
    """What is known of the functions of one owner.

    A copy or pickle of it is an empty dict, because it refers to other objects, and because a saved module must not
    require anode.

    Attributes:
        entries: What is known, the most recent last.
        traces: Number of traces per kind of state.
        functions: What is known of functions with the owner in their closure, by their code, and of modules that are
            wrapped around the owner, by their class.
        forgotten: The objects of the entries that were forgotten for those of another object.
        timeless: The last function that calls the owner with the state only.
        alternates: Whether a function of such an object was solved again. From then on, none are forgotten for it.
    """

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self.entries: list[Known] = []
        self.forgotten: list[weakref.ref[Any]] = []
        self.alternates = False
        self.timeless: Timeless | None = None
        self.traces: Counter[Kind] = Counter()
        self.functions: dict[CodeType | type, Memory] = {}
        self._lock = Lock()  # to look for an entry changes what its guard expects

    def __reduce__(self) -> Any:
        return dict, ()

    def find(self, f: Rate, kind: Kind, first: tuple[int, ...]) -> Known | None:
        """Return what is known of a function on states of a kind with these first dimensions.

        Outdated entries are kept, because they may apply again later.
        """
        with self._lock:
            for known in reversed(self.entries):
                if (known.kind is not kind and known.kind != kind) or known.first not in (None, first):
                    continue
                found = known.of(f)
                if found is not None and found.has_rows(first[0]):
                    if known is not self.entries[-1]:
                        self.entries = [*(each for each in self.entries if each is not known), known]
                    return found
            return None

    def keep(self, known: Known) -> None:
        """Add an entry, and forget those of other objects, which would live as long as the entries."""
        bound = None if self.owner is not None else object_of(known.f)
        again = next((i for i, other in enumerate(self.forgotten) if bound is not None and other() is bound), None)
        if again is None:
            self.traces[known.kind] += 1
        else:
            del self.forgotten[again]
            self.alternates = True
        if bound is not None and not self.alternates:
            objects = [object_of(each.f) for each in self.entries]
            self.forgotten = [other for other in self.forgotten if other() is not None]
            self.forgotten += [weakref.ref(other) for other in objects if other is not None and other is not bound]
            self.entries = [each for each, of in zip(self.entries, objects, strict=True) if of is None or of is bound]
        self.entries = [*self.entries[-7:], known]

    def forget(self, known: Known) -> None:
        """Remove an entry that turned out to be wrong, given it or a copy of it."""
        self.entries = [each for each in self.entries if each.guard is not known.guard]

    def tired(self, f: Rate, kind: Kind) -> Known | None:
        """Return that f is not compiled if it was traced so often that tracing again does not pay off."""
        if self.traces[kind] < MOST_TRACES:
            return None
        last = next((known.obstacle for known in reversed(self.entries) if known.kind == kind), "")
        return Known(f, kind, last or CHANGES)


FUNCTIONS: Recent[Memory] = Recent(MOST_FUNCTIONS)


def memory_of(f: Rate) -> Memory:
    """Return the memory of a function."""
    if isinstance(f, partial):
        return memory_of(f.func)
    if isinstance(f, Timeless):
        found = memory_of(f.net)
        found.timeless = f
        return found
    if isinstance(f, MethodType) and isinstance(f.__self__, nn.Module):
        f = f.__self__
    if isinstance(f, nn.Module):
        memory = f.__dict__.get(MEMORY)
        if not isinstance(memory, Memory) or memory.owner is not f:
            memory = f.__dict__[MEMORY] = Memory(f)
        return memory
    function = f.__func__ if isinstance(f, MethodType) else f
    if isinstance(function, FunctionType) and (module := _module_within(function)) is not None:
        functions = memory_of(module).functions  # so that nothing else keeps the module alive
        return functions.setdefault(function.__code__, Memory())
    key: Any = function.__code__ if isinstance(function, FunctionType) else type(function)
    return FUNCTIONS.get(key, Memory)


def kin_of(f: Rate) -> Memory | None:
    """Return what is known of other modules of f's class, wrapped around the same modules; ``None`` if there are none.

    Programs make such modules for a single solve, for example with the tensors of a batch as attributes.
    """
    module: Any = f.net if isinstance(f, Timeless) else f
    module = module.__self__ if isinstance(module, MethodType) else module
    if not isinstance(module, nn.Module) or module._parameters:
        return None
    inner = next((each for each in module.modules() if each._parameters), None)  # one without may be new each time
    return None if inner is None else memory_of(inner).functions.setdefault(type(module), Memory())


def forget(f: Rate, known: Known) -> None:
    """Remove what turned out to be wrong of a function."""
    for memory in (memory_of(f), kin_of(f)):
        if memory is not None:
            memory.forget(known)


def object_of(f: Rate) -> Any:
    """Return the object that f is a method of or has in its closure; ``None`` if there is none.

    What is known of f never applies to the functions of another object.
    """
    if isinstance(f, partial):
        return object_of(f.func)
    if isinstance(f, MethodType):
        found = f.__self__
    elif isinstance(f, FunctionType):
        found = next(filter(_is_object, _variables(f)), None)
    else:
        found = f
    return found if _is_object(found) else None


def _is_object(x: Any) -> bool:
    """Whether x is an object of a class in Python, other than a tensor or module."""
    return hasattr(type(x), "__weakref__") and not isinstance(x, Tensor | nn.Module | type)


def _module_within(function: FunctionType) -> nn.Module | None:
    """Return the first module in the closure of a function, if possible one with parameters."""
    modules = [value for value in _variables(function) if isinstance(value, nn.Module)]
    trained = (each for each in modules if next(each.parameters(), None) is not None)
    return modules[0] if len(modules) == 1 else next(trained, modules[0] if modules else None)


def _variables(function: FunctionType) -> Iterator[Any]:
    """Yield the values of the variables in the closure of a function."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents


def forms(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the forms of tensors."""
    return [form(x) for x in tensors]


def first_sizes(states: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Return the first dimension of each state; 1 for scalars."""
    return tuple(x.shape[0] if x.ndim else 1 for x in states)
