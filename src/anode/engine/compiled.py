"""A field as the compiled engine takes it: a program and the tensors that it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anode.engine.program.program import Program


@dataclass(frozen=True)
class Compiled:
    """A field that the compiled engine can integrate.

    Attributes:
        program: What it computes.
        tensors: The tensors that the program uses, in its order. Those of a stack have a dimension of members in front,
            unless they are shared.
        shared: Of each tensor, whether all members use the same.
        members: How many fields are stacked; ``None`` for one by itself.
        components: How many features each component of a state has that is a tuple; empty for a tensor.
        unused: Parameters that f has and does not use, whose gradients are zero.
        sources: Further tensors, from which some of the program's were computed.
        derived: The places of those among ``tensors``: f computes them from other tensors alone.
    """

    program: Program
    tensors: tuple[Tensor, ...]
    shared: tuple[bool, ...]
    members: int | None = None
    components: tuple[int, ...] = ()
    unused: tuple[Tensor, ...] = ()
    sources: tuple[Tensor, ...] = ()
    derived: tuple[int, ...] = ()

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that f does not compute itself."""
        return tuple(x for i, x in enumerate(self.tensors) if i not in self.derived)

    def joined(self, state: Sequence[Tensor]) -> Tensor:
        """The components of a state side by side, a row for each point."""
        return torch.cat([part.reshape(-1, size) for part, size in zip(state, self.components, strict=True)], dim=1)

    def parted(self, rows: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The components again, in the shapes of others."""
        parts = rows.split(self.components, dim=1)
        return tuple(part.reshape(other.shape) for part, other in zip(parts, like, strict=True))
