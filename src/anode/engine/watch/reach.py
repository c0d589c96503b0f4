"""What a right-hand side can reach from Python, found while it runs."""

from __future__ import annotations

import builtins
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from operator import attrgetter, itemgetter, methodcaller
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    EllipsisType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NotImplementedType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.engine.watch.bytecode import Path, strings, summarize
from anode.engine.watch.guard import ABSENT, SCALARS, Guard
from anode.engine.watch.rules import builtin_obstacle, is_clean, numpy_obstacle, use_obstacle
from anode.ode.field import has_global_hooks

MOST_OBJECTS = 2000
LARGEST_ARRAY = 1024

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_PLAIN_CONTAINERS = (*_CONTAINERS, OrderedDict, defaultdict, Counter, torch.Size)
_LEAVES = (
    *SCALARS,
    *(range, slice, EllipsisType, NotImplementedType, CodeType, GenericAlias, UnionType),
    *(MethodDescriptorType, MethodWrapperType, WrapperDescriptorType, ClassMethodDescriptorType),
    *(GetSetDescriptorType, MemberDescriptorType, attrgetter, itemgetter, methodcaller),
    *(torch.dtype, torch.layout, torch.memory_format, torch.Generator, np.generic, np.dtype),
)
_IMMUTABLE_IN_C = frozenset({"_abc._abc_data", "collections._tuplegetter", "_collections._tuplegetter"})
_STORES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MEMORY = "_anode_memory"
"""The attribute in which a module keeps what is known of it, which f does not read."""
_MACHINERY = frozenset({MEMORY, *nn.Module().__dict__} - {"training"})
"""Attributes of every module; those that matter are watched apart."""
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_READS_ANY_NAME = frozenset({"getattr", "hasattr", "attrgetter", "methodcaller", "__getattribute__"})


class _Plain:
    """A class whose instances have nothing but a ``__dict__``."""


class UnwatchableError(Exception):
    """f reaches something whose changes cannot be noticed, or uses something with side effects."""


