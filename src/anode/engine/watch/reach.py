"""Find what a right-hand side can reach from Python, while it runs."""

from __future__ import annotations

import functools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from operator import itemgetter
from types import (
    BuiltinFunctionType,
    CellType,
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
from torch.nn.utils import parametrize

from anode.engine.watch.bytecode import summarize
from anode.engine.watch.names import READS_ANY_NAME, STORES, NameWatch, UnwatchableError
from anode.engine.watch.rules import builtin_obstacle, is_clean, numpy_obstacle, use_obstacle
from anode.engine.watch.same import MACHINERY, SCALARS, is_plain_object
from anode.ode.field import has_global_hooks

MOST_OBJECTS = 2000
LARGEST_ARRAY = 1024

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_PLAIN_CONTAINERS = (*_CONTAINERS, OrderedDict, defaultdict, Counter, torch.Size)
_LEAVES = (
    *SCALARS,
    *(range, slice, EllipsisType, NotImplementedType, CodeType, GenericAlias, UnionType),
    *(MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType),
    *(GetSetDescriptorType, MemberDescriptorType, itemgetter),
    *(torch.dtype, torch.layout, torch.memory_format, torch.Generator, np.generic, np.dtype),
)
_IMMUTABLE_IN_C = frozenset({"_abc._abc_data", "collections._tuplegetter", "_collections._tuplegetter"})
EMPTY = CellType()
"""A variable of a closure that has no value. Others without one are equal to it."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)


@dataclass(frozen=True)
class Emptiness:
    """That a variable of a closure has no value."""

    cell: CellType

    @property
    def holds(self) -> bool:
        """Whether it still has none."""
        return self.cell == EMPTY


class Reach(NameWatch):
    """Everything that f can reach. A guard watches each object from the moment it is found.

    Attributes and global variables count only if running code names them. Call :meth:`enter` before code runs, so that
    the guard sees values before the code changes them.

    Attributes:
        codes: The code of every function found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.codes: set[CodeType] = set()
        self._entered: set[CodeType] = set()
        self._functions: dict[CodeType, list[FunctionType]] = {}

    def surroundings(self) -> None:
        """Watch what every module reads: hooks for all of them, and whether parametrizations are cached."""
        for name in _GLOBAL_HOOKS:
            self.guard.watch_contents(getattr(nn.modules.module, name))
        self.guard.watch_slot(vars(parametrize), "_cache_enabled", parametrize)
        if has_global_hooks():
            raise UnwatchableError("a hook is registered for all modules")
        if parametrize._cache_enabled:
            raise UnwatchableError("torch.nn.utils.parametrize.cached is active")

    def __contains__(self, value: Any) -> bool:
        """Whether a value was found, and so existed before."""
        return id(value) in self._seen

    def add(self, value: Any) -> None:
        """Find a value and everything that can be reached from it."""
        self._waiting.append(value)
        while self._waiting:
            self._visit(self._waiting.pop())

    def enter(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Find what a code object can reach, before it runs for the first time.

        Args:
            code: The code.
            variables: The global variables that it sees.
        """
        self._entered.add(code)
        self._mention(code)
        summary = summarize(code)
        for path in summary.globals:
            self._global(path, variables, path[0] in summary.handed)
        for function in self._functions.get(code, ()):
            self._closure(function)
        self.add(None)

    def watch(self, space: dict[str, Any], name: str, owner: Any) -> None:
        """Watch an attribute of an object or a global variable, which may not exist."""
        self._slot(space, name, owner)
        self.add(None)

    def imports(self, name: str) -> None:
        """Find what code imports while it runs: a module that is loaded, and its packages."""
        for end in (i for i, letter in enumerate(f"{name}.") if letter == "."):
            self._slot_only(sys.modules, name[:end])
            self._waiting.append(sys.modules[name[:end]])
        self.add(None)

    def _visit(self, value: Any) -> None:
        leaf = isinstance(value, _LEAVES)
        if (leaf and not type(value).__dictoffset__) or type(value) is object or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._seen) > MOST_OBJECTS:
            raise UnwatchableError(f"f reaches more than {MOST_OBJECTS} Python objects")
        if leaf:  # of a class of one's own, such as an enumeration of integers, whose objects have attributes
            self._space(value)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, BuiltinFunctionType):
            self._builtin(value)
        elif isinstance(value, MethodWrapperType):
            self._waiting.append(value.__self__)
            if value.__name__ in READS_ANY_NAME:
                raise UnwatchableError(f"f reaches {value.__name__} by another name")
        elif isinstance(value, MethodType):
            self._waiting += [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self.guard.watch_attribute(value, name)
            self._attributes(vars(value), value)
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
        self.guard.tensors.append(value)
        self.guard.watch_attribute(value, "requires_grad")
        if vars(value):
            self._attributes(vars(value), value)
        else:
            self.guard.watch_contents(vars(value))

    def _object(self, value: Any) -> None:
        kind = type(value)
        if obstacle := numpy_obstacle(kind.__module__, kind.__qualname__) or use_obstacle(
            kind.__module__, kind.__qualname__
        ):
            raise UnwatchableError(obstacle)
        if not is_plain_object(value):
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
            for key in space.keys() - MACHINERY:
                self._slot(space, key, value)

    def _network(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise UnwatchableError("f uses a module compiled by torch.jit")
        if type(module).__module__.startswith("torch._dynamo"):
            raise UnwatchableError("f uses a module compiled by torch.compile")
        for name in (*STORES, *_HOOKS):
            contents = module.__dict__[name]
            self.guard.watch_contents(contents)
            if name in _HOOKS and contents:
                raise UnwatchableError(f"a hook is registered on {type(module).__name__}")
            if name in STORES:
                self.guard.watch_slot(module.__dict__, name, module)
                self._waiting += contents.values()
                for each in contents.values():
                    self.guard.fix(contents, each)

    def _container(self, value: Any) -> None:
        if type(value) not in _PLAIN_CONTAINERS and type(value).__dictoffset__:
            self._space(value)
        elif type(value) not in _PLAIN_CONTAINERS and not isinstance(value, tuple):
            raise UnwatchableError(f"f reaches a {type(value).__qualname__}, whose changes cannot be noticed")
        if not isinstance(value, tuple | frozenset):
            self.guard.watch_contents(value)
        if len(value) > MOST_OBJECTS:
            raise UnwatchableError(f"f reaches a {type(value).__name__} of {len(value)} elements")
        held = [*value, *(dict.values(value) if isinstance(value, dict) else ())]
        self._waiting += held
        for each in held:
            self.guard.fix(value, each)
        if isinstance(value, defaultdict):
            self._waiting.append(value.default_factory)

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        if value.size > LARGEST_ARRAY or value.dtype.hasobject:
            raise UnwatchableError(f"f reaches a NumPy array of {value.size} elements of type {value.dtype}")
        if type(value).__dictoffset__:
            self._space(value)
        self.guard.watch_array(value)

    def _builtin(self, value: BuiltinFunctionType) -> None:
        if isinstance(value.__self__, ModuleType) or value.__self__ is None:
            if value.__name__ in READS_ANY_NAME:
                raise UnwatchableError(f"f reaches {value.__name__} by another name")
            if obstacle := builtin_obstacle(value):
                raise UnwatchableError(obstacle)
        else:
            self._waiting.append(value.__self__)
            self.guard.fix(value, value.__self__)

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
        """Watch what a function reads only when it is called."""
        self._waiting += [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            if cell == EMPTY:  # a variable without a value, such as one that is assigned in another branch
                self.guard.watch_attribute(Emptiness(cell), "holds")
            else:
                self._waiting.append(cell.cell_contents)
                self.guard.watch_attribute(cell, "cell_contents")

    def _module(self, module: ModuleType) -> None:
        """Watch a Python module that is not used only through its attributes."""
        if obstacle := use_obstacle(module.__name__):
            raise UnwatchableError(obstacle)
        if not is_clean(module.__name__):
            self._attributes(module.__dict__, module)
