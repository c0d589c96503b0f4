"""Losses by name, one value a member."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def _huber(prediction: Tensor, target: Tensor) -> Tensor:
    return F.smooth_l1_loss(prediction, target, reduction="none")


def _mse(prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target, reduction="none")


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    each = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), reduction="none")
    return each.reshape(target.shape)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps predictions and targets to losses, of single elements or samples."""

LOSSES: dict[str, Loss] = {"huber": _huber, "mse": _mse, "cross_entropy": _cross_entropy}
"""Losses by name. ``cross_entropy`` takes logits and class numbers; the others two tensors of one shape."""


def mean(losses: Tensor, members: int | None) -> Tensor:
    """The mean of single losses: one number, or one a member."""
    return losses.mean() if members is None else losses.flatten(1).mean(1)
