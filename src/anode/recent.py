"""Values that were used lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by keys; those that were not used for longest are forgotten.

    Args:
        most: How many are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, which is made if it is not there, and not kept if the key cannot be hashed."""
        try:
            value = self._values[key]
            self._values.move_to_end(key)
            return value
        except (KeyError, TypeError):  # it is new, or another thread has just removed it
            pass
        value = make()  # outside, as its errors have nothing to do with the key's
        with suppress(TypeError):
            self._values[key] = value
        if len(self._values) > self._most:
            with suppress(KeyError):  # another thread was quicker
                self._values.popitem(last=False)
        return value
