"""The coefficients of explicit Runge-Kutta methods.

A step from ``(t, y)`` to ``t + h`` evaluates the slopes

    k_i = f(t + c_i h,  y + h sum_j a_ij k_j),        i = 0 .. s-1,

and moves to ``y1 = y + h sum_i b_i k_i``. If the method has an error estimate, it is ``h sum_i e_i k_i``. Every method
also has an *end slope* ``f(t + h, y1)``. FSAL methods ("first same as last") always evaluate it, other methods only if
it is needed. Between the ends of a step the solution is the polynomial

    y(t + x h) = y + h sum_i p_i(x) k_i,              0 <= x <= 1,

with the end slope as its last ``k``.

References:
    Hairer, Norsett and Wanner, *Solving Ordinary Differential Equations I*, 2nd edition, 1993 (sections II.1-II.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from anode.checks import Words, names_settings, number, real_number, require
from anode.ode.order import OrderConditions, order_conditions

Weights = tuple[tuple[int, float], ...]
"""The non-zero weights of a sum of slopes, as (index of the slope, weight) pairs."""


CHECKED_ORDER = 5
"""The highest order that is checked when a tableau is created; the conditions of higher orders take milliseconds."""
ROUNDED = 1e-6
"""Tolerance for the order conditions, so that coefficients may be given with few digits."""


class Row(NamedTuple):
    """A sum of slopes ``scale * (k_first + sum of weight * k)``, which saves one operation.

    The first slope has the largest weight. The other weights are therefore at most 1, and sums of large slopes do not
    overflow.
    """

    scale: float
    first: int
    rest: Weights


Polynomial = tuple[float, ...]
"""Coefficients of x, x^2, x^3, ...; the constant term is always zero."""


@names_settings
@dataclass(frozen=True, repr=False)
class Tableau:
    """An explicit Runge-Kutta method. Its coefficients are checked when it is created.

    The compiled engine supports every tableau.

    Attributes:
        name: Name of the method.
        order: Order of convergence; also used by the step-size controller.
        c: Nodes: the fraction of the step at which each slope is evaluated.
        a: Row i holds the weights of the i earlier slopes. A square matrix with zeros on and above its diagonal is
            accepted too.
        b: Weights of the slopes in the step.
        error: Weights of the error estimate, one per slope, and for an FSAL method one for the end slope. ``None`` if
            the method has no error estimate; it then requires ``step_size``.
        polynomials: Polynomials p_i(x) of the dense output, one per slope and one for the end slope. Defaults to cubic
            Hermite interpolation.
        dense_order: Order of the dense output.
        fsal: Whether the error estimate uses the end slope, so that every step evaluates it.
        last_stage_ends: Whether the next step reuses the last slope of this step as its first, although it was not
            evaluated at the end of the step, as in torchdiffeq. See :meth:`reusing_last_stage`.
    """

    name: str
    order: int
    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    error: tuple[float, ...] | None = None
    polynomials: tuple[Polynomial, ...] = field(default=())
    dense_order: int = 0
    fsal: bool = False
    last_stage_ends: bool = False

    def __post_init__(self) -> None:
        self._check()
        if not self.polynomials:
            object.__setattr__(self, "polynomials", hermite(self.b))
            object.__setattr__(self, "dense_order", min(self.order, 3))

    def __repr__(self) -> str:
        return f"Tableau({self.name!r}, order={self.order}, slopes={len(self.b)})"

    def _check(self) -> None:
        """Raise ``ValueError`` if the coefficients are inconsistent; convert lists and arrays to tuples."""
        require(isinstance(self.name, str), "name", self.name, "a text")
        object.__setattr__(self, "order", number("order", self.order, whole=True))
        for name in ("c", "b", "error"):
            values = getattr(self, name)
            object.__setattr__(self, name, None if values is None else _numbers(name, values))
        for name in ("a", "polynomials"):
            object.__setattr__(self, name, tuple(_numbers(name, row) for row in _sequence(name, getattr(self, name))))
        slopes = len(self.b)
        require(slopes > 0, "b", self.b, "at least one weight")
        require(len(self.c) == slopes, "c", self.c, f"{slopes} values, one per weight in b")
        object.__setattr__(self, "a", _lower_triangle(self.a))
        rows = [len(row) for row in self.a]
        takes = f"rows of {list(range(slopes))} weights, or a square matrix with zeros on and above the diagonal"
        require(rows == list(range(slopes)), "a", Words(f"rows of {rows}"), takes)
        for c, row in zip(self.c, self.a, strict=True):
            require(abs(sum(row) - c) < 1e-8, "a", row, f"weights that add up to c = {c}")
        require(abs(sum(self.b) - 1) < 1e-8, "b", self.b, "weights that add up to 1")
        if self.error is not None:
            wanted = slopes + self.fsal
            takes = f"{wanted} weights{', the last for the end slope' if self.fsal else ''}"
            require(len(self.error) == wanted, "error", self.error, takes)
            require(abs(sum(self.error)) < 1e-8, "error", self.error, "weights that add up to 0")
        fits = len(self.polynomials) in (0, slopes + 1)
        require(fits, "polynomials", len(self.polynomials), f"{slopes + 1}, one per slope and one for the end slope")
        claimed = min(self.order, CHECKED_ORDER)
        found = self.order_conditions(claimed).order_within(ROUNDED)
        require(found == claimed, "order", self.order, f"at most {found}, which is the order that these weights give")

    def order_conditions(self, up_to: int = 8) -> OrderConditions:
        """Return how well the method satisfies the order conditions, and the order that follows.

        Args:
            up_to: The highest order to check.

        Example:
            >>> import anode
            >>> heun = anode.Tableau("mine", 2, c=(0, 1), a=((), (1,)), b=(0.5, 0.5))
            >>> heun.order_conditions().order
            2
        """
        return order_conditions(self.a, self.b, up_to)

    @property
    def adaptive(self) -> bool:
        """Whether the method has an error estimate and can adapt its step size."""
        return self.error is not None

    @cached_property
    def stages(self) -> tuple[tuple[float, Row], ...]:
        """``(c_i, row i of a)`` for every slope but the first, then for the end slope, whose row is b."""
        return tuple((c, _row(row)) for c, row in zip((*self.c[1:], 1.0), (*self.a[1:], self.b), strict=True))

    @cached_property
    def weights(self) -> Weights:
        """The step's weights b."""
        return _sparse(self.b)

    @cached_property
    def weights_by_slope(self) -> dict[int, float]:
        """The step's weights b as a dictionary."""
        return dict(self.weights)

    @cached_property
    def error_row(self) -> Row:
        """The error estimate's weights."""
        return _row(self.error or ())

    @cached_property
    def feeds(self) -> tuple[Weights, ...]:
        """For each slope and the end slope, the later slopes that depend on it, as (index, weight) pairs."""
        rows = (*self.a, self.b)
        return tuple(_sparse([row[i] if i < len(row) else 0.0 for row in rows]) for i in range(len(rows)))

    @cached_property
    def dense_needs_end_slope(self) -> bool:
        """Whether the dense output uses the end slope."""
        return any(self.polynomials[-1])

    @cached_property
    def stability(self) -> float:
        """The extent of the stability region along the negative real axis, to two decimals."""
        slopes, coefficients = [1.0] * len(self.b), [1.0]
        for _ in self.b:
            coefficients.append(sum(b * k for b, k in zip(self.b, slopes, strict=True)))
            slopes = [sum(a * k for a, k in zip(row, slopes, strict=False)) for row in self.a]
        x = 0.01
        while abs(sum(c * (-x) ** n for n, c in enumerate(coefficients))) <= 1:
            x += 0.01
        return x

    @cached_property
    def linear(self) -> Tableau:
        """The same method with linear interpolation as its dense output."""
        lines = tuple((b,) for b in self.b)
        return replace(self, polynomials=(*lines, (0.0,)), dense_order=1)

    def reusing_last_stage(self, middle: Sequence[float]) -> Tableau:
        """Return the method as torchdiffeq runs it: the next step starts with the last slope instead of the end slope.

        This saves one evaluation per step and costs accuracy.

        Args:
            middle: Weights of the slopes in the state at the middle of the step.
        """
        *rows, before, end = quartic(self.b, (*middle, 0.0))
        last = tuple(x + y for x, y in zip(before, end, strict=True))
        return replace(self, polynomials=(*rows, last, (0.0,)), dense_order=1, last_stage_ends=True)


