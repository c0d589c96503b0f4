"""The flow of an ODE as a PyTorch module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.checks import describe, number, require
from anode.interface.solve import solve
from anode.models.augment import Augment, Zeros, as_augment
from anode.models.certify import BOUND, Certificate, Check, certify, check
from anode.models.description import described
from anode.models.misfit import MISTAKES, blame
from anode.models.model import Model, Outcome, as_input, first_parameter, given
from anode.ode.control import Norm
from anode.ode.field import Field, conditioned
from anode.ode.noise import Noise
from anode.ode.solution import Solution, State, as_tuple
from anode.ode.solver import Solver, as_noise, as_solver, check_settings

if TYPE_CHECKING:
    from anode.models.along import Along

PAPER = Solver(atol=1e-3, max_steps=1_000)
"""The default solver of models: the paper's tolerances, and a small step budget for solves that diverge in training."""


@described
class Flow(Model):
    """A module that augments its input, integrates dh/dt = f(t, h) from 0 to t1, and returns the final state.

    A flow may depend on a context c: ``flow(x, context=c)`` integrates dh/dt = f(t, h, c). c is a tensor with a row per
    input, such as conditions, or codes that a network computes, which gradients reach. :class:`anode.MLPField` and
    :class:`anode.ConvField` append it to the state; pass them the size of both as ``inputs``.

    Args:
        field: The right-hand side, a module called as ``f(t, h)``.
        augment: Number of zeros to append to the input, or an :class:`anode.Augment`. Zeros are appended to the last
            dimension, or to the dimension that the field's attribute ``features_dim`` names. Convolutional fields use
            -3.
        t1: End time.
        solver: An :class:`anode.Solver`. Defaults to ``anode.models.flow.PAPER``, which has the paper's tolerances.
        **settings: Settings of :class:`anode.Solver`, such as ``rtol``. They override those of ``solver``.

    Attributes:
        solver: The solver. Assign another one to change it.
        norm: The ``norm`` of :func:`anode.solve`. :func:`anode.fit` sets it while processes share a batch, so that they
            take the same steps.

    Example:
        >>> import torch, anode
        >>> flow = anode.Flow(anode.MLPField(2 + 1), augment=1)
        >>> x = torch.rand(8, 2)
        >>> flow(x).shape, flow.trajectory(x, 20).shape
        (torch.Size([8, 3]), torch.Size([20, 8, 3]))
        >>> bool((flow.inverse(flow(x)) - x).abs().max() < 0.01)
        True
        >>> given = anode.Flow(anode.MLPField(2, inputs=2 + 3))  # f(t, h, c) for contexts c of 3 numbers
        >>> given(x, context=torch.rand(8, 3)).shape
        torch.Size([8, 2])
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
        """The arguments that build a flow with the same architecture."""
        return {"field": self.field, "augment": self.augment_setting, "t1": self.t1, "solver": self.solver}

    @property
    def augment_setting(self) -> int | Augment:
        """The argument ``augment``: a number for the default augmentation, otherwise the module."""
        usual = type(self.augment) is Zeros and self.augment.dim == features_dim(self.field)
        return self.augment.extra if usual else self.augment  # type: ignore[return-value]

    @property
    def members(self) -> int | None:
        return self.field.members if isinstance(self.field, Field) else None

    def first_flow(self) -> Flow:
        return self

    def run(self, x: Tensor, *, along: Along | None = None, **options: Any) -> Outcome:
        """Return features and solution. A failed solve does not raise; check ``outcome.solution``.

        Args:
            x: Inputs, in the dtype of the parameters or as ``uint8``, which is scaled to [0, 1].
            along: Quantities to integrate along the trajectories, as regularisers do. The state of the solve is then a
                tuple of the flow's state and these integrals.
            **options: Options of :func:`anode.solve` for this call, another ``t1``, or the ``context``.
        """
        if along is None:
            solution = self.solve(x, **options)
            return Outcome(solution.y1, solution.y1, solution)
        solution = self.start_and_solve(x, along, **options)[1]
        features, integrals = along.read(solution.y1)
        return Outcome(features, features, solution, integrals)

    def noise(self, options: dict[str, Any]) -> Noise | None:
        """Return the noise of a solve with these options."""
        return as_noise(options.get("noise", getattr(options.get("solver", self.solver), "noise", None)))

    def paths(self, options: dict[str, Any]) -> int:
        """Return the number of solves that a prediction is the mean of: 1, except for noisy solves in evaluation."""
        noise = self.noise(options)
        return 1 if noise is None or self.training else noise.paths

    def solve(self, x: Tensor, **options: Any) -> Solution:
        """Return the solution from inputs to features.

        Args:
            x: Inputs.
            **options: Options of :func:`anode.solve` for this call, or the ``context``.
        """
        return self.start_and_solve(x, **options)[1]

    def start_and_solve(
        self,
        x: Tensor,
        along: Along | None = None,
        t1: float | None = None,
        context: Tensor | None = None,
        **options: Any,
    ) -> tuple[State, Solution]:
        """Return the initial states and the solution from there to the features."""
        if isinstance(x, Tensor) and x.dtype == torch.uint8:
            x = as_input(x, first_parameter(self))
        field = self.field_for(x, context)
        try:
            start, span = self.augment(x), (0.0, self.t1 if t1 is None else t1)
            if along is None:
                return start, self.solve_from(start, span, **given(context), **options)
            field, extended = along.problem(field, start)
            return start, solve(field, extended, span, **{"solver": self.solver, **options})
        except MISTAKES as error:
            blame(x, error, self.augment, field)
            raise

    def solve_from(
        self, h: State, span: tuple[float, float], context: Tensor | None = None, **options: Any
    ) -> Solution:
        """Return the solution from given states over any time span, for example backward from features.

        Args:
            h: Initial states, including the augmented dimensions.
            span: Start and end time.
            context: The context, see :class:`Flow`.
            **options: Options of :func:`anode.solve` for this call.
        """
        field = self.field_for(h, context)
        return solve(field, h, span, **{"solver": self.solver, "norm": self.norm, **options})

    def field_for(self, h: State, context: Tensor | None) -> nn.Module:
        """Return the field f(t, h) of a solve, which has the context of these points if there is one."""
        if context is None:
            return self.field
        check_context(self, context, as_tuple(h)[0])
        return conditioned(self.field, context)

    def check(self, x: Tensor, bound: float = BOUND, *, context: Tensor | None = None, **settings: Any) -> Check:
        """Check the accuracy of the solver: solve forward and back, and compare with a much tighter tolerance.

        Solving a flow forward and then backward returns the inputs, up to the errors of the solver. If it does not, the
        tolerance is too loose, and the number of evaluations underestimates the cost of the flow.

        Args:
            x: Inputs. A few hundred are enough.
            bound: Largest error that passes, relative to the size of the states.
            context: The context of the inputs, see :class:`Flow`.
            **settings: Settings of :class:`anode.Solver`, such as ``rtol``. They override those of the flow's solver.

        Returns:
            The errors and the cost; ``passes`` says whether the overall reconstruction error is within ``bound``.

        Example:
            >>> import torch, anode
            >>> flow = anode.Flow(anode.MLPField(2 + 1), augment=1)
            >>> flow.check(torch.rand(100, 2)).passes
            True
        """
        return check(self, x, bound, settings, context)

    def certify(
        self,
        x: Tensor,
        bound: float = BOUND,
        tolerances: Sequence[float] | None = None,
        *,
        context: Tensor | None = None,
    ) -> Certificate:
        """Find the loosest tolerance at which solving forward and back returns the inputs.

        Args:
            x: Inputs. A few hundred are enough.
            bound: Largest error that passes, relative to the size of the states.
            tolerances: Values of ``rtol`` to try; ``atol`` is scaled in proportion. By default they range from 0.1 down
                to what the precision of ``x`` allows.
            context: The context of the inputs, see :class:`Flow`.

        Returns:
            The tolerances that were tried, with their errors and numbers of evaluations. Print it, or call ``plot()``.

        Example:
            >>> import torch, anode
            >>> flow = anode.Flow(anode.MLPField(2 + 1), augment=1)
            >>> certificate = flow.certify(torch.rand(100, 2))
            >>> certificate.passes, bool(certificate.nfe > 0)
            (True, True)
        """
        return certify(self, x, bound, tolerances, context)

    def trajectory(
        self, x: Tensor, times: int | Sequence[float] | Tensor = 50, *, context: Tensor | None = None
    ) -> Any:
        """Return the states at several times between inputs and features.

        Args:
            x: Inputs.
            times: Times from 0 to t1, or a number of evenly spaced times.
            context: The context of the inputs, see :class:`Flow`.

        Returns:
            The states, including the augmented dimensions, stacked along a new first dimension.

        Raises:
            SolveError: If the solve fails.
        """
        if isinstance(times, int | Integral):
            times = torch.linspace(0.0, self.t1, number("times", times, whole=True), dtype=torch.float64)
        # In single precision, the last time may round to slightly more than t1.
        times = [self.t1 if t > self.t1 and math.isclose(t, self.t1, rel_tol=1e-6) else t for t in map(float, times)]
        return self.solve(x, save_at=times, **given(context)).check().ys

    def inverse(self, features: State, **options: Any) -> Tensor:
        """Return the inputs of given features by solving backward in time.

        Args:
            features: States at time t1.
            **options: Options of :func:`anode.solve` for this call, such as tighter tolerances, or the ``context``.

        Raises:
            SolveError: If the solve fails.
        """
        takes = "None for an inverse, which a noisy solve does not have; pass noise=None to invert the ODE"
        noise = self.noise(options)
        require(noise is None, "noise", noise, takes)
        if type(self.augment).remove is Augment.remove:
            self.augment.remove(features)  # raises an error before the solve
        return self.augment.remove(self.solve_from(features, (self.t1, 0.0), **options).check().y1)

    def extra_repr(self) -> str:
        return f"t1={self.t1}, solver={self.solver!r}"


def check_context(model: Model, context: Any, x: Any) -> None:
    """Raise ``ValueError`` or ``TypeError`` unless a context has a row for each of the points x."""
    require(model.members is None, "context", describe(context), "None for a stack of models")
    if not isinstance(context, Tensor):
        raise TypeError(f"context: takes a tensor with a row per point, got {describe(context)}")
    if not isinstance(x, Tensor):
        raise TypeError(f"x: takes a tensor, got {describe(x)}; convert it with torch.as_tensor(x)")
    require(
        x.ndim < 2 or context.shape[:1] == x.shape[:1],
        "context",
        describe(context),
        f"a row for each of the {len(x)} points",
    )
    floating = context.is_floating_point() and x.is_floating_point() and context.numel() > 0
    if floating and context.dtype != x.dtype:
        raise TypeError(f"context: takes {x.dtype}, the dtype of the points, got {context.dtype}")


def features_dim(field: nn.Module | None) -> int:
    """Return the field's attribute ``features_dim``, the dimension of the state that holds the features; default -1."""
    return getattr(field, "features_dim", -1)
