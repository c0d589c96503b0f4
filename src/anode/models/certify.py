"""Check the accuracy of a flow's solves: forward and back, and against a much tighter tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.checks import number, require
from anode.models.model import given
from anode.ode.solution import Solution, SolveError, State, Status, as_tuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from anode.models.flow import Flow

BOUND = 1e-2
"""Default of the largest reconstruction error that passes."""
TIGHTER = 1e-3
"""Tolerance of the reference solve, relative to that of the checked solve."""
SHORTER = 0.1
"""Step size of the reference solve, relative to that of the checked solve, for fixed steps."""
TIGHTEST = {torch.float32: 1e-6, torch.float64: 1e-12}
"""The tightest tolerance that is meaningful in each precision."""
TOLERANCES = [1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
"""The default tolerances to try, in order."""


@dataclass(frozen=True)
class Check:
    """The result of solving a flow forward and back.

    Errors are relative: distances between states, divided by the root mean square norm of the states of all samples.
    Tensors are [samples], or [members, samples] for a stack.

    Attributes:
        rtol: Relative tolerance of the solves.
        reconstruction: Errors of the initial states after solving forward and back.
        error: Errors of the features against a reference solve with a much tighter tolerance, or with a tenth of a
            fixed step size. NaN if the reference solve failed, or if the precision does not allow a tolerance that is
            ten times tighter.
        nfe: Number of evaluations of the field in the forward solve, one per member of a stack. If samples have their
            own step sizes, it is the mean over samples.
        bound: Largest overall reconstruction error that passes.
        failure: Why a solve failed; empty if none did. The errors are infinite for what failed: a member of a stack, a
            sample with its own step size, or all samples.
    """

    rtol: float
    reconstruction: Tensor
    error: Tensor
    nfe: Tensor
    bound: float
    failure: str = ""

    @property
    def overall(self) -> Tensor:
        """The root mean square of the reconstruction errors; one per member for a stack."""
        return self.reconstruction.square().mean(-1).sqrt()

    @property
    def error_overall(self) -> Tensor:
        """The root mean square of the errors against the reference solve; one per member for a stack."""
        return self.error.square().mean(-1).sqrt()

    @property
    def passed(self) -> Tensor:
        """Whether the overall reconstruction error is within the bound; one value per member for a stack."""
        return self.overall <= self.bound

    @property
    def passes(self) -> bool:
        """Whether the overall reconstruction error is within the bound, for all members of a stack."""
        return bool(self.passed.all())

    def __str__(self) -> str:
        return "\n".join([HEAD, self.row()])

    def row(self) -> str:
        """Return the check as a row of a table, with medians over the members of a stack."""
        overall, error = float(self.overall.median()), float(self.error_overall.median())
        verdict = "passes" if self.passes else self.failure or "fails"
        if self.overall.ndim and (self.passed.any() or not self.failure):
            verdict = f"{int(self.passed.sum())} of {len(self.passed)} pass"
        known = "unknown" if math.isnan(error) else f"{error:.2%}"
        return f"{self.rtol:9.0e}  {overall:14.2%}  {known:>10}  {float(self.nfe.median()):11.0f}  {verdict}"


HEAD = "tolerance  reconstruction       error  evaluations"


@dataclass(frozen=True)
class Certificate:
    """The checks of several tolerances, and the loosest tolerance that passes.

    Attributes:
        checks: One :class:`Check` per tolerance, from the loosest to the tightest.
    """

    checks: list[Check]

    @property
    def bound(self) -> float:
        """The largest reconstruction error that passes."""
        return self.checks[0].bound

    @property
    def passes(self) -> bool:
        """Whether some tolerance passes; for a stack, whether one does for every member."""
        return bool(torch.stack([check.passed for check in self.checks]).any(0).all())

    @property
    def tolerance(self) -> Tensor:
        """The loosest tolerance that passes, NaN if none does; one per member for a stack."""
        return self._at_first([torch.full_like(check.overall, check.rtol) for check in self.checks])

    @property
    def nfe(self) -> Tensor:
        """Number of evaluations of the field at that tolerance, NaN if none passes; one per member for a stack."""
        return self._at_first([check.nfe for check in self.checks])

    def _at_first(self, values: list[Tensor]) -> Tensor:
        """Return the value of the first check that passes."""
        passed = torch.stack([check.passed for check in self.checks])
        found = torch.stack(values).gather(0, passed.int().argmax(0, keepdim=True))[0]
        return found.where(passed.any(0), torch.nan)

    def __str__(self) -> str:
        rows = [check.row() for check in self.checks]
        return "\n".join([HEAD, *rows, "", self.verdict])

    @property
    def verdict(self) -> str:
        """A sentence with the recommended tolerance."""
        tolerance, nfe = self.tolerance.flatten(), self.nfe.flatten()
        solved = tolerance.isfinite()
        if not solved.any():
            return (
                f"No tolerance down to {self.checks[-1].rtol:.0e} brings the states back to within "
                f"{100 * self.bound:g} %: do not trust counts of evaluations of this flow; try float64, or a field "
                "that is less stiff."
            )
        if len(tolerance) == 1:
            return f"Use rtol = {tolerance[0]:.0e}, which takes {nfe[0]:.0f} evaluations."
        missing = "" if solved.all() else f"; none passes for {int((~solved).sum())} of {len(tolerance)} members"
        return (
            f"Use rtol = {tolerance[solved].min():.0e} for all members, or from {tolerance[solved].max():.0e} on for "
            f"each its own, which takes {nfe[solved].median():.0f} evaluations in the median{missing}."
        )

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the errors and the evaluations over the tolerance; of a stack, medians over its members.

        Args:
            ax: Where to draw the errors, without the evaluations; by default in a new figure.
        """
        from anode.plots.certificates import certificate

        errors = {
            "forward and back": [float(check.overall.median()) for check in self.checks],
            "against a tighter solve": [float(check.error_overall.median()) for check in self.checks],
        }
        nfe = [float(check.nfe.median()) for check in self.checks]
        return certificate([check.rtol for check in self.checks], errors, nfe, self.bound, ax)