def _sequence(name: str, values: Any) -> list[Any]:
    """Return the elements of a list, tuple or array."""
    require(isinstance(values, Iterable) and not isinstance(values, str), name, values, "a sequence of numbers")
    return list(values)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    """Return the numbers in a list, tuple, array or tensor."""
    found = [real_number(each.item() if isinstance(each, Tensor) else each) for each in _sequence(name, values)]
    require(None not in found, name, values, "numbers")
    return tuple(map(float, found))  # type: ignore[arg-type]


def _lower_triangle(a: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    """Drop the zeros on and above the diagonal of a square matrix; return anything else unchanged."""
    square = all(len(row) == len(a) and not any(row[i:]) for i, row in enumerate(a))
    return tuple(row[:i] for i, row in enumerate(a)) if square else a


def _sparse(weights: Sequence[float]) -> Weights:
    return tuple((i, w) for i, w in enumerate(weights) if w != 0)


def _row(weights: Sequence[float]) -> Row:
    first = max(range(len(weights)), key=lambda i: abs(weights[i]))
    scale = weights[first]
    return Row(scale, first, tuple((i, w / scale) for i, w in _sparse(weights) if i != first))


def hermite(b: tuple[float, ...]) -> tuple[Polynomial, ...]:
    """Return the cubic Hermite interpolation of a step from the states and slopes at both ends."""
    rows = [[0.0, 3 * w, -2 * w] for w in b] + [[0.0, -1.0, 1.0]]
    for power, value in enumerate((1.0, -2.0, 1.0)):
        rows[0][power] += value
    return tuple(tuple(row) for row in rows)


def quartic(b: tuple[float, ...], middle: tuple[float, ...]) -> tuple[Polynomial, ...]:
    """Return the quartic that matches states and slopes at both ends and ``y + h sum_i middle_i k_i`` in the middle."""
    rows = [[0.0, 16 * m - 5 * w, 14 * w - 32 * m, 16 * m - 8 * w] for w, m in zip((*b, 0.0), middle, strict=True)]
    for power, (first, last) in enumerate(((1.0, 0.0), (-4.0, 1.0), (5.0, -3.0), (-2.0, 2.0))):
        rows[0][power] += first
        rows[-1][power] += last
    return tuple(tuple(row) for row in rows)
