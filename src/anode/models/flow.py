"""The flow of an ODE as a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.checks import number, require
from anode.interface.solve import solve
from anode.models.augment import Augment, Zeros, as_augment
from anode.models.certify import BOUND, Certificate, Check, certify, check
from anode.models.description import described
from anode.models.misfit import MISTAKES, blame
from anode.models.model import Model, Outcome
from anode.ode.control import Norm
from anode.ode.field import Field
from anode.ode.noise import Noise
from anode.ode.solution import Solution, State
from anode.ode.solver import Solver, as_solver, check_settings

if TYPE_CHECKING:
    from anode.models.along import Along

PAPER = Solver(atol=1e-3, max_steps=1_000)
"""The paper's tolerances, and a budget that ends solves which have gone astray in training."""


@described
class Flow(Model):
    """Maps an input to the solution of dh/dt = f(t, h) at time t1, having started from the augmented input.

    Args:
        field: f, as ``f(t, h)``.
        augment: How many zeros to append to the input, or an :class:`anode.Augment`. They are appended
            to the last dimension, or to the one that the field names as its attribute ``features_dim``: -3 for a
            module of convolutions.
        t1: The time at which the features are read.
        solver: How to solve: an :class:`anode.Solver`. The default, ``anode.models.flow.PAPER``, has the paper's
            tolerances.
        **settings: Settings of the solver, such as ``rtol``, that take the place of its own.

    Attributes:
        solver: How to solve; assign another to change it.
        norm: As in :func:`anode.solve`; set for a while where processes that share a batch have to take the same steps.

    Example:
        >>> import torch, anode
        >>> flow = anode.Flow(anode.MLPField(2 + 1), augment=1)
        >>> x = torch.rand(8, 2)
        >>> flow(x).shape, flow.trajectory(x, 20).shape
        (torch.Size([8, 3]), torch.Size([20, 8, 3]))
        >>> bool((flow.inverse(flow(x)) - x).abs().max() < 0.01)
        True
    """

    def __init__(
        self,
        field: nn.Module,
        *,
        augment: int | Augment = 0,
        t1: float = 1.0,
        solver: Solver | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        require(isinstance(field, nn.Module), "field", field, "a torch.nn.Module f(t, h)")
        check_settings(settings, type(self))
        self.solver = as_solver(solver, PAPER, settings)
        self.field = field
        self.augment = as_augment(augment, features_dim(field))
        self.t1 = number("t1", t1, finite=True)
        self.norm: Norm | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a flow like this one."""
        return {"field": self.field, "augment": self.augment_setting, "t1": self.t1, "solver": self.solver}

    @property
    def augment_setting(self) -> int | Augment:
        """The augmentation as the short form that models take, where that says it all."""
        usual = type(self.augment) is Zeros and self.augment.dim == features_dim(self.field)
        return self.augment.extra if usual else self.augment  # type: ignore[return-value]

    @property
    def members(self) -> int | None:
        return self.field.members if isinstance(self.field, Field) else None

    def run(self, x: Tensor, *, along: Along | None = None, **options: Any) -> Outcome:
        """Everything about some inputs. A failed solve does not raise here: look at ``outcome.solution``.

        Args:
            x: The inputs.
            along: What to integrate along the trajectories, as regularisers do; the state that is solved for is then a
                tuple of that of the flow and of these.
            **options: Options of :func:`anode.solve` for this time only, or another ``t1``.
        """
        if along is None:
            solution = self.solve(x, **options)
            return Outcome(solution.y1, solution.y1, solution)
        solution = self.start_and_solve(x, along, **options)[1]
        features, integrals = along.read(solution.y1)
        return Outcome(features, features, solution, integrals)

    @property
    def paths(self) -> int:
        """Over how many solves a head averages its predictions: 1, unless they are noisy and nothing is trained."""
        noise = self.solver.noise
        return noise.paths if isinstance(noise, Noise) and not self.training else 1

    def solve(self, x: Tensor, **options: Any) -> Solution:
        """The solve from inputs to features; options of :func:`anode.solve` may be given to change it."""
        return self.start_and_solve(x, **options)[1]

    def start_and_solve(
        self, x: Tensor, along: Along | None = None, t1: float | None = None, **options: Any
    ) -> tuple[State, Solution]:
        """The states that inputs enter the flow as, and the solve from there to the features."""
        try:
            start, span = self.augment(x), (0.0, self.t1 if t1 is None else t1)
            if along is None:
                return start, self.solve_from(start, span, **options)
            field, extended = along.problem(self.field, start)
            return start, solve(field, extended, span, **{"solver": self.solver, **options})
        except MISTAKES as error:
            blame(x, error, self.augment, self.field)
            raise

    def solve_from(self, h: State, span: tuple[float, float], **options: Any) -> Solution:
        """The solve from states at one time to those at another, such as back from features.

        Args:
            h: The states at the start, with the added dimensions.
            span: Start and end time.
            **options: Options of :func:`anode.solve`.
        """
        return solve(self.field, h, span, **{"solver": self.solver, "norm": self.norm, **options})

    def check(self, x: Tensor, bound: float = BOUND, **settings: Any) -> Check:
        """Solve forward and back, and compare with a much tighter tolerance.

        A flow can be solved backwards, so that its inputs come out again, up to the errors of the solver. Where they do
        not, the number of evaluations says little about the flow: a tighter tolerance would take more.

        Args:
            x: The inputs, a few hundred of them.
            bound: The largest error, as a fraction of the size of the states, that passes.
            **settings: Settings of the solver, such as ``rtol``, that take the place of its own.

        Example:
            >>> import torch, anode
            >>> flow = anode.Flow(anode.MLPField(2 + 1), augment=1)
            >>> flow.check(torch.rand(100, 2)).passes
            True
        """
        return check(self, x, bound, settings)

    def certify(self, x: Tensor, bound: float = BOUND, tolerances: Sequence[float] | None = None) -> Certificate:
        """Find the loosest tolerance with which the inputs come out again when the flow is solved forward and back.

        Args:
            x: The inputs, a few hundred of them.
            bound: The largest error, as a fraction of the size of the states, that passes.
            tolerances: What to try as ``rtol``; ``atol`` stays in proportion. By default from 0.1 down to what the
                precision of x allows.

        Returns:
            All tolerances that were tried, with errors and evaluations: print it, or call ``plot()``.

        Example:
            >>> import torch, anode
            >>> flow = anode.Flow(anode.MLPField(2 + 1), augment=1)
            >>> certificate = flow.certify(torch.rand(100, 2))
            >>> certificate.passes, bool(certificate.nfe > 0)
            (True, True)
        """
        return certify(self, x, bound, tolerances)

    def trajectory(self, x: Tensor, times: int | Sequence[float] | Tensor = 50) -> Any:
        """The states on the way from inputs to features.

        Args:
            x: The inputs.
            times: When, from 0 to t1; or how many times, evenly spaced over all of it.

        Returns:
            The states, stacked along a new first dimension. They include the added dimensions.
        """
        if isinstance(times, int | Integral):
            times = torch.linspace(0.0, self.t1, number("times", times, whole=True), dtype=torch.float64)
        # The end, in single precision, may lie a little behind itself.
        times = [self.t1 if t > self.t1 and math.isclose(t, self.t1, rel_tol=1e-6) else t for t in map(float, times)]
        return self.solve(x, save_at=times).check().ys

    def inverse(self, features: State, **options: Any) -> Tensor:
        """The inputs that some features come from, by solving backwards in time.

        Args:
            features: States at time t1.
            **options: Options of :func:`anode.solve`, such as tighter tolerances.
        """
        takes = "nothing for an inverse, which a noisy solve does not have; pass noise=None for that of the ODE"
        require(options.get("noise", self.solver.noise) is None, "noise", self.solver.noise, takes)
        if type(self.augment).remove is Augment.remove:
            self.augment.remove(features)  # which says what is missing, before anything is solved
        return self.augment.remove(self.solve_from(features, (self.t1, 0.0), **options).check().y1)

    def extra_repr(self) -> str:
        return f"t1={self.t1}, solver={self.solver!r}"


def features_dim(field: nn.Module | None) -> int:
    """The dimension of a state that holds a point's features, as its field says; the last if it says nothing."""
    return getattr(field, "features_dim", -1)
