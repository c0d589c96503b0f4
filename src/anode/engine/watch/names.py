"""What a right-hand side reads by name: attributes, names in classes, global variables."""

from __future__ import annotations

import builtins
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from torch import nn

from anode.engine.watch.bytecode import MATCH_ARGS, Path, strings, summarize
from anode.engine.watch.guard import ABSENT, Guard
from anode.engine.watch.rules import builtin_obstacle, is_clean, is_standard, use_obstacle
from anode.engine.watch.same import MACHINERY

STORES = ("_parameters", "_buffers", "_modules")
READS_ANY_NAME = frozenset({"getattr", "hasattr", "attrgetter", "methodcaller", "__getattribute__", MATCH_ARGS})


class UnwatchableError(Exception):
    """Raised if f reaches something whose changes cannot be detected, or uses something with side effects."""


class NameWatch:
    """Watches the names of objects and classes that the running code mentions.

    Attributes:
        guard: Watches everything found.
        any_name: Whether code that ran may read attributes by computed names.
    """

    def __init__(self) -> None:
        self.guard = Guard()
        self.any_name = False
        self._seen: dict[int, Any] = {}
        self._waiting: list[Any] = []
        self._names = {"forward", "training", "__call__", "__new__"}
        self._misses = False
        self._spaces: list[tuple[dict[str, Any], Any, bool]] = []
        self._classes: list[type] = []
        self._watched: set[tuple[int, str]] = set()

    def _mention(self, code: CodeType) -> None:
        """Watch the names that a code object mentions, in everything found so far."""
        new = {*code.co_names, *strings(code), code.co_name} - self._names
        self._names |= new
        if self._notices_misses(code):
            new = self._names
        for space, owner, everything in list(self._spaces):
            self._look_up(space, owner, everything, new)
        for owner in list(self._classes):
            self._look_up_class(owner, new)

    def _notices_misses(self, code: CodeType) -> bool:
        """Whether this is the first code that handles missing attributes, or computes names of attributes."""
        before = self._misses, self.any_name
        self.any_name = self.any_name or not READS_ANY_NAME.isdisjoint({*code.co_names, *summarize(code).loads})
        self._misses = self._misses or self.any_name or bool(code.co_exceptiontable) or code.co_name == "__getattr__"
        return before != (self._misses, self.any_name)

    def _attributes(self, space: dict[str, Any], owner: Any, everything: bool = False) -> None:
        """Watch the attributes that code names, now or later."""
        self._spaces.append((space, owner, everything))
        self._look_up(space, owner, everything, self._names)

    def _look_up(self, space: dict[str, Any], owner: Any, everything: bool, names: set[str]) -> None:
        """Watch the names that an object has, and the names whose absence matters."""
        if self.any_name and id(space) not in self._seen:
            self._seen[id(space)] = space
            self.guard.watch_size(space)
        if self.any_name and not everything:
            names = names | (space.keys() - MACHINERY)
        inherited = [base.__dict__ for base in type(owner).__mro__[:-1]]
        if isinstance(owner, nn.Module):
            inherited += [owner.__dict__[name] for name in STORES]
        for name in names:
            matters = self._misses or any(name in defined for defined in inherited)
            if name in space or (matters and not name.startswith("__")):
                self._slot(space, name, owner)

    def _slot(self, space: dict[str, Any], name: str, owner: Any) -> None:
        if (id(space), name) not in self._watched:
            self._watched.add((id(space), name))
            self.guard.watch_slot(space, name, owner)
            self._waiting.append(space.get(name))

    def _class(self, value: type) -> None:
        self._classes.append(value)
        self._waiting.append(type(value))
        if not is_clean(value.__module__):
            self.guard.watch_attribute(value, "__mro__")
        self._look_up_class(value, self._names)

    def _look_up_class(self, owner: type, names: set[str]) -> None:
        """Watch names in every class that an instance may inherit them from, for ``super()`` too."""
        if (is_clean(owner.__module__) and not issubclass(owner, nn.Module)) or owner.__module__ == "builtins":
            return
        lineage = [base for base in owner.__mro__ if base.__module__ != "builtins"]
        if self.any_name and not is_clean(owner.__module__):
            every = {name for base in lineage if not is_clean(base.__module__) for name in base.__dict__}
            names = names | {name for name in every if not name.startswith("__")}
        for name in names:
            holders = [i for i, base in enumerate(lineage) if name in base.__dict__]
            last = len(lineage) if self._misses and not name.startswith("__") else max(holders, default=-1) + 1
            for base in lineage[:last]:
                self._class_slot(base, name)

    def _class_slot(self, owner: type, name: str) -> None:
        ours = is_clean(owner.__module__) and (name != "forward" or owner is nn.Module)
        if ours or (id(owner), name) in self._watched:
            return
        self._watched.add((id(owner), name))
        self._seen[id(owner)] = owner
        self.guard.watch_class_slot(owner, name)
        self.guard.fix(owner, owner.__dict__.get(name))
        self._waiting.append(owner.__dict__.get(name))

    def _global(self, path: Path, variables: dict[str, Any], is_handed: bool) -> None:
        """Watch a global variable and, if it is a module, what code reads from it.

        Args:
            path: The variable, and the attributes that follow.
            variables: The global variables.
            is_handed: Whether code does not only call it. Calls are observed when they happen.
        """
        name, *attributes = path
        value = variables.get(name, ABSENT)
        module = variables.get("__name__")
        self._seen.setdefault(id(variables), variables)
        if value is ABSENT:
            self._slot_only(variables, name)
            variables, value = vars(builtins), vars(builtins).get(name)
            if is_handed and (obstacle := builtin_obstacle(value)):
                raise UnwatchableError(obstacle)
            if value is hash and not is_standard(module):
                raise UnwatchableError("f calls hash, which differs from object to object")
            if isinstance(value, BuiltinFunctionType):
                return
        space = variables
        while isinstance(value, ModuleType) and attributes:
            self._slot_only(space, name)
            space, name = value.__dict__, attributes.pop(0)
            if obstacle := use_obstacle(value.__name__, name):
                raise UnwatchableError(obstacle)
            if name not in space and not is_clean(value.__name__):
                raise UnwatchableError(f"f uses {value.__name__}.{name}, which that module makes on demand")
            value = space.get(name)
        self._slot_only(space, name)
        self._waiting.append(value)

    def _slot_only(self, space: dict[str, Any], name: str) -> None:
        if (id(space), name) not in self._watched:
            self._watched.add((id(space), name))
            self._seen.setdefault(id(space), space)
            self.guard.watch_slot(space, name, space)
