"""Detect changes of anything that a recorded right-hand side reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from types import CellType, CodeType, MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from anode.engine.extension import extension
from anode.engine.watch.same import SCALARS, can_swap, same

ABSENT: Any = object()
"""The value of a name that does not exist."""


@dataclass(frozen=True)
class Change:
    """A value that has changed.

    Attributes:
        owner: The object it belongs to.
        name: The attribute or key; ``None`` for an element or for the number of elements.
        before, after: The two values; ``ABSENT`` for none.
    """

    owner: Any
    name: Any
    before: Any
    after: Any


@dataclass(slots=True)
class _Table:
    """Expected values, and how to read the present ones."""

    read: Callable[[], Iterator[Any]]
    expected: list[Any] = field(default_factory=list)
    labels: list[tuple[Any, Any]] = field(default_factory=list)

    def changes(self) -> list[Change]:
        """List what changed. A value that was replaced by an equal one becomes the expected one."""
        found = []
        for i, (before, after) in enumerate(zip(self.expected, self.read(), strict=False)):
            if same(before, after):
                self.expected[i] = after
            else:
                found.append(Change(*self.labels[i], before, after))
        return found

    def triples(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the owner, the name and the expected value of each."""
        return ((*label, expected) for label, expected in zip(self.labels, self.expected, strict=True))


@dataclass(slots=True)
class _Slot:
    """A key of the ``__dict__`` of an owner, and the value it should have."""

    space: dict[Any, Any]
    key: Any
    owner: Any
    expected: Any
    first: Any


