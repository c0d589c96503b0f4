"""Ending training once it no longer helps, and going back to where it was best."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anode.train.checkpoint.state import values_of


class Patience:
    """Remembers a model as it was at its lowest validation loss.

    Args:
        model: What is trained.
        limit: After how many evaluations without a lower loss training is to end; ``None`` if it is not to.
    """

    def __init__(self, model: nn.Module, limit: int | None) -> None:
        self.model, self.limit = model, limit
        self.lowest, self.since = math.inf, 0
        self.best: dict[str, Tensor] = {}

    def look(self, loss: float) -> None:
        """Take note of an evaluation."""
        if self.limit is None:
            return
        self.since += 1
        if loss < self.lowest:
            self.lowest, self.since = loss, 0
            self.best = {name: value.detach().clone() for name, value in values_of(self.model).items()}

    @property
    def reason(self) -> str:
        """Why training should end; nothing if it should not."""
        if self.limit is None or self.since < self.limit:
            return ""
        return f"no lower validation loss in {self.limit} evaluations"

    @torch.no_grad()
    def bring_back(self) -> None:
        """Let the model be again what it was at its best."""
        values = values_of(self.model)
        for name, value in self.best.items():
            values[name].copy_(value)
