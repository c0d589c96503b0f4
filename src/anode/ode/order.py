"""The order of a Runge-Kutta method, computed from its coefficients.

A method has order p if, for every rooted tree t with at most p nodes, the elementary weight of t equals 1 / gamma(t),
where gamma(t) is the product over all nodes of the size of the subtree below them.

References:
    Hairer, Norsett and Wanner, *Solving Ordinary Differential Equations I*, 2nd edition, 1993 (section II.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

Tree = tuple["Tree", ...]
"""A rooted tree as the tuple of its subtrees, in order."""

TOLERANCE = 1e-9
"""Tolerance for the order conditions, because coefficients are rounded."""


@dataclass(frozen=True, repr=False)
class OrderConditions:
    """How well a method satisfies the conditions of each order.

    Attributes:
        residuals: The largest residual of the conditions of order 1, 2, ...
    """

    residuals: tuple[float, ...]

    @property
    def order(self) -> int:
        """The order of the method, or the number of residuals if all conditions hold."""
        return self.order_within(TOLERANCE)

    def order_within(self, tolerance: float) -> int:
        """Return the order of the method if residuals up to ``tolerance`` count as zero."""
        holds = [residual <= tolerance for residual in self.residuals]
        return holds.index(False) if False in holds else len(holds)

    def __repr__(self) -> str:
        return f"OrderConditions(order={self.order}, residuals={self.residuals})"


def order_conditions(a: Sequence[Sequence[float]], b: Sequence[float], up_to: int) -> OrderConditions:
    """Return the order conditions, up to order ``up_to``, of a method with the weights ``a`` and ``b``."""
    weights: dict[Tree, list[float]] = {}

    def at_slopes(tree: Tree) -> list[float]:
        """Return the elementary weight of a tree at each slope: the product over its subtrees."""
        if tree not in weights:
            products = [1.0] * len(b)
            for below in tree:
                inner = at_slopes(below)
                products = [
                    p * sum(x * y for x, y in zip(row, inner, strict=False)) for p, row in zip(products, a, strict=True)
                ]
            weights[tree] = products
        return weights[tree]

    def residual(tree: Tree) -> float:
        return abs(sum(x * y for x, y in zip(b, at_slopes(tree), strict=True)) - 1 / gamma(tree))

    return OrderConditions(tuple(max(map(residual, trees(n))) for n in range(1, up_to + 1)))


def gamma(tree: Tree) -> int:
    """The product over all nodes of the size of the subtree below them."""
    product = size(tree)
    for below in tree:
        product *= gamma(below)
    return product


def size(tree: Tree) -> int:
    """The number of nodes."""
    return 1 + sum(map(size, tree))


@cache
def trees(nodes: int) -> tuple[Tree, ...]:
    """Return all rooted trees with ``nodes`` nodes."""
    return tuple(forests(nodes - 1, nodes - 1))


def forests(nodes: int, largest: int, before: Tree | None = None) -> Iterator[Tree]:
    """Yield all multisets of trees with ``nodes`` nodes in total, at most ``largest`` per tree, larger trees first."""
    if nodes == 0:
        yield ()
    for count in range(min(nodes, largest), 0, -1):
        for tree in trees(count):
            if before is None or count < size(before) or tree <= before:
                for rest in forests(nodes - count, count, tree):
                    yield (tree, *rest)
