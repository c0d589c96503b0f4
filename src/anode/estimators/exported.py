"""Fitted estimators as modules that include the scaling, for :func:`anode.export`."""

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
    """A module that scales rows, applies a model, and computes what ``predict`` returns, in single precision.

    Args:
        model: The model.
        estimator: The fitted estimator.
        finish: Maps the model's output to the exported outputs.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, estimator: Any, finish: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model, self.finish, self.shape = model, finish, estimator._shape
        self.register_buffer("offset", torch.tensor(estimator.offset_, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(estimator.scale_, dtype=torch.float32))

    def forward(self, x: Tensor) -> Any:
        """Return the predictions for rows."""
        scaled = (x - self.offset) / self.scale
        return self.finish(self.model(scaled.reshape(-1, *self.shape)))


def graph(
    estimator: Any,
    X: Any,
    finish: Callable[[Tensor], Any],
    outputs: tuple[str, ...],
    labels: tuple[str, ...] = (),
) -> Graph:
    """Return the graph to export for a fitted estimator.

    Args:
        estimator: The estimator.
        X: Rows on which the error is measured.
        finish: Maps the model's output to the exported outputs.
        outputs: Names of the exported outputs.
        labels: Names of the classes, if they are texts.
    """
    check_is_fitted(estimator)
    rows = validate_data(estimator, X, dtype=precision(X), reset=False)
    model = deepcopy(estimator.model_).cpu().float()
    data = estimator._scaled(rows).float()
    inputs = two_of(torch.tensor(rows, dtype=torch.float32))
    return Graph(model, lambda stepped: FromRows(stepped, estimator, finish), data, inputs, outputs, labels)
