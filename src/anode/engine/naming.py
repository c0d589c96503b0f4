"""Names of the tensors that a right-hand side uses, as they appear in its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from anode.engine.watch.reach import EMPTY

Key = tuple[int, tuple[int, ...], tuple[int, ...]]


class Names:
    """Finds the name of a tensor: in the modules, closures and global variables that f reads.

    Args:
        f: The right-hand side.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self._found: dict[Key, str] = {}
        for name, tensor in _tensors("", f):
            if tensor.layout == torch.strided:  # programs have no others
                self._found.setdefault(_key(tensor), name)
        self._unnamed = 0

    def of(self, tensor: Tensor) -> str:
        """Return the name of a tensor, or a number if it has no name."""
        if _key(tensor) not in self._found:
            self._unnamed += 1
            self._found[_key(tensor)] = f"c{self._unnamed}"
        return self._found[_key(tensor)]


def _key(tensor: Tensor) -> Key:
    # Not the id of the object, because autograd makes new objects for the same memory.
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _tensors(prefix: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of an object with their names."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, nn.Module):
        dot = f"{prefix}." if prefix else ""
        # Tensors that a module does not register are found in its attributes.
        for path, module in value.named_modules():
            inside = dot + (f"{path}." if path else "")
            plain = {name: x for name, x in vars(module).items() if isinstance(x, Tensor)}
            for name, x in {**module._parameters, **module._buffers, **plain}.items():
                if x is not None:
                    yield inside + name, x
    elif isinstance(value, MethodType):
        yield from _tensors(prefix, value.__self__)
    elif isinstance(value, partial):
        yield from _tensors(prefix, value.func)
        for name, each in (*((f"args[{i}]", x) for i, x in enumerate(value.args)), *value.keywords.items()):
            yield from _inner(name, each)
    elif isinstance(value, FunctionType):
        code, cells = value.__code__, zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        found = {name: cell.cell_contents for name, cell in cells if cell != EMPTY}
        for name, each in (*found.items(), *((name, value.__globals__.get(name)) for name in code.co_names)):
            yield from _inner(name, each)
    elif not prefix:
        yield from _inner("", value)


def _inner(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a variable, and of its elements or attributes."""
    if isinstance(value, (Tensor, nn.Module)):
        yield from _tensors(name, value)
        return
    dot = f"{name}." if name else ""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, (list, tuple)):
        parts = [(f"{name}[{i}]", x) for i, x in enumerate(value)]
    elif isinstance(value, dict):
        parts = [(f"{name}[{key!r}]", x) for key, x in value.items()]
    elif isinstance(value, MethodType):
        parts = [(name, value.__self__)]
    elif type(value).__dictoffset__ and not isinstance(value, (type, FunctionType)):
        parts = [(f"{dot}{key}", x) for key, x in vars(value).items()]
    for inside, each in parts:
        if isinstance(each, (Tensor, nn.Module)):
            yield from _tensors(inside, each)
