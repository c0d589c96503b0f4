"""Argument checks, whose errors name the argument, what it takes and what it got."""

from __future__ import annotations

import cmath
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=type[Any])


class Words(str):
    """A description of a value for error messages, which is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def require(condition: bool, name: str, got: Any, takes: str) -> None:
    """Raise ``ValueError`` unless the condition holds.

    Args:
        condition: Whether the argument is valid.
        name: The name of the argument.
        got: Its value.
        takes: What the argument takes.
    """
    if not condition:
        got = describe(got) if isinstance(got, Tensor | np.ndarray) and math.prod(got.shape) > 1 else got
        raise ValueError(f"{name}: takes {takes}, got {got!r}")


def flag(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless an argument is a boolean."""
    require(isinstance(value, bool | np.bool_), name, value, "True or False")


def lookup(name: str, key: Any, table: dict[str, T]) -> T:
    """Return an entry of a table, or raise ``ValueError`` with the nearest name."""
    if isinstance(key, str) and key in table:
        return table[key]
    raise ValueError(f"{name}: takes one of {', '.join(table)}, got {key!r}{nearest(key, table, 0.65)}")


def nearest(name: Any, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint at the most similar known name, ignoring case; empty if none is similar."""
    lower = {each.lower(): each for each in known}
    near = get_close_matches(str(name).lower(), lower, n=1, cutoff=cutoff)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""


def check_function(name: str, function: Any, takes: str, arguments: int | None = None) -> None:
    """Raise ``TypeError`` unless an argument is a function or a callable object.

    Args:
        name: The name of the argument.
        function: Its value.
        takes: What the argument takes.
        arguments: Number of positional arguments that it must take; it may then be a class, which returns an object. If
            ``None``, the caller checks them, and a class is refused.
    """
    if not callable(function):
        got: str | None = repr(function) if repr(function).isprintable() else describe(function)
    elif arguments is not None:
        got = uncallable(function, arguments)
    else:
        got = f"{function!r}; pass an object, {function.__name__}(...)" if isinstance(function, type) else None
    if got is not None:
        raise TypeError(f"{name}: takes {takes}, got {got}")


def uncallable(function: Callable[..., Any], arguments: int) -> str | None:
    """Return why a function cannot be called with this number of arguments; ``None`` if it can, or if unknown."""
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (ValueError, TypeError):  # a built-in function may have no signature
        return None
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        called = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{called}{signature}: {error}"
    return None


def names_arguments(function: Callable[P, T], hints: Mapping[str, str] | None = None) -> Callable[P, T]:
    """Decorate a function so that the error for an unknown argument lists the arguments that it takes.

    Args:
        function: The function.
        hints: What to do instead, for some names that are not arguments. Others get the most similar argument.
    """
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):  # the function checks its keywords itself
        return function
    known = [name for name in parameters if name != "self"]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            for name in kwargs.keys() - known:
                called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                hint = f"; {hints[name]}" if hints and name in hints else nearest(name, known)
                takes = f"{called}, which takes {', '.join(known)}{hint}"
                raise TypeError(f"{name}: is not an argument of {takes}") from None
            raise

    return call


def names_settings(kind: K, hints: Mapping[str, str] | None = None) -> K:
    """Decorate the constructor of a class with :func:`names_arguments`."""
    kind.__init__ = names_arguments(kind.__init__, hints)
    return kind


def tensors_in(name: str, values: Any) -> tuple[Tensor, ...]:
    """Return the tensors of an iterable, or raise ``TypeError`` if it holds anything else."""
    found = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in found:
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: takes a list of tensors, got {describe(value)}")
    return found


def is_finite(x: Tensor) -> bool:
    """Whether all values are finite. If their sum is finite, they are, which is much cheaper to check."""
    return cmath.isfinite((x.detach() if x.requires_grad else x).sum().item()) or bool(x.isfinite().all())


def finite_rows(name: str, value: Tensor) -> None:
    """Raise ``ValueError`` unless all values are finite; the error says in how many rows they are not."""
    if value.is_floating_point() and not value.isfinite().all():
        bad = int((~value.isfinite()).reshape(len(value), -1).any(1).sum())
        raise ValueError(f"{name}: takes finite values, got NaN or infinity in {bad} of {len(value)} rows")


def number(
    name: str, value: Any, *, whole: bool = False, optional: bool = False, zero: bool = False, finite: bool = False
) -> Any:
    """Check a number and return it as a Python number; NumPy's numbers are accepted.

    Args:
        name: The name of the argument.
        value: Its value.
        whole: Whether it must be an integer.
        optional: Whether it may be ``None``.
        zero: Whether it may be 0; otherwise it must be above 0.
        finite: Whether it must be finite.
    """
    if optional and value is None:
        return None
    found = whole_number(value) if whole else real_number(value)
    takes = f"a {'whole ' if whole else ''}number {'from' if zero else 'above'} 0"
    require(found is not None and (found >= 0 if zero else found > 0), name, value, takes)
    require(not finite or found != math.inf, name, value, "a finite number")
    return found


def as_seed(value: Any, bits: int = 64) -> int:
    """Check a random seed of any integer type and return it as an ``int``; it must be below ``2**bits``."""
    found = whole_number(value)
    require(found is not None and 0 <= found < 2**bits, "seed", value, f"a whole number from 0 to 2**{bits} - 1")
    assert found is not None
    return found


def whole_number(value: Any) -> int | None:
    """Return an integer of any type as an ``int``; ``None`` for anything else, including booleans."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real_number(value: Any) -> float | None:
    """Return a number of any type as an ``int`` or ``float``; ``None`` for anything else, including booleans."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def usable_device(name: Any) -> str:
    """Return the name of a device, or raise ``ValueError`` if torch cannot use it on this machine."""
    try:
        torch.ones((), device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        takes = "a device that torch can use here, such as cpu, cuda or cuda:1"
        raise ValueError(f"device: takes {takes}, got {name!r} ({str(error).splitlines()[0]})") from None
    return name


def describe(value: Any) -> Words:
    """Return a short description of a value for error messages."""
    if isinstance(value, Tensor):
        return Words(f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}")
    if type(value) is np.ndarray:
        return Words(f"a NumPy array of shape {value.shape} and dtype {value.dtype}")
    if isinstance(value, tuple | list):
        what = "numbers" if value and all(isinstance(each, Real) for each in value) else "elements"
        return Words(f"a {type(value).__name__} of {len(value)} {what}")
    return Words(f"a {type(value).__name__}")
