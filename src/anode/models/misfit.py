"""After a failure, find and name the part of a model that an input does not fit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from anode.checks import describe, finite_rows, require
from anode.engine.timeless import as_function
from anode.ode.field import Field
from anode.ode.packing import wrong_call
from anode.ode.transforms import may_be_followed

MISTAKES = (ValueError, RuntimeError, TypeError, IndexError, AttributeError, AssertionError)
"""The errors that a network raises for an input of the wrong shape or type. Subclasses of them mean something else."""


class MisfitError(ValueError):
    """The parts of a model do not fit together."""


def tried(part: str, call: Callable[[Any], Any], given: Any, x: Tensor) -> Any:
    """Call a part of a model, or raise :class:`MisfitError` with the part's name and the shapes if it fails.

    Args:
        part: What the error calls it.
        call: The part.
        given: The state that it is given.
        x: The input that the state comes from.
    """
    try:
        return call(given)
    except MISTAKES as why:
        if type(why) not in MISTAKES:
            raise
        state = f"x of shape {shape(x)}" + ("" if given is x else f", whose state has shape {shape(given)}")
        raise MisfitError(f"{part}: does not fit {state}: {why}") from why


def blame(x: Any, error: Exception, augment: Callable[[Any], Any], field: nn.Module) -> None:
    """Raise an error that names input, augmentation or field, if one of them made a flow fail.

    They are tried one after the other. This costs time only after a failure.
    """
    if type(error) not in MISTAKES or may_be_followed():
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"x: takes a tensor, got {describe(x)}; convert it with torch.as_tensor(x)") from error
    require(x.numel() > 0, "x", describe(x), "at least one point")
    finite_rows("x", x)
    f = as_function(field)

    def slope(h: Any) -> Any:
        if isinstance(field, Field) and isinstance(h, Tensor):
            field.check(h)
        if (wrong := wrong_call(f)) is not None:
            raise wrong
        return f(x.new_zeros(()), h)

    state = tried("augment", augment, x, x)
    try:
        found = tried("field", slope, state, x)
    except MisfitError as why:
        hint = "" if wrong_call(f) else _hint(field, state, x.new_zeros(()))
        raise MisfitError(f"{why}{hint}") from why.__cause__
    if shape(found) != shape(state):
        takes = f"a module that returns the shape of its state, {shape(state)}"
        raise MisfitError(f"field: takes {takes}, got {shape(found)}") from error


def _hint(field: nn.Module, h: Any, t: Tensor) -> str:
    """Return what to do about a field that works with other arguments than (t, h); empty if it does not."""
    ways = {
        "it takes h alone; pass torch.nn.Sequential(field)": (h,),
        "it takes (h, t); pass a module that calls it with t second": (h, t),
    }
    for way, arguments in ways.items():
        with suppress(Exception):
            if shape(field(*arguments)) == shape(h):
                return f"; a field is called as f(t, h), and {way}"
    return ""


def shape(state: Any) -> Any:
    """Return the shape of a state, or the shapes of its parts."""
    if isinstance(state, tuple):
        return [shape(part) for part in state]
    return tuple(state.shape) if isinstance(state, Tensor) else describe(state)
