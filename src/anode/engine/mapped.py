"""Fields that are one function, mapped over the members of a stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from anode.engine.timeless import Timeless, knows_no_time


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
    def members(self) -> int | None:
        """The number of members, which is the first dimension of a state; ``None`` for a single field."""

    @abstractmethod
    def member(self) -> Member:
        """Return the first member, which the compiled engine traces instead of all."""


def member_of(f: Any) -> Member | None:
    """Return the first member of a function that is mapped over members; ``None`` for any other function."""
    return f.member() if is_mapped(f) else None


def is_mapped(f: Any) -> bool:
    """Whether a function is mapped over members."""
    return isinstance(f, Mapped) and f.members is not None


def first_of(module: nn.Module, timeless: bool | None = None) -> Member:
    """Return the first member of a module whose tensors are stacked.

    Args:
        module: The module.
        timeless: Whether it is called with the state only. By default, an ``nn.Sequential`` is.
    """
    given = knows_no_time(module) if timeless is None else timeless
    stacked = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own = {name: tensor.detach()[0].requires_grad_(tensor.requires_grad) for name, tensor in stacked.items()}

    def first(t: Tensor, h: Any) -> Any:
        return functional_call(module, own, (h,) if given else (t, h))

    return Member(first, tuple((own[name], stacked[name]) for name in stacked))


class TimelessStack(Timeless, Mapped):
    """A stack of modules that are called with the state only.

    Args:
        net: The stack, on states with a dimension of members.
        module: The module with stacked tensors that ``net`` maps over the members; ``net`` itself if it needs none.
        members: Number of members.
    """

    def __init__(self, net: nn.Module, module: nn.Module, members: int) -> None:
        super().__init__(net)
        self.module, self._members = module, members

    @property
    def members(self) -> int:
        return self._members

    def member(self) -> Member:
        return first_of(self.module, timeless=True)
