"""Data that come in batches: a ``DataLoader``, any other iterable, or a function of a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from anode.checks import Words, check_function, describe, finite_rows, require
from anode.data.images import ImageData
from anode.data.toy import Dataset
from anode.models.model import as_input, check_input
from anode.models.randomness import apart
from anode.train.points import Points, epoch_seed, is_whole, no_targets, points_of

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Points, targets, and weights or ``None``."""
Batches = Iterable[Any] | Callable[[int], Iterable[Any]]
"""The batches of every epoch, or a function that takes a seed and returns the batches of an epoch."""
Whole = Dataset | ImageData | Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
Data = Whole | Sequence[Whole] | Batches
"""Points and targets, optionally with weights; a sequence of these, one per member of a stack; or batches.

Points may be ``torch.uint8``, which is scaled to [0, 1].
"""


class Stream:
    """Data that come in batches. All members of a stack get the same batches.

    Args:
        name: Name of the argument, for error messages.
        source: An iterable of batches ``(x, y)`` or ``(x, y, weights)`` that can be iterated once per epoch, or a
            function that takes a seed and returns one.
        members: Number of members; ``None`` for a single model.
        seed: Random seed of the run.
    """

    def __init__(self, name: str, source: Any, members: int | None, seed: int) -> None:
        self.name, self.source, self.members, self.seed = name, source, members, seed
        require(not isinstance(source, Iterator), name, describe(source), _AGAIN)
        if self.is_function:
            check_function(name, source, "a function of a seed that returns the batches of an epoch", 1)
        self._place: tuple[int, int] | None = None  # the epoch and the index of the batch that comes next
        self._rest: Iterator[Any] = iter(())

    @property
    def is_function(self) -> bool:
        """Whether batches are a function of the seed, so that an epoch can be repeated."""
        return callable(self.source) and not isinstance(self.source, Iterable)

    @property
    def kind(self) -> str:
        """The name of the source or of its class."""
        return getattr(self.source, "__name__", type(self.source).__name__)

    def epoch(self, epoch: int) -> Iterable[Any]:
        """Return the batches of an epoch."""
        if not self.is_function:
            return self.source
        made = self.source(epoch_seed(self.seed, epoch))
        if not isinstance(made, Iterable):
            takes = "a function of a seed that returns the batches of an epoch"
            raise TypeError(f"{self.name}: takes {takes}, got {self.kind}, which returned {describe(made)}")
        return made

    @cached_property
    def batches(self) -> int:
        """The number of batches per epoch, counted by iterating over one epoch if the source has no length."""
        with apart():
            first = self.epoch(0)
            try:
                count = len(first)  # type: ignore[arg-type]
            except TypeError:
                count = sum(1 for _ in first)
        require(count > 0, self.name, Words(f"{count} batches"), "at least one batch per epoch")
        return count

    def first(self, like: Tensor) -> Batch:
        """Return the first batch, without affecting later batches or random numbers."""
        with apart():
            found = next(iter(self.epoch(0)), None)
            require(found is not None, self.name, Words("none"), "at least one batch per epoch")
            return self._checked(found, like)

    def all(self, like: Tensor) -> Iterator[Batch]:
        """Return the batches of the first epoch."""
        return (self._checked(batch, like) for batch in self.epoch(0))

    def batch(self, iteration: int, like: Tensor) -> Batch:
        """Return the batch of an iteration. Iterations must be requested in order, from where a run is resumed."""
        epoch, index = place = divmod(iteration, self.batches)
        if index == 0:
            self._rest = iter(self.epoch(epoch))
        elif place != self._place:
            with apart():  # these random numbers were already drawn before the interruption
                self._rest = iter(self.epoch(epoch))
                for _ in range(index if self.is_function else 0):
                    next(self._rest, None)
        found = next(self._rest, None)
        if found is None:
            got = f"{index} batches in epoch {epoch}"
            raise ValueError(f"{self.name}: takes the same number of batches in every epoch, {self.batches}, got {got}")
        self._place = divmod(iteration + 1, self.batches)
        return self._checked(found, like)

    def _checked(self, batch: Any, like: Tensor) -> Batch:
        """Check a batch and return it on the model's device, with a member dimension for a stack."""
        parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        if len(parts) == 1 and isinstance(parts[0], Tensor):
            parts = parts[0], no_targets(parts[0])
        takes = "batches x, (x, y) or (x, y, weights) of tensors"
        fits = len(parts) in (2, 3) and all(isinstance(part, Tensor) and part.ndim > 0 for part in parts)
        if not fits:
            raise TypeError(f"{self.name}: takes {takes}, got {describe(batch)}")
        sizes = [len(part) for part in parts]
        require(sizes[0] > 0 and len({*sizes}) == 1, self.name, sizes, f"{takes} with the same length above 0")
        if len(parts) == 3:
            finite_rows(f"{self.name}, weights", parts[2])
            least = float(parts[2].min())
            require(least >= 0, f"{self.name}, weights", least, "numbers from 0")
        if parts[0].is_floating_point() and like.is_floating_point():
            check_input(parts[0], like, self.name)
        if self.members is not None:
            parts = tuple(part.expand(self.members, *part.shape) for part in parts)
        weights = parts[2].to(like) if len(parts) == 3 else None
        return as_input(parts[0], like), parts[1].to(like.device), weights


_AGAIN = "an iterable that can be iterated once per epoch; pass a function that takes a seed and returns one"


def data_of(name: str, data: Data, members: int | None, seed: int) -> Points | Stream:
    """Check data and return it as points, or as a stream if it comes in batches."""
    if isinstance(data, list | tuple):  # for a stack, datasets of its members
        comes_in_batches = members is None and len(data) > 0 and all(isinstance(b, tuple) and is_whole(b) for b in data)
    else:
        comes_in_batches = not is_whole(data) and _is_stream(data)
    return Stream(name, data, members, seed) if comes_in_batches else points_of(name, data, members)


def _is_stream(data: Any) -> bool:
    """Whether data come in batches."""
    if isinstance(data, nn.Module | type):  # callable, but not with a seed
        return False
    return callable(data) or (isinstance(data, Iterable) and not isinstance(data, Tensor | np.ndarray | str | dict))
