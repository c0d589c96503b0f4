"""A cache of what is known of right-hand sides, kept with modules, or under the code of functions."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Lock
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from anode.engine.known import Kind, Known, Rate
from anode.engine.timeless import MEMORY, Timeless
from anode.engine.watch.guard import Guard
from anode.recent import Recent

MOST_FUNCTIONS = 64
"""Maximum number of functions in the cache. A module keeps what is known of it itself."""
MOST_TRACES = 12
"""How often a function that changes is traced again before it is no longer compiled."""
CHANGES = f"f has changed {MOST_TRACES} times since it was first solved"


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
        alternates: Whether a function of such an object was solved again. From then on, none are forgotten for it.
        timeless: The last function that calls the owner with the state only.
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
        if known.obstacle:  # takes the place of an earlier one, which may watch a list that grows
            self.entries = [
                each for each in self.entries if not (each.obstacle and each.f is known.f and each.kind == known.kind)
            ]
            if self.traces[known.kind] >= MOST_TRACES:
                known.guard = Guard()  # which always holds
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