class Guard:
    """Watches values, and reports whether any of them has changed.

    Methods that add something to watch expect its present value. The guard keeps what it watches alive, so that no
    other object can take its place unnoticed.

    Attributes:
        tensors: All tensors found. The guard ignores changes of their values and shapes.
        codes: The code that ran, except that of torch and of this library, whose reads are all watched. Other code may
            read what the guard does not watch.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.codes: set[CodeType] = set()
        self._moved: dict[int, Tensor] | None = {}  # for the first function alone
        self._fixed: list[tuple[Any, Any]] = []  # values in places where none can take another's, and the places
        self._arrays: list[tuple[np.ndarray[Any, Any], tuple[Any, ...]]] = []
        self._objects: list[Any] = []
        self._attributes: tuple[list[Any], list[str]] = ([], [])
        self._cells: dict[int, CellType] = {}  # variables of closures, by their places among the attributes
        self._first: dict[int, Any] = {}  # and what they held at first
        self._slots: dict[tuple[int, Any], _Slot] = {}
        self._arranged: tuple[Any, ...] | None = None
        self._held: tuple[Any, set[int]] = (None, set())  # ids of all that is stored somewhere, for an arrangement
        self._class_slots: tuple[list[MappingProxyType[str, Any]], list[str]] = ([], [])
        self._empty: list[Collection[Any]] = []
        self._sized: list[Collection[Any]] = []
        self._containers: list[Collection[Any]] = []
        self._counts: list[int] = []  # of their elements
        self._mappings: list[dict[Any, Any]] = []
        self._types = _Table(lambda: map(type, self._objects))
        self._read = _Table(lambda: map(_attribute, *self._attributes))
        self._inherited = _Table(lambda: map(MappingProxyType.get, *self._class_slots, repeat(ABSENT)))
        self._lengths = _Table(lambda: map(len, self._sized))
        self._items = _Table(lambda: chain.from_iterable(self._containers))
        self._values = _Table(lambda: chain.from_iterable(map(dict.values, self._mappings)))
        self._tables = [self._lengths, self._types, self._inherited, self._read, self._items, self._values]

    def watch_type(self, owner: Any) -> None:
        """Watch an object's class."""
        self._objects.append(owner)
        self._add(self._types, type(owner), owner, "__class__")

    def watch_attribute(self, owner: Any, name: str) -> None:
        """Watch an attribute that is stored in C, such as ``__code__`` or ``requires_grad``."""
        if isinstance(owner, CellType):
            self._cells[len(self._read.expected)] = owner
            self._first[len(self._read.expected)] = owner.cell_contents
        self._attributes[0].append(owner)
        self._attributes[1].append(name)
        self._add(self._read, getattr(owner, name), owner, name)

    def watch_slot(self, space: dict[Any, Any], key: Any, owner: Any) -> None:
        """Watch one key of a ``__dict__``, which may be absent."""
        if (id(space), key) not in self._slots:
            self._slots[id(space), key] = _Slot(space, key, owner, space.get(key, ABSENT), space.get(key, ABSENT))
            self._arranged = None

    def watch_class_slot(self, owner: type, name: str) -> None:
        """Watch whether a class itself defines a name, and its value."""
        space = owner.__dict__
        self._class_slots[0].append(space)
        self._class_slots[1].append(name)
        self._add(self._inherited, space.get(name, ABSENT), owner, name)

    def watch_contents(self, container: Collection[Any]) -> None:
        """Watch the elements of a container, or the keys and values of a dict, and their order."""
        items = list(container)
        if not items and not len(container):
            self._empty.append(container)
            return
        self.watch_size(container)
        self._containers.append(container)
        self._counts.append(len(items))  # which a class may not tell by its length
        for item in items:
            self._add(self._items, item, container, None)
        if isinstance(container, dict):
            self._mappings.append(container)
            for key, value in dict.items(container):
                self._add(self._values, value, container, key)

    def watch_size(self, container: Collection[Any]) -> None:
        """Watch only the number of elements of a container."""
        self._sized.append(container)
        self._add(self._lengths, len(container), container, None)

    def is_read(self, space: dict[Any, Any], key: str) -> bool:
        """Whether f may read one key of the ``__dict__`` of an object that it reaches. Its counters are not read."""
        return (id(space), key) in self._slots

    def fix(self, owner: Any, value: Any) -> None:
        """Note a value that is not an attribute or variable, so that no other can replace it."""
        if type(value) not in SCALARS:
            self._fixed.append((owner, value))

    def watch_array(self, array: np.ndarray[Any, Any]) -> None:
        """Watch the values of a NumPy array."""
        self._arrays.append((array, _contents(array)))

    def _add(self, table: _Table, value: Any, owner: Any, name: Any) -> None:
        table.expected.append(value)
        table.labels.append((owner, name))
        self._arranged = None

    def ignore(self, space: dict[Any, Any], key: str) -> None:
        """Stop watching one key of a ``__dict__``."""
        del self._slots[id(space), key]
        self._arranged = None

    def changes(self) -> list[Change]:
        """Return what has changed since it was first watched."""
        found = []
        for slot in self._slots.values():
            after = slot.space.get(slot.key, ABSENT)
            if not same(slot.expected, after):
                found.append(Change(slot.owner, slot.key, slot.expected, after))
            else:
                slot.expected = after
        self._arranged = None
        counts = zip([*self._containers, *self._empty], [*self._counts, *[0] * len(self._empty)], strict=True)
        resized = (Change(each, None, count, now) for each, count in counts if (now := len(list(each))) != count)
        arrays = (Change(array, None, old, new) for array, old in self._arrays if (new := _contents(array)) != old)
        return [*found, *(change for table in self._tables for change in table.changes()), *resized, *arrays]

    def undo(self) -> list[Change]:
        """Set attributes, globals, lists and dicts back to what they were. Return everything that had changed."""
        changes = [] if self.holds() else self.changes()
        for slot in self._slots.values() if changes else ():
            if slot.expected is not ABSENT:
                slot.space[slot.key] = slot.expected
            else:
                slot.space.pop(slot.key, None)
        changed = {id(change.owner) for change in changes}
        items = dict.fromkeys(map(id, self._empty), ())
        items.update((id(each), found) for each, found in self._parted(self._containers, self._items))
        values = {id(each): found for each, found in self._parted(self._mappings, self._values)}
        for each in (*self._containers, *self._empty):
            if id(each) in changed and isinstance(each, list):
                each[:] = items[id(each)]
            elif id(each) in changed and isinstance(each, dict):
                dict.clear(each)
                dict.update(each, zip(items[id(each)], values.get(id(each), ()), strict=True))
        return changes

    def swap(self, swaps: dict[int, Tensor], places: Collection[int]) -> dict[int, Tensor] | None:
        """Return the tensors that are now in the places of others, by the ids of these, or of themselves.

        Models with a context set such a tensor before every solve. Returns ``None`` if anything else has changed.

        Args:
            swaps: The tensors that another function has instead of the present ones, by the ids of the latter.
            places: The ids of the variables and containers in which it has them.
        """
        if not swaps and self._moved is not None and self.holds():
            return self._moved
        slots = [(slot, slot.expected, slot.space.get(slot.key, ABSENT)) for slot in self._slots.values()]
        cells = [(i, self._read.expected[i], _attribute(cell, "cell_contents")) for i, cell in self._cells.items()]
        pairs: list[tuple[Any, Any, Any]] = [(slot.space, slot.first, now) for slot, _, now in slots]
        pairs += [(self._cells[i], self._first[i], now) for i, _, now in cells]
        pairs += [(owner, value, value) for owner, value in self._fixed]
        found: dict[int, Tensor] = {}
        for owner, first, now in pairs:
            new = swaps.get(id(now), now) if id(owner) in places else now
            if isinstance(first, Tensor) and isinstance(new, Tensor) and not can_swap(first, new, found):
                return None
        if len(set(map(id, found.values()))) < len(found):  # f may tell two tensors from one
            return None
        self._expect([(slot, now) for slot, _, now in slots], [(i, now) for i, _, now in cells])
        if not self.holds():
            self._expect([(slot, then) for slot, then, _ in slots], [(i, then) for i, then, _ in cells])
            return None
        self._moved = None if swaps else found
        return found

    def has_elsewhere(self, values: Collection[int], places: Collection[int]) -> bool:
        """Whether any of these objects is also stored outside these variables and containers.

        Args:
            values: The ids of the objects.
            places: The ids of the variables and containers.
        """
        arranged, held = self._held  # most objects are stored nowhere, such as a lambda
        if arranged is None or arranged is not self._arranged:
            held = {id(x) for _, x in self._stored()}
            self._held = self._arranged, held
        if held.isdisjoint(values):
            return False
        return any(id(x) in values and id(owner) not in places for owner, x in self._stored())

    def _stored(self) -> Iterator[tuple[Any, Any]]:
        """Yield everything that is stored in a variable or container, after the latter."""
        cells = ((cell, self._read.expected[i]) for i, cell in self._cells.items())
        slots = ((slot.space, slot.expected) for slot in self._slots.values())
        return chain(cells, slots, self._fixed)

    def _expect(self, slots: list[tuple[_Slot, Any]], cells: list[tuple[int, Any]]) -> None:
        """Expect other tensors in place of the first ones."""
        for slot, value in slots:
            if isinstance(slot.first, Tensor) and isinstance(value, Tensor) and slot.expected is not value:
                slot.expected, self._arranged = value, None
        for i, value in cells:
            if isinstance(self._first[i], Tensor) and isinstance(value, Tensor) and self._read.expected[i] is not value:
                self._read.expected[i], self._arranged = value, None

    def holds(self) -> bool:
        """Whether nothing has changed.

        It runs before every solve, so compiled code compares identities. Values are compared only if an identity
        differs.
        """
        if self._arranged is None:
            self._arranged = self._arrange()
        if not extension.unchanged(*self._arranged):
            return not self.changes()
        return not self._arrays or all(_contents(array) == old for array, old in self._arrays)

    def _arrange(self) -> tuple[Any, ...]:
        """Return everything that is watched as the arguments of the engine's ``unchanged``: flat lists."""
        slots = ((slot.space, slot.key, slot.expected) for slot in self._slots.values())
        types = zip(self._objects, self._types.expected, strict=True)
        sizes = (*zip(self._sized, self._lengths.expected, strict=True), *((each, 0) for each in self._empty))
        items = self._parted(self._containers, self._items)
        values = self._parted(self._mappings, self._values)
        lists = (slots, self._read.triples(), self._inherited.triples(), types, sizes, items, values)
        return (*(list(chain.from_iterable(each)) for each in lists), ABSENT)

    def _parted(self, containers: Collection[Any], table: _Table) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Yield each of these containers with the values expected in it."""
        counts, rest = dict(zip(map(id, self._containers), self._counts, strict=True)), iter(table.expected)
        return ((each, tuple(islice(rest, counts[id(each)]))) for each in containers)


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute; ``ABSENT`` if it is gone, as that of an empty cell is."""
    try:
        return getattr(owner, name)
    except (AttributeError, ValueError):
        return ABSENT


def _contents(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()
