"""The flow of an ODE as a layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from anode.models.augment import Augment, as_augment
from anode.models.model import Model, Outcome
from anode.ode.control import Norm
from anode.ode.field import Field
from anode.ode.gradients import GRADIENTS, Gradient
from anode.ode.inputs import lookup, number, require, whole_number
from anode.ode.native import ENGINES
from anode.ode.solution import Solution
from anode.ode.solve import solve
from anode.ode.tableaus import TABLEAUS


class Flow(Model):
    """Maps an input to the solution of dh/dt = f(t, h) at time t1, having started from the augmented input.

    Args:
        field: f, as ``f(t, h)``.
        augment: How many zeros to append to the input, or an :class:`anode.Augment`. They are appended
            to the last dimension, or to the one that the field names as its ``features_dim``: 1 for a module of
            convolutions.
        t1: The time at which the features are read.
        method, rtol, atol, gradient, max_steps, engine: As in :func:`anode.solve`. The tolerances are the paper's.
        control: As in :func:`anode.solve`; by default one step size for the batch, of each member of a stacked field.
        step_size: Take steps of this size, instead of adaptive ones.

    Attributes:
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
        method: str = "dopri5",
        rtol: float = 1e-3,
        atol: float = 1e-3,
        gradient: str | Gradient = "discrete",
        control: str | int | None = None,
        max_steps: int = 1_000,
        step_size: float | None = None,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        t1 = number("t1", t1, finite=True)
        # A tensor with a tolerance for each dimension is checked once the state is known.
        rtol = rtol if isinstance(rtol, Tensor) else number("rtol", rtol, finite=True)
        atol = atol if isinstance(atol, Tensor) else number("atol", atol, finite=True)
        step_size = number("step_size", step_size, optional=True, finite=True)
        max_steps = number("max_steps", max_steps, whole=True)
        if not isinstance(gradient, Gradient):
            lookup("gradient", gradient, GRADIENTS)
        control = _checked_control(control)
        if not lookup("method", method, TABLEAUS).adaptive and step_size is None:
            raise ValueError(
                f"step_size: takes a number above 0 for method {method!r}, which has steps of a given size"
            )
        require(engine in ENGINES, "engine", engine, ", ".join(map(repr, ENGINES)))
        self.field = field
        dim = getattr(field, "features_dim", -1)
        self.augment = as_augment(augment, dim)
        self.t1, self.control = t1, control
        self.norm: Norm | None = None
        self.solver: dict[str, Any] = {
            "method": method,
            "rtol": rtol,
            "atol": atol,
            "gradient": gradient,
            "max_steps": max_steps,
            "step_size": step_size,
            "engine": engine,
        }

    @property
    def members(self) -> int | None:
        return self.field.members if isinstance(self.field, Field) else None

    def run(self, x: Tensor) -> Outcome:
        solution = self.solve(x)
        assert isinstance(solution.y1, Tensor)
        return Outcome(solution.y1, solution.y1, solution)

    def solve(self, x: Tensor, **options: Any) -> Solution:
        """The solve from inputs to features; options of :func:`anode.solve` may be given to change it."""
        return self._solve(self.augment(x), (0.0, self.t1), options)

    def trajectory(self, x: Tensor, times: int | Sequence[float] | Tensor = 50) -> Tensor:
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
        ys = self.solve(x, save_at=times).check().ys
        assert isinstance(ys, Tensor)
        return ys

    def inverse(self, features: Tensor, **options: Any) -> Tensor:
        """The inputs that some features come from, by solving backwards in time.

        Args:
            features: States at time t1.
            **options: Options of :func:`anode.solve`, such as tighter tolerances.
        """
        y0 = self._solve(features, (self.t1, 0.0), options).check().y1
        assert isinstance(y0, Tensor)
        return self.augment.remove(y0)

    def _solve(self, h: Tensor, span: tuple[float, float], options: dict[str, Any]) -> Solution:
        control = self.control
        if control is None:
            control = "joint" if self.members is None else "member"
        return solve(self.field, h, span, **{"control": control, "norm": self.norm, **self.solver, **options})

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """Some of the options it was made with, checked, by name."""
        every = {"t1": self.t1, "control": self.control, **self.solver}
        return {name: every[name] for name in names}

    def extra_repr(self) -> str:
        return f"t1={self.t1}, control={self.control!r}, " + ", ".join(f"{k}={v!r}" for k, v in self.solver.items())


def _checked_control(control: Any) -> str | int | None:
    """Who shares a step size: a name, or a number of dimensions, which is compared with the state once it is known."""
    dims = whole_number(control)
    if control is not None and dims is None:
        lookup("control", control, dict.fromkeys(("joint", "member", "sample")))
    return control if dims is None else dims
