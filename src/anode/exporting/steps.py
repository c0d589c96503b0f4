"""Flows with a fixed number of equal steps, which can be exported as a graph, unlike an adaptive loop."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anode.checks import require
from anode.engine.timeless import rate_at
from anode.models.flow import Flow
from anode.ode.solution import Engine, Solution, State, Stats, Status, as_tuple
from anode.ode.tableau import Tableau
from anode.ode.tableaus import TABLEAUS, as_tableau

METHODS = ("midpoint", "rk4_classic", "tsit5")
"""The methods to try: one each for loose, medium and tight tolerances."""
MOST_STEPS = 1_024
"""Maximum number of steps, so that the graph does not become too large to load."""
KEPT = {"save_at", "dense", "event"}
"""Options of a solve that need states before the end time."""
EXACT = 1e-9
"""Tolerance of the reference solves."""


class SteppedSolution(Solution):
    """A solution with equal steps. It cannot fail, and ``torch.export`` cannot record the check of other solutions."""

    def check(self) -> Solution:
        return self


class SteppedFlow(Flow):
    """A flow with equal steps, written with operations that torch can export.

    Args:
        flow: The flow, whose field and augmentation are used.
        tableau: The method.
        steps: Number of steps.
    """

    def __init__(self, flow: Flow, tableau: Tableau, steps: int) -> None:
        super().__init__(flow.field, augment=flow.augment, t1=flow.t1, solver=flow.solver)
        self.tableau, self.steps = tableau, steps

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the field per prediction."""
        return self.steps * len(self.tableau.b)

    def solve_from(
        self, h: State, span: tuple[float, float], context: Tensor | None = None, **options: Any
    ) -> Solution:
        """Return the solution at both ends of the span. Tolerances are ignored."""
        for name, value in options.items():
            takes = "nothing in a model to export, whose flows return only their final state"
            require(name not in KEPT or value is None or value is False, name, value, takes)
        state, field = as_tuple(h), self.field_for(h, context)
        start, end = span
        size = (end - start) / self.steps
        for step in range(self.steps):
            state = self._moved(field, state, start + step * size, size, isinstance(h, tuple))
        y1 = state if isinstance(h, tuple) else state[0]
        stats, engine = Stats(self.evaluations, self.steps, calls=self.evaluations), Engine("steps are equal")
        return SteppedSolution([start, end], [h, y1], y1, end, Status.SUCCESS, stats, "stored", engine)

    def _moved(
        self, field: nn.Module, state: tuple[Tensor, ...], t: float, size: float, is_tuple: bool
    ) -> tuple[Tensor, ...]:
        """Return the state after a step."""
        slopes: list[tuple[Tensor, ...]] = []
        for c, row in zip(self.tableau.c, self.tableau.a, strict=True):
            at = _sum(state, slopes, row, size)
            now = torch.tensor(t + c * size, dtype=state[0].dtype, device=state[0].device)
            slope = rate_at(field, now, at if is_tuple else at[0])
            slopes.append(tuple(slope) if is_tuple else (slope,))
        return _sum(state, slopes, self.tableau.b, size)


def _sum(
    state: tuple[Tensor, ...], slopes: list[tuple[Tensor, ...]], weights: tuple[float, ...], size: float
) -> tuple[Tensor, ...]:
    """Return the state plus ``size`` times a weighted sum of slopes."""
    for weight, slope in zip(weights, slopes, strict=False):
        if weight:
            state = tuple(y + (size * weight) * k for y, k in zip(state, slope, strict=True))
    return state


@dataclass(frozen=True)
class Steps:
    """The equal steps that reach a tolerance.

    Attributes:
        method: Name of the method.
        count: Number of steps.
        evaluations: Number of evaluations of the field per prediction.
        error: Largest difference between a prediction and that of a very accurate solve, relative to the largest
            prediction.
    """

    method: str
    count: int
    evaluations: int
    error: float


def stepped(model: nn.Module, method: str | Tableau, steps: int) -> nn.Module:
    """Return a copy of a model in which every flow takes equal steps."""
    tableau = as_tableau("method", method)
    model = deepcopy(model).eval()
    if isinstance(model, Flow):
        return SteppedFlow(model, tableau, steps).eval()
    for name, part in list(model.named_modules()):
        if isinstance(part, Flow):
            model.set_submodule(name, SteppedFlow(part, tableau, steps).eval())
    return model


def flows_in(model: nn.Module) -> list[Flow]:
    """Return the flows of a model."""
    return [part for part in model.modules() if isinstance(part, Flow)]


def exact(model: nn.Module, x: Tensor) -> Tensor:
    """Return predictions in double precision. Adaptive solves use a tight tolerance; fixed steps stay as they are."""
    model = deepcopy(model).double().eval()
    for flow in flows_in(model):
        if flow.solver.step_size is None:
            flow.solver = flow.solver.but(rtol=EXACT, atol=EXACT, max_steps=100_000)
    with torch.no_grad():
        found: Tensor = model(x if x.dtype == torch.uint8 else x.double())
    return found


def least_steps(model: nn.Module, x: Tensor, tolerance: float) -> Steps:
    """Find the method and number of equal steps that reach a tolerance with the fewest evaluations.

    Args:
        model: The model, in the precision in which it is exported.
        x: Inputs on which the error is measured.
        tolerance: Largest error, see :class:`Steps`.

    Raises:
        ValueError: If no method reaches the tolerance, or a prediction is not finite.
    """
    wanted = exact(model, x)
    if not wanted.isfinite().all():
        raise ValueError("x: takes inputs whose predictions are finite, got some that are not; leave these out")
    largest = float(wanted.abs().max()) or 1.0

    def error(method: str, count: int) -> float:
        with torch.no_grad():
            found = stepped(model, method, count)(x)
        off = float((found.double() - wanted).abs().max()) / largest
        return math.inf if math.isnan(off) else off

    flows = flows_in(model)
    if not flows:
        return Steps("none", 0, 0, error("euler", 1))
    own = {str(flow.solver.method) for flow in flows if flow.solver.step_size is not None}
    found = [least for method in (*METHODS, *(own & TABLEAUS.keys())) if (least := _least(method, error, tolerance))]
    if not found:
        raise ValueError(
            f"tolerance: {tolerance:g} is not reached with {MOST_STEPS} equal steps; pass a larger tolerance, or "
            "train a flow that is less stiff (flow.certify reports what its solves need)"
        )
    return min(found, key=lambda each: each.evaluations)


def _least(method: str, error: Any, tolerance: float) -> Steps | None:
    """Return the smallest number of steps of a method; ``None`` if :data:`MOST_STEPS` are not enough."""
    enough = 1
    while error(method, enough) > tolerance:
        enough *= 2
        if enough > MOST_STEPS:
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if error(method, middle) > tolerance:
            too_few = middle
        else:
            enough = middle
    return Steps(method, enough, enough * len(TABLEAUS[method].b), error(method, enough))
