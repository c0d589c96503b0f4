"""The continuous adjoint: differentiate a solve by solving the adjoint ODE backward in time.

Memory does not grow with the number of steps. The gradient approximates that of the exact solution. It agrees with the
gradient of the numerical solution only to within the tolerances.

References:
    Chen et al., *Neural Ordinary Differential Equations*, NeurIPS 2018.
    Kidger, Chen and Lyons, *"Hey, that's not an ODE": faster ODE adjoints via seminorms*, ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.checks import flag, names_settings, number, require
from anode.ode.adjoint import AdjointRate, ContinuousSolve, solve_backward
from anode.ode.control import AdjointNorm, rms
from anode.ode.field import AutogradDerivative, Derivative
from anode.ode.gradient import Gradient
from anode.ode.integrate import Trace
from anode.ode.packing import Packing
from anode.ode.plan import Plan, smallest
from anode.ode.solution import Solution, Stats, Status
from anode.ode.tableau import Tableau
from anode.ode.tableaus import as_tableau
from anode.ode.transforms import in_functorch

if TYPE_CHECKING:
    from anode.ode.dependencies import Dependencies
    from anode.ode.problem import Problem


@names_settings
@dataclass(frozen=True)
class Continuous(Gradient):
    """The gradient by the continuous adjoint: the backward pass solves the adjoint ODE.

    Memory does not grow with the number of steps. The gradient is accurate to the tolerances of the backward solve.

    Attributes:
        rtol, atol: Tolerances of the backward solve. Default to the smallest tolerance of the forward solve.
        method: Method of the backward solve: a name or an :class:`anode.Tableau`. Defaults to that of the forward
            solve.
        seminorm: Whether to leave the parameters' gradients out of the error estimate. The solve does not depend on
            them, so this saves steps without a loss of stability.

    Example:
        >>> import torch, anode
        >>> field = anode.MLPField(2)
        >>> adjoint = anode.Continuous(rtol=1e-6, atol=1e-6, seminorm=True)
        >>> solution = anode.solve(field, torch.rand(8, 2), (0.0, 1.0), gradient=adjoint)
        >>> solution.y1.sum().backward()
        >>> solution.stats.nfe_backward > 0
        True
    """

    rtol: float | None = None
    atol: float | None = None
    method: str | Tableau | None = None
    seminorm: bool = False

    across_processes = False

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            object.__setattr__(self, name, number(name, getattr(self, name), optional=True, finite=True))
        if self.method is not None:
            as_tableau("method", self.method)
        flag("seminorm", self.seminorm)

    def _tableau(self, plan: Plan) -> Tableau:
        """Return the method of the backward solve."""
        tableau = plan.tableau if self.method is None else as_tableau("method", self.method)
        if plan.knots is None and not tableau.adaptive:
            raise ValueError(
                f"gradient: takes an adaptive method if the forward solve adapts its steps, got {tableau.name!r}, "
                "which has no error estimate"
            )
        return tableau

    def solve(self, problem: Problem) -> Solution:
        require(not in_functorch(), "gradient", self.name, '"stored" or "discrete" within torch.func')
        require(not problem.dense, "dense", True, 'False with gradient="continuous", which keeps no steps')
        found = problem.dependencies()
        if not problem.is_differentiated(found):
            return problem.unrecorded()
        require(problem.event is None, "event", problem.event, 'None with gradient="continuous"')
        if found.computed:
            raise ValueError(
                "params: f uses tensors that were computed from others that require a gradient, which the continuous "
                'adjoint cannot find by itself; pass these tensors in params=, or use gradient="discrete"'
            )
        problem.refuse_others(found.params)
        plan = problem.plan
        self._tableau(plan)  # so that it raises its error now, and not in the backward pass
        with torch.no_grad():
            trace = problem.integrate(problem.y0.detach(), slope=problem.slope)
        done = bool(torch.as_tensor(trace.status == Status.SUCCESS).all())
        if plan.group_dims and not done:
            return problem.solution(trace, trace.outputs, trace.y, "none")  # groups ended at different times
        return self._differentiable(problem, found, trace, done)

    def _differentiable(self, problem: Problem, found: Dependencies, trace: Trace, done: bool) -> Solution:
        """Return the solution, with a backward pass that solves the adjoint ODE with one step size for all groups."""
        plan = problem.plan
        outputs = dict(zip(plan.wanted, trace.outputs, strict=True))
        reached = [0, *(i for i in plan.wanted if i and (done or (trace.t - plan.times[i]) * plan.direction >= 0))]
        states = [problem.y0.detach(), *(outputs[i] for i in reached[1:])]
        times = torch.tensor(plan.times, dtype=torch.float64) if problem.times is None else problem.times
        times = times[reached]
        if not done:
            states.append(trace.y)
            times = torch.cat([times, times.new_tensor([trace.t])])

        def rate(t: Tensor, y: Tensor) -> Tensor:
            if plan.group_dims:
                t = t.reshape((1,) * y.ndim).expand(*plan.groups, *(1,) * (y.ndim - plan.group_dims))
            return problem.rate(t, y)

        def solve_back(
            rate: AdjointRate, state: tuple[Tensor, ...], span: Tensor, options: dict[str, Any]
        ) -> tuple[Tensor, ...]:
            norm = self._norm(problem)
            return solve_backward(self._backward_problem(problem, rate, state, span, norm), rate, norm)

        own = None if problem.compiled is None else problem.compiled.wanted(found.params, False)

        def derivative() -> Derivative:
            return own or AutogradDerivative(rate, found.params, again=True)

        def run() -> tuple[Tensor, None, Stats]:
            return torch.stack(states), None, trace.stats

        ys = ContinuousSolve.apply(  # type: ignore[no-untyped-call]
            derivative, run, solve_back, {}, problem.y0, times, *found.params
        )
        outputs |= {index: ys[n] for n, index in enumerate(reached) if index in outputs}
        return problem.solution(trace, list(outputs.values()), ys[-1], self.name)

    def _norm(self, problem: Problem) -> AdjointNorm:
        """Return the norm of the backward solve's state, which has one step size."""
        plan = problem.plan
        of_state = rms(0, problem.y0.numel()) if plan.group_dims else plan.norm
        return AdjointNorm(of_state, self.seminorm, plan.own_norm)

    def _backward_problem(
        self, problem: Problem, rate: AdjointRate, state: tuple[Tensor, ...], span: Tensor, norm: AdjointNorm
    ) -> Problem:
        """Return the problem of the backward solve from one output time to the previous one."""
        plan, packing = problem.plan, Packing(state, 0)
        y, times = packing.pack(state), span.tolist()
        between = [knot for knot, _ in plan.knots or () if min(times) < knot < max(times)]
        backward = replace(
            plan,
            tableau=self._tableau(plan),
            times=times,
            wanted=[1],
            like=y,
            rtol=self.rtol or smallest(plan.rtol),
            atol=self.atol or smallest(plan.atol),
            norm=lambda error: norm(packing.unpack(error)),  # type: ignore[arg-type]
            group_dims=0,
            first_step=None,
            knots=None if plan.knots is None else [(t, 0) for t in (times[0], *reversed(between), times[1])],
            step_at=plan.step_at[::-1],
            times_move=False,
        )
        return replace(problem, f=rate, y0=y, times=None, plan=backward, packing=packing, shown=[1], engine="torch")
