"""Fields that are one function, mapped over the members of a stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Member:
    """The first member of a stack.

    Attributes:
        f: Its right-hand side ``f(t, y)``, on a state without a dimension of members.
        pairs: Pairs of a tensor of this member and the stacked tensor of all members, which share their memory.
    """

    f: Callable[[Tensor, Any], Any]
    pairs: tuple[tuple[Tensor, Tensor], ...]


class Mapped(ABC):
    """A field whose members compute the same function, each with its own part of stacked tensors."""

    @property
    @abstractmethod
    def members(self) -> int:
        """The number of members, which is the first dimension of a state."""

    @abstractmethod
    def member(self) -> Member:
        """Return the first member, which the compiled engine traces instead of all."""
