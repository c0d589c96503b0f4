"""Batches that somebody else makes: a ``DataLoader``, any other iterable, or a function of a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from anode.checks import Words, check_call, describe, finite_rows, require
from anode.data.images import ImageData
from anode.data.toy import Dataset
from anode.models.model import as_input, check_input
from anode.models.randomness import apart
from anode.train.points import Points, epoch_seed, is_whole, no_targets, points_of

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Points, targets, and weights if there are any."""
Batches = Iterable[Any] | Callable[[int], Iterable[Any]]
"""The batches of every epoch, or a function that makes those of an epoch from a seed."""
Whole = Dataset | ImageData | Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
Data = Whole | Sequence[Whole] | Batches
"""Points and targets, perhaps with weights: for all members, or one per member of a stack, all of one size; or batches.

Points may be images of bytes, ``torch.uint8``; a model sees them as numbers from 0 to 1.
"""


class Stream:
    """Batches of an epoch, one after the other; all members of a stack see the same.

    Args:
        name: The argument it comes from.
        source: An iterable of batches ``(x, y)`` or ``(x, y, weights)`` that can be gone through once per epoch, or a
            function that makes one from a seed.
        members: How many members there are.
        seed: That of the run.
    """

    def __init__(self, name: str, source: Any, members: int | None, seed: int) -> None:
        self.name, self.source, self.members, self.seed = name, source, members, seed
        if self.is_function:
            check_call(name, source, 1, "a function of a seed that returns the batches of an epoch")
        self._place: tuple[int, int] | None = None  # the epoch and the index of the batch that comes next
        self._rest: Iterator[Any] = iter(())

    @property
    def is_function(self) -> bool:
        """Whether batches are a function of the seed, so that an epoch can be gone through again."""
        return callable(self.source) and not isinstance(self.source, Iterable)

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return getattr(self.source, "__name__", type(self.source).__name__)

    def epoch(self, epoch: int) -> Iterable[Any]:
        """The batches of an epoch."""
        if not self.is_function:
            return self.source
        made = self.source(epoch_seed(self.seed, epoch))
        if not isinstance(made, Iterable):
            takes = "a function of a seed that returns the batches of an epoch"
            raise TypeError(f"{self.name}: takes {takes}, got {self.kind}, which returned {describe(made)}")
        return made

    @cached_property
    def batches(self) -> int:
        """How many batches make an epoch; counted by going through one where nobody says."""
        with apart():
            first = self.epoch(0)
            require(self.is_function or iter(first) is not first, self.name, describe(first), _AGAIN)
            try:
                count = len(first)  # type: ignore[arg-type]
            except TypeError:
                count = sum(1 for _ in first)
        require(count > 0, self.name, Words(f"{count} batches"), "at least one batch per epoch")
        return count

    def first(self, like: Tensor) -> Batch:
        """The first batch, to look at; nothing is used up."""
        with apart():
            found = next(iter(self.epoch(0)), None)
            require(found is not None, self.name, Words("none"), "at least one batch per epoch")
            return self._checked(found, like)

    def all(self, like: Tensor) -> Iterator[Batch]:
        """The batches of the first epoch."""
        return (self._checked(batch, like) for batch in self.epoch(0))

    def batch(self, iteration: int, like: Tensor) -> Batch:
        """The batch of an iteration. Iterations are made in order, from wherever a run is taken up."""
        epoch, index = place = divmod(iteration, self.batches)
        if index == 0:
            self._rest = iter(self.epoch(epoch))
        elif place != self._place:
            with apart():  # what it draws was drawn before the interruption
                self._rest = iter(self.epoch(epoch))
                for _ in range(index if self.is_function else 0):
                    next(self._rest, None)
        found = next(self._rest, None)
        if found is None:
            got = f"{index} batches in epoch {epoch}"
            raise ValueError(f"{self.name}: takes as many batches in every epoch, {self.batches}, got {got}")
        self._place = divmod(iteration + 1, self.batches)
        return self._checked(found, like)

    def _checked(self, batch: Any, like: Tensor) -> Batch:
        """A batch where the model is, with a dimension of members if there are members."""
        parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        if len(parts) == 1 and isinstance(parts[0], Tensor):
            parts = parts[0], no_targets(parts[0])
        takes = "batches x, (x, y) or (x, y, weights) of tensors"
        fits = len(parts) in (2, 3) and all(isinstance(part, Tensor) and part.ndim > 0 for part in parts)
        if not fits:
            raise TypeError(f"{self.name}: takes {takes}, got {describe(batch)}")
        sizes = [len(part) for part in parts]
        require(sizes[0] > 0 and len({*sizes}) == 1, self.name, sizes, f"{takes}, as many of each and at least one")
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


_AGAIN = "an iterable that can be gone through once per epoch; pass a function that makes one from a seed"


def data_of(name: str, data: Data, members: int | None, seed: int) -> Points | Stream:
    """What to train on or to look at: points and targets, or batches of them; checked."""
    if isinstance(data, list | tuple):  # for a stack, datasets of its members
        comes_in_batches = members is None and len(data) > 0 and all(isinstance(b, tuple) and is_whole(b) for b in data)
    else:
        comes_in_batches = not is_whole(data) and _is_stream(data)
    return Stream(name, data, members, seed) if comes_in_batches else points_of(name, data, members)


def _is_stream(data: Any) -> bool:
    """Whether data are batches that somebody else makes."""
    if isinstance(data, nn.Module | type):  # which can be called, but not with a seed
        return False
    return callable(data) or (isinstance(data, Iterable) and not isinstance(data, Tensor | np.ndarray | str | dict))
