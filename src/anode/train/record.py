"""What is recorded of training: the names and types of all series, and tables that they grow in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

SERIES = {"loss": np.float32, "nfe": np.int64, "accepted": np.int64, "rejected": np.int64}
"""What is recorded of every iteration and every member, with its type."""
SHARED = {"nfe_backward": np.int64, "seconds": np.float32}
"""What is recorded of every iteration."""
OPTIONAL = {"accuracy": np.float32}
"""What is recorded of every iteration and every member where there are classes; empty elsewhere."""
EVALUATED = {"validation": np.float32, "validation_accuracy": np.float32, "validation_nfe": np.float32}
"""What is recorded of every evaluation and every member; the accuracy is empty where there are no classes."""
MOMENTS = {"validation_at": np.int64, "check_at": np.int64}
"""When evaluations and checks were made."""
CHECKED = {"check": np.float32}
"""What is recorded of every check of the solves and every member."""


@dataclass(frozen=True)
class Failure:
    """A member whose solve, loss or gradient failed in some iteration, which then did not change it.

    Attributes:
        member: Which; 0 for a model by itself.
        iteration: When.
        reason: What failed, and what that means.
        status: The name of the :class:`anode.Status` of its solve; ``"LOSS"`` or ``"GRADIENT"`` if that was not finite.
    """

    member: int
    iteration: int
    reason: str
    status: str


@dataclass(frozen=True)
class Snapshot:
    """The features of some points at some moment of training.

    Attributes:
        iteration: How many iterations had been made.
        features: [points, features], or [members, points, features].
        nfe: What solving for these points took, one number or one a member; 0 for a model without a solve.
    """

    iteration: int
    features: Array
    nfe: Array


def as_array(values: torch.Tensor) -> Array:
    """A tensor as an array, in single precision if it has less."""
    small = values.dtype in (torch.bfloat16, torch.float16)
    return (values.float() if small else values).numpy(force=True)


class Table:
    """Columns of numbers that grow row by row.

    Args:
        types: The type of each column.
        shapes: The shape of an entry of each column.

    Attributes:
        last: The row that was added last.

    Example:
        >>> table = Table({"loss": np.float32}, {"loss": (2,)})
        >>> table.add(loss=torch.tensor([0.5, 0.25]))
        >>> len(table), table.arrays()["loss"].tolist()
        (1, [[0.5, 0.25]])
    """

    def __init__(self, types: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._columns: dict[str, Array] = {name: np.empty((0, *shapes[name]), types[name]) for name in types}
        self._rows: list[dict[str, Any]] = []  # not yet in the columns: tensors, perhaps still being computed
        self.last: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) + len(self._rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def add(self, **row: Any) -> None:
        """Append a row: for each column an entry, or one number for all of it."""
        self._rows.append(row)
        self.last = row

    def arrays(self) -> dict[str, Array]:
        """The columns."""
        if self._rows:
            for name, column in self._columns.items():
                shape = column.shape[1:]
                new = np.empty((len(self._rows), *shape), column.dtype)
                with np.errstate(over="ignore"):  # a loss beyond float32 is infinite there
                    for i, row in enumerate(self._rows):
                        entry = as_array(torch.as_tensor(row[name]))
                        new[i] = entry if shape else entry.reshape(())
                self._columns[name] = np.concatenate([column, new])
            self._rows = []
        return dict(self._columns)

    def restore(self, columns: Mapping[str, Array]) -> None:
        """Go on from these columns."""
        self._columns = {name: columns[name].astype(column.dtype) for name, column in self._columns.items()}
        self._rows = []
