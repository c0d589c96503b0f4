"""Fields that are one function, mapped over the members of a stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from anode.engine.sequential import knows_no_time


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
    def members(self) -> int | None:
        """How many members there are. It is the first dimension of a state; ``None`` for a field by itself."""

    @abstractmethod
    def member(self) -> Member:
        """The first member, which the compiled engine traces in place of all."""


def member_of(f: Any) -> Member | None:
    """The first member of a function that is mapped over members; ``None`` for any other."""
    return f.member() if is_mapped(f) else None


def is_mapped(f: Any) -> bool:
    """Whether a function is mapped over members."""
    return isinstance(f, Mapped) and f.members is not None


def first_of(module: nn.Module) -> Member:
    """The first member of a field whose tensors are stacked."""
    stacked = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own = {name: tensor.detach()[0].requires_grad_(tensor.requires_grad) for name, tensor in stacked.items()}

    def first(t: Tensor, h: Any) -> Any:
        return functional_call(module, own, (h,) if knows_no_time(module) else (t, h))

    return Member(first, tuple((own[name], stacked[name]) for name in stacked))
