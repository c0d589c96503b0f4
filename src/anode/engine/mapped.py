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
        f: What it computes, ``f(t, y)``, on a state without a dimension of members.
        pairs: Each tensor that f may use of its own, and the stacked tensor of all members, whose first part it is. The
            two share their memory.
    """

    f: Callable[[Tensor, Any], Any]
    pairs: tuple[tuple[Tensor, Tensor], ...]


class Mapped(ABC):
    """A field whose members compute the same function, each with its own part of stacked tensors."""

    @property
    @abstractmethod
    def members(self) -> int:
        """How many members there are. It is the first dimension of a state."""

    @abstractmethod
    def member(self) -> Member:
        """The first member, which the compiled engine traces in place of all."""
