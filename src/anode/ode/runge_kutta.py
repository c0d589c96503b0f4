"""One Runge-Kutta step, and the dense output within it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anode.ode.control import Number
from anode.ode.field import Rate
from anode.ode.plan import Interval
from anode.ode.tableau import Row, Tableau


def combine(row: Row, slopes: Sequence[Tensor]) -> Tensor:
    """Return the sum of slopes that a row describes, without its scale."""
    total = slopes[row.first]
    if row.rest:
        i, weight = row.rest[0]
        total = total + slopes[i] if weight == 1 else torch.add(total, slopes[i], alpha=weight)
        for i, weight in row.rest[1:]:
            total.add_(slopes[i], alpha=weight)
    return total


def weighted_sum(parts: Sequence[tuple[Number, Tensor]], factor: Number = 1.0) -> Tensor:
    """Return ``factor * sum(weight * tensor)``; weights and factor are numbers, or tensors that broadcast."""
    last = factor if isinstance(factor, Tensor) else 1.0  # one product with a tensor is cheaper than one per part
    first = 1.0 if isinstance(factor, Tensor) else factor
    weight, part = parts[0]
    weight = weight * first
    total = part * (weight.to(part.dtype) if isinstance(weight, Tensor) else weight)
    for weight, part in parts[1:]:
        weight = weight * first
        if isinstance(weight, Tensor):
            total = torch.addcmul(total, part, weight.to(part.dtype))
        else:
            total.add_(part, alpha=weight)
    return total if isinstance(last, float) else total * last.to(total.dtype)


def take_step(
    f: Rate, tableau: Tableau, step: Interval, y: Tensor, slope: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """Take one step and return the new state and the slopes, including the end slope if the method is FSAL.

    ``slope`` is the slope at the start; ``None`` to evaluate it.
    """
    slopes = [f(step.at(0.0), y) if slope is None else slope]
    for c, row in tableau.stages[:-1]:
        slopes.append(f(step.at(c), step.move(y, combine(row, slopes), row.scale)))
    c, row = tableau.stages[-1]
    y1 = step.move(y, combine(row, slopes), row.scale)
    if tableau.fsal:
        slopes.append(f(step.at(c), y1))
    return y1, slopes


def dense_weights(tableau: Tableau, fraction: Number | None) -> Sequence[tuple[int, Number]]:
    """Return the weights of the slopes in the dense output at a fraction of the step; ``None`` is its end."""
    if fraction is None:
        return tableau.weights
    return [(i, horner(p, fraction) * fraction) for i, p in enumerate(tableau.polynomials) if any(p)]


def dense_slope_weights(tableau: Tableau, fraction: Number) -> Sequence[tuple[int, Number]]:
    """Return the weights of the slopes in the time derivative of the dense output."""
    return [
        (i, horner([n * c for n, c in enumerate(p, start=1)], fraction))
        for i, p in enumerate(tableau.polynomials)
        if any(p)
    ]


def state_inside(
    tableau: Tableau, step: Interval, y: Tensor, slopes: Sequence[Tensor], fraction: Number | None
) -> Tensor:
    """Return the dense output at a fraction of the step; ``None`` is its end."""
    return step.move(y, weighted_sum([(weight, slopes[i]) for i, weight in dense_weights(tableau, fraction)]))


def horner(coefficients: Sequence[float], x: Number) -> Number:
    """Return c0 + c1 x + c2 x^2 + ..."""
    value: Number = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
