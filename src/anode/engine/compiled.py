"""A compiled field: a program for the engine and the tensors that it uses."""

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
        program: The program.
        tensors: The tensors that the program uses, in its order. For a stack they have a leading dimension of members,
            unless they are shared.
        shared: Whether all members share the tensor, for each tensor.
        members: Number of stacked fields; ``None`` for a single field.
        components: Number of features of each component of a tuple state; empty for a tensor.
        unused: Parameters that f does not use. Their gradients are zero.
        sources: Further tensors from which some of ``tensors`` were computed.
        derived: Indices of these in ``tensors``. f computes them from other tensors only.
        context: Tensors with a row per point, which are further features of the program's state. They do not change
            during a solve, and do not count for its step size.
    """

    program: Program
    tensors: tuple[Tensor, ...]
    shared: tuple[bool, ...]
    members: int | None = None
    components: tuple[int, ...] = ()
    unused: tuple[Tensor, ...] = ()
    sources: tuple[Tensor, ...] = ()
    derived: tuple[int, ...] = ()
    context: tuple[Tensor, ...] = ()

    @property
    def dim(self) -> int:
        """The number of features of a point, without those from context."""
        return self.program.dim - sum(x[:1].numel() for x in self.context)

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that f does not compute itself."""
        return tuple(x for i, x in enumerate(self.tensors) if i not in self.derived)

    def rows(self, features: Tensor, context: Sequence[Tensor] | None = None) -> Tensor:
        """Return the rows of the program's state: features of the points, and the given context or its own behind them.

        Without context these are the features as they are, in any shape.
        """
        if not self.context:
            return features
        context = self.context if context is None else context
        return torch.cat([features.reshape(-1, self.dim), *(x.reshape(len(x), -1) for x in context)], dim=1)

    def features(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the features of the points, in this shape, given one or several stacked lots of rows."""
        return rows[..., : self.dim].reshape(*rows.shape[:-2], *shape) if self.context else rows

    def joined(self, state: Sequence[Tensor]) -> Tensor:
        """Return the components of a state, concatenated into one row per point."""
        return torch.cat([part.reshape(-1, size) for part, size in zip(state, self.components, strict=True)], dim=1)

    def parted(self, rows: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Split rows of one or several stacked states into components of these shapes."""
        parts = rows.split(self.components, dim=-1)
        return tuple(part.reshape(rows.shape[:-2] + shape) for part, shape in zip(parts, shapes, strict=True))
