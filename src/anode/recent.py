"""A cache of the most recently used values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A cache that drops the least recently used value when it is full.

    Args:
        most: Maximum number of values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key. If there is none, call ``make``, and cache its result if the key is hashable."""
        try:
            value = self._values[key]
            self._values.move_to_end(key)
            return value
        except (KeyError, TypeError):  # the key is new or not hashable, or another thread has just removed it
            pass
        value = make()  # outside the try statement, so that its own errors are raised
        with suppress(TypeError):
            self._values[key] = value
        if len(self._values) > self._most:
            with suppress(KeyError):  # another thread may have removed it first
                self._values.popitem(last=False)
        return value
