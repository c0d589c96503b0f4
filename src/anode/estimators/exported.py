"""Fitted estimators as modules that take rows as their users have them, for :func:`anode.export`."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from anode.estimators.rows import precision
from anode.exporting.export import Graph, two_of


class FromRows(nn.Module):
    """A model with the scaling before it, and what ``predict`` does after it; in single precision.

    Args:
        model: The model.
        estimator: The fitted estimator.
        finish: Maps the model's output to what is exported.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, estimator: Any, finish: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model, self.finish, self.shape = model, finish, estimator._shape
        self.register_buffer("offset", torch.tensor(estimator.offset_, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(estimator.scale_, dtype=torch.float32))

    def forward(self, x: Tensor) -> Any:
        """What is predicted for rows."""
        scaled = (x - self.offset) / self.scale
        return self.finish(self.model(scaled.reshape(-1, *self.shape)))


def graph(
    estimator: Any,
    X: Any,
    finish: Callable[[Tensor], Any],
    outputs: tuple[str, ...],
    labels: tuple[str, ...] = (),
) -> Graph:
    """What to export of a fitted estimator.

    Args:
        estimator: The estimator.
        X: Rows, on which errors are measured.
        finish: Maps the model's output to what is exported.
        outputs: What that is called.
        labels: Names of the classes, if they are texts.
    """
    check_is_fitted(estimator)
    rows = validate_data(estimator, X, dtype=precision(X), reset=False)
    model = deepcopy(estimator.model_).cpu().float()
    data = estimator._scaled(rows).float()
    inputs = two_of(torch.tensor(rows, dtype=torch.float32))
    return Graph(model, lambda stepped: FromRows(stepped, estimator, finish), data, inputs, outputs, labels)
