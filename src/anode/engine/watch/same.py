"""Whether two values, or two functions, are the same for a right-hand side that uses one or the other."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from anode.engine.timeless import MEMORY, Timeless

MACHINERY = frozenset({MEMORY, *nn.Module().__dict__} - {"training"})
"""Attributes of every module; those that matter are watched apart."""
POINTER = struct.calcsize("P")
CONTAINERS = (dict, OrderedDict, list, set)
"""Types of containers whose elements are compared, besides tuples without attributes."""
SCALARS: frozenset[type] = frozenset({bool, int, float, complex, str, bytes, type(None), torch.device})
"""Types whose values are compared by ``repr``, which tells 0.0 from -0.0 and treats NaN as equal to itself."""


def same(before: Any, after: Any) -> bool:
    """Whether two values are the same for f: one object, or exactly equal scalars or tuples of them."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if type(before) in SCALARS:
        return repr(before) == repr(after)
    return type(before) is tuple and len(before) == len(after) and all(map(same, before, after))


def form(x: Tensor) -> tuple[Any, ...]:
    """Return everything about a tensor that is part of a program, except its place in memory."""
    return x.shape, x.dtype, x.device, x.layout


def can_swap(old: Tensor, new: Tensor, swaps: dict[int, Tensor]) -> bool:
    """Whether a tensor can replace another in a program; if so, it is stored in ``swaps`` by the id of the other.

    The number of rows may differ: of some tensors, it is that of the points.
    """
    alike = old is new or (
        type(old) is type(new) is Tensor
        and old.ndim == new.ndim
        and (old.shape[1:], *form(old)[1:]) == (new.shape[1:], *form(new)[1:])
        and old.requires_grad == new.requires_grad
        and not (vars(old) or vars(new))  # attributes that f may read
    )
    return alike and swaps.setdefault(id(old), new) is new


def is_plain_object(x: Any) -> bool:
    """Whether x is an object of a class in Python, whose whole state is in its ``__dict__``."""
    kind = type(x)
    pointers = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)  # in the object itself, as slots are
    return kind.__dictoffset__ != 0 and kind.__basicsize__ <= object.__basicsize__ + POINTER * pointers


class Comparison:
    """Compares functions that may be equal: made of the same code and objects, such as a lambda in a loop.

    Objects and modules are compared by their attributes, such as those of a module that is made for each solve around
    another one. Each takes the place of exactly one other: f may use ``is``, or find objects in a dict.

    Args:
        is_read: Whether the first function may read an attribute, given the ``__dict__`` of an object and a name.
            Other attributes may differ.

    Attributes:
        swaps: The tensors of the second function that replace others of the first, by the ids of the latter.
        places: The ids of the first function's variables and containers that were searched for such tensors.
        objects: The second function's objects and tensors, by the ids of those of the first in whose place they are.
    """

    def __init__(self, is_read: Callable[[dict[str, Any], str], bool] = lambda space, name: True) -> None:
        self.swaps: dict[int, Tensor] = {}
        self.places: set[int] = set()
        self.objects: dict[int, Any] = {}
        self._is_read = is_read
        self._back: dict[int, Any] = {}  # the first function's objects, by the ids of the second function's

    def replaced(self) -> set[int]:
        """Return the ids of the objects that replace others, and of these others."""
        pairs = ((old, id(new)) for old, new in self.objects.items() if not isinstance(new, Tensor))
        return {each for pair in pairs if pair[0] != pair[1] for each in pair}

    def is_same(self, a: Any, b: Any) -> bool:
        """Whether two functions compute the same, except for replaced tensors. Values are compared likewise."""
        if id(a) in self.objects or id(b) in self._back:  # compared before, or being compared: it may hold itself
            return self.objects.get(id(a)) is b and self._back.get(id(b)) is a
        self.objects[id(a)], self._back[id(b)] = b, a
        return a is b or self._same_contents(a, b) or self._same_parts(a, b)

    def _same_parts(self, a: Any, b: Any) -> bool:
        """Whether two functions or objects have the same code, class, variables and attributes, or tensors can swap."""
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return can_swap(a, b, self.swaps)
        if isinstance(a, FunctionType) and isinstance(b, FunctionType):
            return self._same_function(a, b)
        if isinstance(a, Timeless) and isinstance(b, Timeless):
            return self._same_value(a.net, b.net)
        if isinstance(a, MethodType) and isinstance(b, MethodType):
            return a.__func__ is b.__func__ and self._same_value(a.__self__, b.__self__)
        if type(a) is partial and type(b) is partial:
            if len(a.args) != len(b.args) or a.keywords.keys() != b.keywords.keys():
                return False
            self.places |= {id(a.args), id(a.keywords)}
            given = (*zip(a.args, b.args, strict=True), *((a.keywords[name], b.keywords[name]) for name in a.keywords))
            return self.is_same(a.func, b.func) and all(self._same_value(x, y) for x, y in given)
        return type(a) is type(b) and is_plain_object(a) and self._same_object(a, b)

    def _same_object(self, a: Any, b: Any) -> bool:
        own, other = a.__dict__, b.__dict__
        self.places.add(id(own))
        names = [name for name in {**own, **other} if name in MACHINERY or self._is_read(own, name)]
        return all(
            name == MEMORY or (name in own and name in other and self._same_value(own[name], other[name]))
            for name in names
        )

    def _same_function(self, a: FunctionType, b: FunctionType) -> bool:
        return (
            a.__code__ is b.__code__
            and a.__globals__ is b.__globals__
            and self._same_value(a.__defaults__, b.__defaults__)
            and self._same_value(a.__kwdefaults__, b.__kwdefaults__)
            and _same_entries(a.__dict__, b.__dict__)
            and all(self._same_cell(x, y) for x, y in zip(a.__closure__ or (), b.__closure__ or (), strict=True))
        )

    def _same_cell(self, a: Any, b: Any) -> bool:
        self.places.add(id(a))
        try:
            return self._same_value(a.cell_contents, b.cell_contents)
        except ValueError:  # one of them has no value
            return bool(a == b)

    def _same_value(self, a: Any, b: Any) -> bool:
        return (a is not b and same(a, b)) or self.is_same(a, b)

    def _same_contents(self, a: Any, b: Any) -> bool:
        """Whether two containers have the same elements in the same order."""
        is_tuple = isinstance(a, tuple) and not type(a).__dictoffset__
        if type(a) is not type(b) or not (is_tuple or type(a) in CONTAINERS) or len(a) != len(b):
            return False
        self.places.add(id(a))
        if isinstance(a, set):
            return a == b and all(type(each) in SCALARS for each in a)
        if isinstance(a, dict):
            return all(map(same, a, b)) and all(map(self._same_value, a.values(), b.values()))
        return all(map(self._same_value, a, b))


def _same_entries(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
