"""Find what a code object may change and read, from its bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

Path = tuple[str, ...]
"""A variable and the attributes that follow it: ``("self", "stats")`` for ``self.stats``."""

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
MATCH_ARGS = "__match_args__"
"""Where a class has the names of the attributes that ``case Class(a, b)`` reads."""


@dataclass(frozen=True)
class Store:
    """An assignment to an attribute.

    Attributes:
        name: The attribute.
        path: The object it belongs to; empty if that is not a plain chain of names.
        counts: Whether the assignment adds a constant whole number to the attribute.
    """

    name: str
    path: Path
    counts: bool


@dataclass(frozen=True)
class Summary:
    """What the bytecode of one function shows.

    Attributes:
        stores: Assignments to attributes, and deletions of them.
        loads: How often each attribute is read, except to count.
        outer: Variables of enclosing functions that it assigns.
        globals: Global variables that it reads, each with the attributes that follow.
        handed: Those that it does not only call, so that something else may call them.
        changes: Global variables that it assigns or deletes.
        imports: Modules that it imports, with a leading dot if relative to its package.
    """

    stores: tuple[Store, ...]
    loads: frozenset[str]
    outer: frozenset[str]
    globals: frozenset[Path]
    handed: frozenset[str]
    changes: tuple[str, ...]
    imports: tuple[str, ...]


@lru_cache(maxsize=1024)
def summarize(code: CodeType) -> Summary:
    """Describe what a code object may change and read."""
    steps = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL")]
    assigned = {name for step in steps if "STORE_FAST" in step.opname for name in _names(step)}
    stores, counted, changes = [], set(), []
    for i, step in enumerate(steps):
        if step.opname == "STORE_ATTR":
            load, receiver = _counting(steps, i)
            counted.add(load)
            path = _path(steps, receiver)
            stores.append(Store(step.argval, () if path[:1] and path[0] in assigned else path, load is not None))
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            changes.append(step.argval)
        elif step.opname == "DELETE_ATTR":
            path = _path(steps, i - 1)
            stores.append(Store(step.argval, () if path[:1] and path[0] in assigned else path, False))
    return Summary(
        stores=tuple(stores),
        loads=frozenset(
            str(step.argval)
            for i, step in enumerate(steps)
            if i not in counted and step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
        ).union(MATCH_ARGS for step in steps if step.opname == "MATCH_CLASS"),
        outer=frozenset(
            step.argval
            for step in steps
            if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
        ),
        globals=frozenset(_globals(steps)),
        handed=frozenset(str(step.argval) for step in steps if step.opname in GLOBALS and not _is_called(step)),
        changes=tuple(changes),
        imports=tuple(
            "." * steps[i - 2].argval + step.argval for i, step in enumerate(steps) if step.opname == "IMPORT_NAME"
        ),
    )


@lru_cache(maxsize=256)
def reads(code: CodeType, argument: int) -> bool:
    """Whether a code object may read its positional argument of this number."""
    if argument >= code.co_argcount:
        return True  # in *args, if at all
    return any(code.co_varnames[argument] in _names(step) for step in dis.get_instructions(code))


def nested(code: CodeType) -> Iterator[CodeType]:
    """Return the functions, comprehensions and classes that a code object itself defines."""
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def strings(code: CodeType) -> Iterator[str]:
    """Return the strings among the constants of a code object, which may be names of attributes."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (part for part in constant if isinstance(part, str))


def _names(step: dis.Instruction) -> tuple[str, ...]:
    """Return the variables of an instruction. Some instructions of Python 3.13 have two."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _path(steps: list[dis.Instruction], end: int) -> Path:
    """Return the chain of names that the instructions up to ``end`` load; empty if they do something else."""
    attributes: list[str] = []
    while end >= 0 and steps[end].opname == "LOAD_ATTR":
        attributes.insert(0, steps[end].argval)
        end -= 1
    step = steps[end]
    loads = "LOAD_FAST" in step.opname or step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_GLOBAL")
    return (_names(step)[-1], *attributes) if end >= 0 and loads else ()


def _counting(steps: list[dis.Instruction], store: int) -> tuple[int | None, int]:
    """Find the read of ``x.n += 1`` or ``x.n = x.n + 1`` before a ``STORE_ATTR``, and the end of its receiver."""
    name = steps[store].argval
    if steps[store - 1].opname == "SWAP":  # x.n += 1: load x, COPY, load n, load 1, add, SWAP
        load = store - 4
        if load >= 2 and steps[load - 1].opname == "COPY" and _adds(steps, load, name):
            return load, load - 2
        return None, _before_copy(steps, store)
    receiver = store - 1  # x.n = x.n + 1: load x, load n, load 1, add, load x
    path = _path(steps, receiver)
    load = store - len(path) - 3
    if path and load >= 1 and _adds(steps, load, name) and _path(steps, load - 1) == path:
        return load, receiver
    return None, receiver


def _adds(steps: list[dis.Instruction], load: int, name: str) -> bool:
    read, constant, add = steps[load : load + 3]
    return (
        read.opname == "LOAD_ATTR"
        and read.argval == name
        and constant.opname in ("LOAD_CONST", "LOAD_SMALL_INT")
        and type(constant.argval) in (int, float)
        and constant.argval == constant.argval // 1  # other sums depend on how often they were rounded
        and add.opname == "BINARY_OP"
        and add.argrepr in ("+", "+=")
    )


def _before_copy(steps: list[dis.Instruction], end: int) -> int:
    """Return the last instruction before the ``COPY`` of an augmented assignment."""
    return next((i - 1 for i in range(end, 0, -1) if steps[i].opname == "COPY"), -1)


def _globals(steps: list[dis.Instruction]) -> Iterator[Path]:
    for i, step in enumerate(steps):
        if step.opname in GLOBALS:
            end = i + 1
            while end < len(steps) and steps[end].opname in ("LOAD_ATTR", "LOAD_METHOD"):
                end += 1
            yield (step.argval, *(str(following.argval) for following in steps[i + 1 : end]))


def _is_called(load: dis.Instruction) -> bool:
    """Whether an instruction loads a global variable in order to call it, and prepares the stack for that."""
    return load.opname == "LOAD_GLOBAL" and bool((load.arg or 0) & 1)
