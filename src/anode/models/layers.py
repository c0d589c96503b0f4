"""Layers that can be stacked: the weights of many members in one tensor, one matrix product for all of them.

A stacked parameter has one dimension more than a plain one, in front. Everything here tells the two apart by that
alone, so a stacked model is a model of the same classes with larger tensors in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def members_of(bias: Tensor) -> int | None:
    """How many members a bias is stacked of; ``None`` for one that is not stacked."""
    return None if bias.ndim == 1 else bias.shape[0]


def as_row(bias: Tensor) -> Tensor:
    """A bias, shaped to be added to the rows of its member."""
    return bias if bias.ndim == 1 else bias.unsqueeze(-2)


def check_state(x: Tensor, features: int, members: int | None, name: str = "h") -> None:
    """Raise ``ValueError`` unless x has so many features in its last dimension and so many members in its first."""
    if x.ndim == 0 or x.shape[-1] != features:
        raise ValueError(f"{name}: takes {features} features in the last dimension, got shape {tuple(x.shape)}")
    if members is not None and (x.ndim != 3 or x.shape[0] != members):
        raise ValueError(
            f"{name}: takes shape [members, batch, features] = [{members}, any, {features}] for a stack of {members}, "
            f"got {tuple(x.shape)}"
        )


class Linear(nn.Linear):
    """``torch.nn.Linear`` that can be stacked: it then takes ``[members, batch, in_features]``."""

    def forward(self, x: Tensor) -> Tensor:
        """The linear map and the bias."""
        if self.bias.ndim == 1:
            return super().forward(x)
        return torch.baddbmm(as_row(self.bias), x, self.weight.mT)
