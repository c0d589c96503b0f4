"""The names and types of the series that are recorded in training, and tables for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

SERIES = {"loss": np.float32, "nfe": np.int64, "accepted": np.int64, "rejected": np.int64}
"""Series with one value per iteration and member, with their dtypes."""
SHARED = {"nfe_backward": np.int64, "seconds": np.float32}
"""Series with one value per iteration."""
OPTIONAL = {"accuracy": np.float32}
"""Series with one value per iteration and member if the targets are classes; otherwise empty."""
EVALUATED = {"validation": np.float32, "validation_accuracy": np.float32, "validation_nfe": np.float32}
"""Series with one value per evaluation and member; the accuracy is empty unless the targets are classes."""
MOMENTS = {"validation_at": np.int64, "check_at": np.int64}
"""The iterations of evaluations and checks."""
CHECKED = {"check": np.float32}
"""Series with one value per check and member."""


@dataclass(frozen=True)
class Failure:
    """A failed iteration of a member, whose solve failed or whose loss or gradient was not finite.

    The iteration did not change the member's parameters.

    Attributes:
        member: Index of the member; 0 for a single model.
        iteration: Index of the iteration.
        reason: A description of the failure.
        status: Name of the :class:`anode.Status` of the solve, or ``"LOSS"`` or ``"GRADIENT"`` if that was not finite.
    """

    member: int
    iteration: int
    reason: str
    status: str


@dataclass(frozen=True)
class Snapshot:
    """The features of some points, recorded during training.

    Attributes:
        iteration: Number of iterations before it was recorded.
        features: The features, [points, features] or [members, points, features].
        nfe: Number of function evaluations: one number, or one per member. 0 for a model that does not solve an ODE.
    """

    iteration: int
    features: Array
    nfe: Array


def as_array(values: torch.Tensor) -> Array:
    """Return a tensor as an array, with half precision converted to single precision."""
    small = values.dtype in (torch.bfloat16, torch.float16)
    return (values.float() if small else values).numpy(force=True)


def latest_check(checks: Array) -> float | None:
    """Return the last reconstruction error, for a stack the largest; ``None`` if there is none."""
    present = checks[-1:][~np.isnan(checks[-1:])]
    return float(present.max()) if present.size else None


class Table:
    """A table to which rows are appended.

    Args:
        types: The dtype of each column.
        shapes: The shape of an entry of each column.

    Attributes:
        last: The last row.

    Example:
        >>> table = Table({"loss": np.float32}, {"loss": (2,)})
        >>> table.add(loss=torch.tensor([0.5, 0.25]))
        >>> len(table), table.arrays()["loss"].tolist()
        (1, [[0.5, 0.25]])
    """

    def __init__(self, types: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._columns: dict[str, Array] = {name: np.empty((0, *shapes[name]), types[name]) for name in types}
        self._rows: list[dict[str, Any]] = []  # not yet in the columns, so that nothing waits for a GPU
        self.last: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) + len(self._rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def add(self, **row: Any) -> None:
        """Append a row, with an entry or a single number for each column."""
        self._rows.append(row)
        self.last = row

    def arrays(self) -> dict[str, Array]:
        """Return the columns."""
        if self._rows:
            for name, column in self._columns.items():
                shape = column.shape[1:]
                new = np.empty((len(self._rows), *shape), column.dtype)
                with np.errstate(over="ignore"):  # a loss beyond the range of float32 becomes infinite
                    for i, row in enumerate(self._rows):
                        entry = as_array(torch.as_tensor(row[name]))
                        new[i] = entry if shape else entry.reshape(())
                self._columns[name] = np.concatenate([column, new])
            self._rows = []
        return dict(self._columns)

    def restore(self, columns: Mapping[str, Array]) -> None:
        """Replace the columns."""
        self._columns = {name: columns[name].astype(column.dtype) for name, column in self._columns.items()}
        self._rows = []
