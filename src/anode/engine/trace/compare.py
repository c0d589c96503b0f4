"""Check whether two calls of a right-hand side did the same, except for the number of points."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anode.engine.trace.events import Event, Recording, Ref, Storage, Untraceable

CHANGES = "f does not do the same each time"


class Collision(Exception):  # noqa: N818  (an answer, not a mistake)
    """A dimension has the size of the batch but is not the batch. Record again with another batch size."""


def compare(first: Recording, second: Recording) -> None:
    """Check that two recordings with different values and numbers of points describe the same computation.

    Raises:
        Untraceable: If they do not.
        Collision: If they might, but the numbers of points were chosen badly.
    """
    if len(first.events) != len(second.events) or len(first.storages) != len(second.storages):
        raise Untraceable(CHANGES)
    pair = _Pair(first.batch, second.batch)
    for a, b in zip(first.events, second.events, strict=True):
        pair.event(a, b)
    for x, y in zip(first.results, second.results, strict=True):
        pair.same(x, y)
    for old, new in zip(first.storages, second.storages, strict=True):
        if old.origin != new.origin:
            raise Untraceable(CHANGES)
        if old.origin == "outside" and old.identity != new.identity:
            pair.literals(old, new)
        elif old.origin == "outside" and any(x is not new.seen.get(ref, x) for ref, x in old.seen.items()):
            raise Untraceable("f makes other tensors of the memory of existing ones, with .data or otherwise")


class _Pair:
    """Compares a recording with `m` points to one with `n` points."""

    def __init__(self, m: int, n: int) -> None:
        self.m, self.n = m, n

    def event(self, a: Event, b: Event) -> None:
        if a.function is not b.function or set(a.kwargs) != set(b.kwargs) or len(a.args) != len(b.args):
            raise Untraceable(CHANGES)
        self.same(a.outs, b.outs)
        for place, (x, y) in enumerate(zip(a.args, b.args, strict=True)):
            self._argument(a, place, x, y)
        for name, x in a.kwargs.items():
            self._argument(a, name, x, b.kwargs[name])
        if a.values is not None and b.values is not None:
            for u, v in zip(a.values, b.values, strict=True):
                self.value(u, v)

    def _argument(self, event: Event, place: int | str, x: Any, y: Any) -> None:
        if isinstance(x, float) and x != x and isinstance(y, float) and y != y:
            return
        if type(x) is type(y) and isinstance(x, (int, float)) and x != y:
            arguments = event.function._schema.arguments
            kind = next(str(a.type) for i, a in enumerate(arguments) if place in (i, a.name))
            if "int" not in kind.lower():  # a number to compute with, not a size
                count = self.m > 0 and x * self.n == y * self.m
                raise Untraceable("f computes with the number of points in a batch" if count else CHANGES)
        self.same(x, y)

    def same(self, x: Any, y: Any) -> None:
        """Check that two arguments are equal, up to the number of points in sizes."""
        if isinstance(x, Ref) and isinstance(y, Ref):
            if x.storage != y.storage or x.dtype != y.dtype or len(x.size) != len(y.size):
                raise Untraceable(CHANGES)
            for p, q in zip(x.size, y.size, strict=True):
                self.size(p, q, exact=False)
        elif isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)) and len(x) == len(y):
            for u, v in zip(x, y, strict=True):
                self.same(u, v)
        elif type(x) is int and type(y) is int:
            self.size(x, y, exact=True)
        elif type(x) is not type(y) or x != y:
            raise Untraceable(CHANGES)

    def size(self, p: int, q: int, exact: bool) -> None:
        """Check that two sizes are equal, or the same multiple of the numbers of points.

        For a tensor's size (not `exact`), it must be clear which of the two it is.
        """
        if self.m and p > 0 and p % self.m == 0 and p * self.n == q * self.m:
            return
        if p != q:
            alike = self.m == self.n or q - p != self.n - self.m
            raise Untraceable(CHANGES if alike else "f does not treat the points of a batch alike")
        if self.m and not exact and p > 0 and (p % self.m == 0 or q % self.n == 0):
            raise Collision

    def value(self, u: Tensor, v: Tensor) -> None:
        """Check that two constants are equal. If they have a batch dimension, compare one point."""
        for dim, size in enumerate(u.shape):
            if self.m and size and size % self.m == 0:
                u, v = u.narrow(dim, 0, size // self.m), v.narrow(dim, 0, v.shape[dim] // self.n)
        if u.shape != v.shape or not bool(((u == v) | ((u != u) & (v != v))).all()):
            raise Untraceable(CHANGES)

    def literals(self, old: Storage, new: Storage) -> None:
        """Check tensors that f makes on every call without torch operations."""
        for x, y in zip(old.seen.values(), new.seen.values(), strict=True):
            if x.requires_grad or y.requires_grad:
                raise Untraceable("f makes a new parameter on each call")
            self.value(x.detach(), y.detach())
