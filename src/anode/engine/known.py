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
from anode.engine.watch.guard import Guard, can_swap, same
from anode.engine.watch.purity import Counter
from anode.engine.watch.reach import MEMORY

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
        group_dims: How many dimensions have step sizes of their own, and so are no features.
    """

    dtype: torch.dtype
    is_tuple: bool
    shapes: tuple[torch.Size, ...]
    dims: tuple[int, ...]
    recording: bool
    group_dims: int

    @classmethod
    def of(cls, states: tuple[Tensor, ...], is_tuple: bool, group_dims: int) -> Kind:
        """The kind of a state."""
        shapes, dims = tuple(x.shape[1:] for x in states), tuple(x.ndim for x in states)
        return cls(states[0].dtype, is_tuple, shapes, dims, torch.is_grad_enabled(), group_dims)


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
        members: How many members compute the program; ``None`` for a function that is not mapped over members.
        shared: Of each traced tensor, whether all members use the same.
        unused: Parameters of f that the program does not use.
        moved: Tensors of the guard that stand in the places of traced ones since it last changed, by the ids of those.
        swapped: All tensors that stand in the places of traced ones in the solve at hand.
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
    members: int | None = None
    shared: list[bool] = field(default_factory=list)
    unused: tuple[Tensor, ...] = ()
    moved: dict[int, Tensor] = field(default_factory=dict)
    swapped: dict[int, Tensor] = field(default_factory=dict)

    def swaps(self, f: Rate) -> dict[int, Tensor] | None:
        """The tensors that stand in the places of traced ones now, by the ids of those.

        ``None`` if what is known is not true of f. What was found to be an obstacle is taken to stay one.
        """
        found: dict[int, Tensor] = {}
        if not is_same(self.f, f, found):
            return None
        if self.program is None or self.traced is None or self.guard is None:
            return found
        if [x.shape for x in self.traced.tensors] != self.shapes:  # a parameter's data may be replaced
            return None
        if not self.guard.holds():
            moved = self.guard.swaps()
            if moved is None:
                return None
            self.moved = moved
        found = {old: new for old, new in {**found, **self.moved}.items() if id(new) != old}
        fixed = (*self.traced.sources, *(x for x, _ in self.traced.baked))
        return found if self.traced.is_current() and not any(id(x) in found for x in fixed) else None


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
            if known.kind != kind or known.first not in (None, first_of(states)):
                continue
            swaps = known.swaps(f)
            if swaps is not None:
                known.swapped = swaps
                return known
            if known.f is f:
                self.forget(known)
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
        memory = f.__dict__.get(MEMORY)
        if memory is None or memory.owner is not f:
            memory = f.__dict__[MEMORY] = Memory(f)
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


def is_same(a: Any, b: Any, swaps: dict[int, Tensor]) -> bool:
    """Whether two functions are one, or made of the same code and the same objects, as a lambda in a loop is.

    Args:
        a, b: The functions.
        swaps: Receives the tensors of the second that stand in the places of others of the first.
    """
    if a is b:
        return True
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        alike = a.__code__ is b.__code__ and a.__globals__ is b.__globals__
        alike = alike and same(a.__defaults__, b.__defaults__) and a.__kwdefaults__ == b.__kwdefaults__ is None
        return alike and all(
            _same_cell(x, y, swaps) for x, y in zip(a.__closure__ or (), b.__closure__ or (), strict=True)
        )
    if isinstance(a, SequentialField) and isinstance(b, SequentialField):
        return a.net is b.net
    if isinstance(a, MethodType) and isinstance(b, MethodType):
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    if type(a) is partial and type(b) is partial:
        if len(a.args) != len(b.args) or a.keywords.keys() != b.keywords.keys():
            return False
        given = (*zip(a.args, b.args, strict=True), *((a.keywords[name], b.keywords[name]) for name in a.keywords))
        return is_same(a.func, b.func, swaps) and all(_same_value(x, y, swaps) for x, y in given)
    return False


def _same_cell(a: Any, b: Any, swaps: dict[int, Tensor]) -> bool:
    try:
        return _same_value(a.cell_contents, b.cell_contents, swaps)
    except ValueError:  # one of them is empty
        return False


def _same_value(a: Any, b: Any, swaps: dict[int, Tensor]) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return can_swap(a, b, swaps)
    return same(a, b) or is_same(a, b, swaps)