class Reach:
    """Everything that f can reach, each thing watched by a guard from the moment it is found.

    Attributes and global variables count only if code that runs names them. Such code is announced with :meth:`enter`
    before it runs, so that what it changes has been seen before.

    Attributes:
        guard: Watches everything found.
        codes: The code of every function found.
        any_name: Whether code that ran may read attributes by names that it computes.
    """

    def __init__(self) -> None:
        self.guard = Guard()
        self.codes: set[CodeType] = set()
        self._seen: dict[int, Any] = {}
        self._waiting: list[Any] = []
        self._names = {"forward", "training", "__call__", "__new__"}
        self.any_name = False
        self._misses = False
        self._entered: set[CodeType] = set()
        self._functions: dict[CodeType, list[FunctionType]] = {}
        self._spaces: list[tuple[dict[str, Any], Any, bool]] = []
        self._classes: list[type] = []
        self._watched: set[tuple[int, str]] = set()
        if has_global_hooks():
            raise UnwatchableError("a hook is registered for all modules")
        for name in _GLOBAL_HOOKS:
            self.guard.watch_contents(getattr(nn.modules.module, name))

    def __contains__(self, value: Any) -> bool:
        """Whether a value was found, and hence existed before."""
        return id(value) in self._seen

    def add(self, value: Any) -> None:
        """Find a value and everything that can be reached from it."""
        self._waiting.append(value)
        while self._waiting:
            self._visit(self._waiting.pop())

    def enter(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Find what a code object can reach that is about to run for the first time.

        Args:
            code: The code.
            variables: The global variables that it sees.
        """
        self._entered.add(code)
        summary = summarize(code)
        new = {*code.co_names, *strings(code), code.co_name} - self._names
        self._names |= new
        if self._notices_misses(code):
            new = self._names
        for path in summary.globals:
            self._global(path, variables)
        for function in self._functions.get(code, ()):
            self._closure(function)
        for space, owner, everything in list(self._spaces):
            self._look_up(space, owner, everything, new)
        for owner in list(self._classes):
            self._look_up_class(owner, new)
        self.add(None)

    def _notices_misses(self, code: CodeType) -> bool:
        """Whether this is the first code that goes on if an attribute is missing, or that computes its name."""
        before = self._misses, self.any_name
        self.any_name = self.any_name or not _READS_ANY_NAME.isdisjoint(code.co_names)
        self._misses = self._misses or self.any_name or bool(code.co_exceptiontable) or code.co_name == "__getattr__"
        return before != (self._misses, self.any_name)

    def _visit(self, value: Any) -> None:
        if isinstance(value, _LEAVES) or type(value) is object or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._seen) > MOST_OBJECTS:
            raise UnwatchableError(f"f reaches more than {MOST_OBJECTS} Python objects")
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, BuiltinFunctionType):
            self._builtin(value)
        elif isinstance(value, MethodType):
            self._waiting += [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            self._waiting += [value.func, value.args, value.keywords]
        elif isinstance(value, property):
            self._waiting.append(value.fget)
        elif isinstance(value, classmethod | staticmethod):
            self._waiting.append(value.__func__)
        elif isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, _CONTAINERS):
            self._container(value)
        else:
            self._object(value)

    def _tensor(self, value: Tensor) -> None:
        self.guard.watch_attribute(value, "requires_grad")
        if value.__dict__:
            self._attributes(value.__dict__, value)

    def _attributes(self, space: dict[str, Any], owner: Any, everything: bool = False) -> None:
        """Watch the attributes that code names, now or later."""
        self._spaces.append((space, owner, everything))
        self._look_up(space, owner, everything, self._names)

    def _object(self, value: Any) -> None:
        kind = type(value)
        if obstacle := numpy_obstacle(kind.__module__, kind.__qualname__) or use_obstacle(
            kind.__module__, kind.__qualname__
        ):
            raise UnwatchableError(obstacle)
        if kind.__basicsize__ > _Plain.__basicsize__ or not kind.__dictoffset__:
            if is_clean(kind.__module__) or f"{kind.__module__}.{kind.__qualname__}" in _IMMUTABLE_IN_C:
                return
            raise UnwatchableError(f"f reaches an object of type {kind.__qualname__}, whose changes cannot be noticed")
        if isinstance(value, nn.Module):
            self._network(value)
        self._space(value)

    def _space(self, value: Any) -> None:
        """Watch the attributes of an object."""
        self.guard.watch_type(value)
        self.guard.watch_attribute(value, "__dict__")
        space: dict[str, Any] = value.__dict__
        # Code in torch's layers is not announced, so all that their objects have may be read.
        torch_bases = (base for base in type(value).__mro__ if is_clean(base.__module__))
        everything = any(base not in (nn.Module, *nn.Module.__mro__) for base in torch_bases)
        self._attributes(space, value, everything)
        self._waiting.append(type(value))
        if everything:
            for key in space.keys() - _MACHINERY:
                self._slot(space, key, value)

    def _network(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise UnwatchableError("f uses a module compiled by torch.jit")
        if type(module).__module__.startswith("torch._dynamo"):
            raise UnwatchableError("f uses a module compiled by torch.compile")
        for name in (*_STORES, *_HOOKS):
            contents = module.__dict__[name]
            if name in _HOOKS and contents:
                raise UnwatchableError(f"a hook is registered on {type(module).__name__}")
            self.guard.watch_contents(contents)
            if name in _STORES:
                self.guard.watch_slot(module.__dict__, name, module)
                self._waiting += contents.values()

    def _container(self, value: Any) -> None:
        if type(value) not in _PLAIN_CONTAINERS and type(value).__dictoffset__:
            self._space(value)
        elif type(value) not in _PLAIN_CONTAINERS and not isinstance(value, tuple):
            raise UnwatchableError(f"f reaches a {type(value).__qualname__}, whose changes cannot be noticed")
        if not isinstance(value, tuple | frozenset):
            self.guard.watch_contents(value)
        if len(value) > MOST_OBJECTS:
            raise UnwatchableError(f"f reaches a {type(value).__name__} of {len(value)} elements")
        self._waiting += value
        if isinstance(value, dict):
            self._waiting += dict.values(value)
        if isinstance(value, defaultdict):
            self._waiting.append(value.default_factory)

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        if value.size > LARGEST_ARRAY or value.dtype.hasobject:
            raise UnwatchableError(f"f reaches a NumPy array of {value.size} elements of type {value.dtype}")
        self.guard.watch_array(value)

    def _builtin(self, value: BuiltinFunctionType) -> None:
        if isinstance(value.__self__, ModuleType) or value.__self__ is None:
            if obstacle := builtin_obstacle(value):
                raise UnwatchableError(obstacle)
        else:
            self._waiting.append(value.__self__)

    def _function(self, function: FunctionType) -> None:
        if "_torchdynamo_orig_callable" in function.__dict__:
            raise UnwatchableError("f uses a function compiled by torch.compile")
        self.codes.add(function.__code__)
        self._functions.setdefault(function.__code__, []).append(function)
        if is_clean(function.__globals__.get("__name__")):  # not announced when it runs
            self._closure(function)
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.guard.watch_attribute(function, name)
        self._attributes(function.__dict__, function)
        if function.__code__ in self._entered:
            self._closure(function)

    def _closure(self, function: FunctionType) -> None:
        """Watch what only a call of the function reads."""
        self._waiting += [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                self._waiting.append(cell.cell_contents)
            except ValueError:
                raise UnwatchableError(f"{function.__qualname__} uses a variable that has no value yet") from None
            self.guard.watch_attribute(cell, "cell_contents")

    def _class(self, value: type) -> None:
        self._classes.append(value)
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
        self._waiting.append(owner.__dict__.get(name))

    def _look_up(self, space: dict[str, Any], owner: Any, everything: bool, names: set[str]) -> None:
        """Watch those of the names that an object has, and those whose absence matters."""
        if self.any_name and id(space) not in self._seen:
            self._seen[id(space)] = space
            self.guard.watch_size(space)
        if self.any_name and not everything:
            names = names | (space.keys() - _MACHINERY)
        inherited = [base.__dict__ for base in type(owner).__mro__[:-1]]
        if isinstance(owner, nn.Module):
            inherited += [owner.__dict__[name] for name in _STORES]
        for name in names:
            matters = self._misses or any(name in defined for defined in inherited)
            if name in space or (matters and not name.startswith("__")):
                self._slot(space, name, owner)

    def _slot(self, space: dict[str, Any], name: str, owner: Any) -> None:
        if (id(space), name) not in self._watched:
            self._watched.add((id(space), name))
            self.guard.watch_slot(space, name, owner)
            self._waiting.append(space.get(name))

    def _module(self, module: ModuleType) -> None:
        """Watch a Python module that is used other than by its attributes."""
        if obstacle := use_obstacle(module.__name__):
            raise UnwatchableError(obstacle)
        if not is_clean(module.__name__):
            self._attributes(module.__dict__, module)

    def _global(self, path: Path, variables: dict[str, Any]) -> None:
        """Watch a global variable, and what is read of it if it is a module."""
        name, *attributes = path
        value = variables.get(name, ABSENT)
        self._seen.setdefault(id(variables), variables)
        if value is ABSENT:
            self._slot(variables, name, variables)
            if obstacle := builtin_obstacle(vars(builtins).get(name)):
                raise UnwatchableError(obstacle)
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