def check(flow: Flow, x: Tensor, bound: float, settings: dict[str, Any], context: Tensor | None = None) -> Check:
    """See :meth:`anode.Flow.check`."""
    bound, solver = number("bound", bound, finite=True), flow.solver.but(**settings)
    takes = "None for a check, because a noisy solve cannot be undone; pass noise=None to check the ODE"
    require(solver.noise is None, "noise", solver.noise, takes)
    rtol, atol = solver.rtol, solver.atol
    if not isinstance(rtol, float) or not isinstance(atol, float):
        raise TypeError(f"rtol, atol: take numbers for a check, got {rtol} and {atol}")
    options = given(context)
    with torch.no_grad():
        start, there = flow.start_and_solve(x, solver=solver, **options)
        dims, dtype = 1 if flow.members is None else 2, as_tuple(start)[0].dtype
        infinite = torch.full(as_tuple(start)[0].shape[:dims], torch.inf, dtype=torch.float64)
        nfe, lost = _evaluations(there, infinite), _failed(there, infinite)
        if lost.all():
            return Check(rtol, infinite, infinite, nfe, bound, _failure(there))
        back = flow.solve_from(_zeroed(there.y1, lost), (flow.t1, 0.0), solver=solver, **options)
        failed = lost | _failed(back, infinite)
        factor = min(1.0, max(TIGHTER, TIGHTEST.get(dtype, 0.0) / rtol))
        tighter: dict[str, Any] = {"rtol": factor * rtol, "atol": factor * atol}
        if solver.step_size is not None:
            tighter = {"step_size": SHORTER * solver.step_size, "max_steps": int(2 * solver.max_steps / SHORTER)}
        tight = flow.solve_from(start, (0.0, flow.t1), solver=solver.but(**tighter), **options)
    unknown = _failed(tight, infinite) | (solver.step_size is None and factor > 0.1)
    error = _relative(there.y1, tight.y1, dims).masked_fill(unknown, torch.nan)
    reconstruction, error = (x.masked_fill(failed, torch.inf) for x in (_relative(back.y1, start, dims), error))
    return Check(rtol, reconstruction, error, nfe, bound, _failure(there) or _failure(back))


