"""What is known of the functions that were solved: their programs, or why they have none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from anode.engine.program.program import Program
from anode.engine.sequential import SequentialField
from anode.engine.trace.tracing import Traced
from anode.engine.watch.guard import Guard, same
from anode.engine.watch.purity import Counter

Rate = Callable[..., Any]

MOST_FUNCTIONS = 64
"""How many functions are remembered. What is known of a module is kept by the module itself."""
MOST_TRACES = 12
"""How often a function is traced anew before it is called as it is."""
CHANGES = f"f has changed {MOST_TRACES} times since it was first solved"


@dataclass(frozen=True)
class Kind:
    """What a program depends on besides f: everything about the state but the number of points.

    Attributes:
        dtype: Of the state.
        is_tuple: Whether the state is a tuple.
        shapes: Of the components, without their first dimension.
        dims: How many dimensions each component has.
        recording: Whether autograd is recording, which f can see.
    """

    dtype: torch.dtype
    is_tuple: bool
    shapes: tuple[torch.Size, ...]
    dims: tuple[int, ...]
    recording: bool

    @classmethod
    def of(cls, states: tuple[Tensor, ...], is_tuple: bool) -> Kind:
        """The kind of a state."""
        shapes, dims = tuple(x.shape[1:] for x in states), tuple(x.ndim for x in states)
        return cls(states[0].dtype, is_tuple, shapes, dims, torch.is_grad_enabled())


@dataclass
class Known:
    """What is known of a function on states of one kind.

    Attributes:
        f: The function.
        kind: Of the states.
        obstacle: Why it has to be called as it is; nothing if it has a program.
        guard: Tells whether anything that f reads has changed.
        counters: What f counts.
        traced: Its tensors.
        program: What it computes.
        first: The first dimensions of the states, if the program is of no other number of points.
        shapes: Of the traced tensors.
        unused: Parameters of f that the program does not use.
    """

    f: Rate
    kind: Kind
    obstacle: str = ""
    guard: Guard | None = None
    counters: tuple[Counter, ...] = ()
    traced: Traced | None = None
    program: Program | None = None
    first: tuple[int, ...] | None = None
    shapes: list[torch.Size] = field(default_factory=list)
    unused: tuple[Tensor, ...] = ()

    def holds(self) -> bool:
        """Whether it is still true; what was found to be an obstacle is taken to stay one."""
        if self.program is None or self.traced is None or self.guard is None:
            return True
        shapes = [x.shape for x in self.traced.tensors]  # a parameter's data may be replaced
        return shapes == self.shapes and self.guard.holds() and self.traced.is_current()


class Memory:
    """What is known of the functions of one owner. A copy of it is empty, as it is about other objects.

    Attributes:
        entries: What is known, the latest last.
        traces: How often something was traced.
    """

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self.entries: list[Known] = []
        self.traces = 0

    def __reduce__(self) -> Any:
        return Memory, ()

    def find(self, f: Rate, kind: Kind, states: tuple[Tensor, ...]) -> Known | None:
        """What is known of a function on such states. What no longer holds is forgotten."""
        for known in reversed(self.entries):
            if known.kind != kind or not is_same(known.f, f):
                continue
            if known.first is not None and known.first != first_of(states):
                continue
            if known.holds():
                return known
            self.entries.remove(known)
            return None
        return None

    def keep(self, known: Known) -> None:
        """Remember something."""
        self.traces += 1
        self.entries = [*self.entries[-7:], known]

    def forget(self, known: Known) -> None:
        """Forget something that turned out to be wrong."""
        self.entries = [each for each in self.entries if each is not known]

    @property
    def is_tired(self) -> bool:
        """Whether so much was traced that it does not pay."""
        return self.traces >= MOST_TRACES


FUNCTIONS: OrderedDict[Any, Memory] = OrderedDict()


def memory_of(f: Rate) -> Memory:
    """Where what is known of a function is kept."""
    if isinstance(f, partial):
        return memory_of(f.func)
    if isinstance(f, SequentialField):
        f = f.net
    if isinstance(f, MethodType) and isinstance(f.__self__, nn.Module):
        f = f.__self__
    if isinstance(f, nn.Module):
        memory = f.__dict__.get("_anode_memory")
        if memory is None or memory.owner is not f:
            memory = f.__dict__["_anode_memory"] = Memory(f)
        return memory
    function = f.__func__ if isinstance(f, MethodType) else f
    key = function.__code__ if isinstance(function, FunctionType) else type(function)
    if key not in FUNCTIONS:
        FUNCTIONS[key] = Memory()
        if len(FUNCTIONS) > MOST_FUNCTIONS:
            FUNCTIONS.popitem(last=False)
    FUNCTIONS.move_to_end(key)
    return FUNCTIONS[key]


def first_of(states: tuple[Tensor, ...]) -> tuple[int, ...]:
    """The first dimension of each state; 1 for numbers."""
    return tuple(x.shape[0] if x.ndim else 1 for x in states)


def is_same(a: Any, b: Any) -> bool:
    """Whether two functions are one, or made of the same code and the same objects, as a lambda in a loop is."""
    if a is b:
        return True
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        alike = a.__code__ is b.__code__ and a.__globals__ is b.__globals__
        alike = alike and same(a.__defaults__, b.__defaults__) and a.__kwdefaults__ == b.__kwdefaults__ is None
        return alike and all(map(_same_cell, a.__closure__ or (), b.__closure__ or ()))
    if isinstance(a, SequentialField) and isinstance(b, SequentialField):
        return a.net is b.net
    if isinstance(a, MethodType) and isinstance(b, MethodType):
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    if type(a) is partial and type(b) is partial:
        alike = len(a.args) == len(b.args) and a.keywords.keys() == b.keywords.keys()
        given = ((a.keywords[name], b.keywords[name]) for name in a.keywords) if alike else ()
        return (
            alike
            and is_same(a.func, b.func)
            and all(same(x, y) for x, y in (*zip(a.args, b.args, strict=True), *given))
        )
    return False


def _same_cell(a: Any, b: Any) -> bool:
    try:
        return a is b or same(a.cell_contents, b.cell_contents) or is_same(a.cell_contents, b.cell_contents)
    except ValueError:  # one of them is empty
        return False