def certify(
    flow: Flow, x: Tensor, bound: float, tolerances: Sequence[float] | None, context: Tensor | None = None
) -> Certificate:
    """See :meth:`anode.Flow.certify`."""
    rtol, atol, size = flow.solver.rtol, flow.solver.atol, flow.solver.step_size
    if size is not None:
        raise ValueError(
            f"solver: takes one with adaptive steps, got step_size={size}, whose steps do not depend on the tolerance; "
            "use flow.check, or a flow with another solver"
        )
    ratio = atol / rtol if isinstance(rtol, float) and isinstance(atol, float) else 1.0
    if tolerances is None:
        tolerances = [t for t in TOLERANCES if t >= TIGHTEST.get(x.dtype, 0.0)]
    checks: list[Check] = []
    passed = torch.tensor(False)
    for tolerance in sorted((number("tolerances", t, finite=True) for t in tolerances), reverse=True):
        checks.append(check(flow, x, bound, {"rtol": tolerance, "atol": tolerance * ratio}, context))
        passed = passed | checks[-1].passed
        if passed.all():
            break
    require(bool(checks), "tolerances", tolerances, "at least one")
    return Certificate(checks)


def _relative(states: State, wanted: State, dims: int) -> Tensor:
    """Return the distance of each state from the wanted state, relative to the root mean square of their norms."""
    apart = tuple(a.double() - b.double() for a, b in zip(as_tuple(states), as_tuple(wanted), strict=True))
    typical = _sizes(as_tuple(wanted), dims).square().mean(-1, keepdim=True).sqrt()
    typical = typical.where(typical > 0, 1.0)  # if all states are zero, the errors are absolute
    return (_sizes(apart, dims) / typical).cpu()


def _sizes(parts: tuple[Tensor, ...], dims: int) -> Tensor:
    """Return the norm of the state of each sample."""
    flat = [x.double().reshape(*x.shape[:dims], -1) for x in parts]
    return torch.cat(flat, dim=-1).norm(dim=-1)


def _evaluations(solution: Solution, errors: Tensor) -> Tensor:
    """Return the number of evaluations, one per member; the mean over samples if they have their own step sizes."""
    nfe = torch.as_tensor(solution.stats.nfe, dtype=torch.float64)
    per_member = nfe.reshape(len(nfe), -1).mean(1) if nfe.ndim and errors.ndim == 2 else nfe.mean()
    return per_member.expand(errors.shape[:-1])


def _failed(solution: Solution, errors: Tensor) -> Tensor:
    """Return whether the solve of each sample failed, in the shape of the errors."""
    failed = torch.as_tensor(solution.status).cpu() != Status.SUCCESS
    return failed.reshape(*failed.shape, *[1] * (errors.ndim - failed.ndim)).expand_as(errors)


def _zeroed(state: State, lost: Tensor) -> State:
    """Return the state with zeros, which are easy to solve, for samples whose solve failed."""
    if not lost.any():
        return state
    parts = tuple(
        x.masked_fill(lost.to(x.device).reshape(*lost.shape, *[1] * (x.ndim - lost.ndim)), 0.0) for x in as_tuple(state)
    )
    return parts if isinstance(state, tuple) else parts[0]


def _failure(solution: Solution) -> str:
    try:
        solution.check()
    except SolveError as error:
        return str(error)
    return ""
