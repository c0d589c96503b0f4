"""The :class:`Solver` settings, and the plans made from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from inspect import signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from anode.checks import describe, lookup, names_settings, nearest, number, require, whole_number
from anode.ode.continuous import Continuous
from anode.ode.control import CONTROLLERS, PID, AdjointNorm, Controller
from anode.ode.discrete import Discrete
from anode.ode.gradient import Gradient
from anode.ode.noise import Noise
from anode.ode.packing import Packing
from anode.ode.plan import Plan
from anode.ode.stored import Stored
from anode.ode.tableau import Tableau
from anode.ode.tableaus import TABLEAUS, as_tableau
from anode.recent import Recent

Tolerance = float | Tensor | tuple[float | Tensor, ...]

GRADIENTS: dict[str, Gradient] = {"discrete": Discrete(), "stored": Stored(), "continuous": Continuous()}
"""The gradient methods by name."""
ENGINES = ("auto", "native", "torch")
"""What integrates: the compiled engine if possible, always the compiled engine, or the Python loop."""
CONTROLS = ("auto", "joint", "member", "sample")
"""Which parts of the state share a step size."""
NAMED: dict[str, dict[str, Any]] = {"method": TABLEAUS, "controller": CONTROLLERS, "gradient": GRADIENTS}
"""The settings whose values are objects with short names."""
SAVED: dict[str, type[Any]] = {"tableau": Tableau, "pid": PID, "continuous": Continuous, "noise": Noise}
"""The types whose objects can be written as JSON even if they have no short name."""


@names_settings
@dataclass(frozen=True, eq=False, repr=False)
class Solver:
    """The settings of an ODE solve: method, tolerances, step-size control, gradient and engine.

    A solver is immutable, compares by its settings, and can be written as JSON. Objects that have a short name, such as
    the tableau of ``"dopri5"``, are stored as that name.

    Args:
        method: Runge-Kutta method: one of ``anode.METHODS``, or an :class:`anode.Tableau`. Methods without an error
            estimate require ``step_size``.
        rtol: Relative tolerance. The root mean square of each step's error is kept below ``atol + rtol * |y|``. A
            number, a tensor that broadcasts against the state, or a tuple of either for a tuple state.
        atol: Absolute tolerance, see ``rtol``.
        controller: Step-size controller: ``"integral"`` (as in torchdiffeq), ``"pi"``, ``"pid"``, an
            :class:`anode.PID`, or a subclass of :class:`anode.Controller`.
        control: Which parts of the state share a step size:

            * ``"joint"``: the whole state has one step size.
            * ``"member"``: one step size per index of the leading dimension.
            * ``"sample"``: one step size per sample. y0 is ``[batch, features]`` or ``[batch, channels, height,
              width]``, optionally with a leading dimension of members.
            * a number n: one step size per index of the first n dimensions.
            * ``"auto"``: ``"member"`` for a stacked field, otherwise ``"joint"``.
        gradient: How to differentiate the solve: ``"discrete"``, ``"stored"``, ``"continuous"``, an
            :class:`anode.Continuous`, or a subclass of :class:`anode.Gradient`. ``Solution.gradient`` reports which was
            used.
        max_steps: Maximum number of steps of the whole solve, including rejected steps.
        step_size: Size of fixed steps; the last may be shorter. By default the step size is adapted.
        noise: Standard deviation, over one unit of time, of Gaussian noise to add to the state after each step; or an
            :class:`anode.Noise`. It requires ``step_size``. The result is then not the solution of an ODE.
        first_step: Size of the first step. By default it is chosen by Hairer's rule.
        min_step: Smallest step size. A step of this size is accepted whatever its error.
        max_step: Largest step size.
        engine: What integrates. Both engines take the same steps and differ by rounding.

            * ``"native"``: the compiled engine; raises an error if it does not support the solve.
            * ``"torch"``: the Python loop, which supports every solve.
            * ``"auto"``: the compiled engine if it supports the solve, otherwise the Python loop.

    Example:
        >>> import anode
        >>> tight = anode.Solver(rtol=1e-8, atol=1e-8)
        >>> tight
        Solver(rtol=1e-08, atol=1e-08)
        >>> tight.but(method="tsit5").to_json()
        {'method': 'tsit5', 'rtol': 1e-08, 'atol': 1e-08}
        >>> anode.Solver.from_json({"rtol": 1e-8, "atol": 1e-8}) == tight
        True
    """

    method: str | Tableau = "dopri5"
    rtol: Tolerance = 1e-3
    atol: Tolerance = 1e-6
    controller: str | Controller = "integral"
    control: str | int = "auto"
    gradient: str | Gradient = "discrete"
    max_steps: int = 10_000
    step_size: float | None = None
    noise: float | Noise | None = None
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = math.inf
    engine: str = "auto"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {name: _short(name, getattr(self, name)) for name in NAMED}
        checked |= {name: _tolerance(name, getattr(self, name)) for name in ("rtol", "atol")}
        checked |= {
            "control": _control(self.control),
            "max_steps": number("max_steps", self.max_steps, whole=True),
            "step_size": number("step_size", self.step_size, optional=True, finite=True),
            "noise": as_noise(self.noise),
            "first_step": number("first_step", self.first_step, optional=True, finite=True),
            "min_step": number("min_step", self.min_step, zero=True),
            "max_step": number("max_step", self.max_step),
        }
        require(checked["min_step"] <= checked["max_step"], "min_step", self.min_step, f"at most {self.max_step}")
        require(self.engine in ENGINES, "engine", self.engine, ", ".join(map(repr, ENGINES)))
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.step_size is None and not self.tableau.adaptive:
            raise ValueError(
                f"step_size: takes a number above 0 for method {self.tableau.name!r}, which has no error estimate and "
                "cannot adapt its steps; pass step_size=..."
            )
        if self.noise is not None:
            takes = "None with adaptive steps, which would take noise for an error; pass step_size=..."
            require(self.step_size is not None, "noise", self.noise, takes)
            takes = 'None with gradient="continuous", whose backward solve has no noise; use gradient="discrete"'
            require(not isinstance(self.gradient_method, Continuous), "noise", self.noise, takes)

    @cached_property
    def tableau(self) -> Tableau:
        """The method's coefficients."""
        return as_tableau("method", self.method)

    @property
    def step_controller(self) -> Controller:
        """The :class:`Controller` object that ``controller`` names."""
        return CONTROLLERS[self.controller] if isinstance(self.controller, str) else self.controller

    @property
    def gradient_method(self) -> Gradient:
        """The :class:`Gradient` object that ``gradient`` names."""
        return GRADIENTS[self.gradient] if isinstance(self.gradient, str) else self.gradient

    def plan(
        self,
        y: Tensor,
        packing: Packing,
        times: list[float],
        wanted: list[int],
        *,
        norm: Callable[[Any], Tensor] | None = None,
        **special: Any,
    ) -> Plan:
        """Build the :class:`Plan` of a solve. All plans are built here.

        Args:
            y: The packed initial state.
            packing: The packing of the state.
            times, wanted: See :class:`Plan`.
            norm: A function that maps the scaled error, shaped like the state, to one number.
            **special: Further attributes of the plan.
        """
        usual = {
            "rtol": packing.pack_tolerance("rtol", self.rtol),
            "atol": packing.pack_tolerance("atol", self.atol),
            "norm": packing.norm() if norm is None else _own_norm(norm, packing),
        }
        return Plan(
            tableau=self.tableau,
            times=times,
            wanted=wanted,
            like=y.detach().new_empty(()).expand(y.shape),
            own_norm=norm.is_own if isinstance(norm, AdjointNorm) else norm is not None,
            max_steps=self.max_steps,
            controller=self.step_controller,
            group_dims=len(packing.groups),
            noise=self.noise is not None,
            first_step=self.first_step,
            min_step=self.min_step,
            max_step=self.max_step,
            **{**usual, **special},
        )

    def but(self, **settings: Any) -> Solver:
        """Return a copy of the solver with some settings changed."""
        if not settings:
            return self
        # Checking settings takes longer than a small solve, and most callers pass the same ones repeatedly.
        key = tuple((name, type(value), value) for name, value in settings.items())
        return self._variants.get(key, lambda: self._changed(settings))

    @cached_property
    def _variants(self) -> Recent[Solver]:
        return Recent(MOST_VARIANTS)

    def _changed(self, settings: dict[str, Any]) -> Solver:
        check_settings(settings)
        return replace(self, **settings)

    def changes(self, default: Solver | None = None) -> dict[str, Any]:
        """Return the settings that differ from those of ``default``, which defaults to ``Solver()``."""
        default = DEFAULT if default is None else default
        return {n: getattr(self, n) for n in SETTINGS if not _same(getattr(self, n), getattr(default, n))}

    def to_json(self, default: Solver | None = None) -> dict[str, Any]:
        """Return the settings that differ from those of ``default`` as values that JSON can hold."""
        return {name: _to_json(name, value) for name, value in self.changes(default).items()}

    @classmethod
    def from_json(cls, settings: dict[str, Any], default: Solver | None = None) -> Solver:
        """Return the solver that :meth:`to_json` described."""
        found = {name: _from_json(value) for name, value in settings.items()}
        if found.get("control", "auto") is None:  # as versions before 0.2 wrote it
            found["control"] = "auto"
        return (DEFAULT if default is None else default).but(**found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Solver) and all(_same(getattr(self, n), getattr(other, n)) for n in SETTINGS)

    def __hash__(self) -> int:
        return hash((self.method, self.control, self.max_steps, self.step_size, self.engine))

    def __repr__(self) -> str:
        return f"Solver({', '.join(f'{name}={value!r}' for name, value in self.changes().items())})"


MOST_VARIANTS = 64
"""Maximum number of variants that :meth:`Solver.but` caches per solver."""
SETTINGS = tuple(each.name for each in fields(Solver))
"""The names of a solver's settings."""


def check_settings(settings: dict[str, Any], caller: Callable[..., Any] | None = None) -> None:
    """Raise ``TypeError`` if a setting is unknown, and suggest the nearest name that the caller takes."""
    for name in settings.keys() - SETTINGS:
        own = () if caller is None else tuple(signature(caller).parameters)[:-1]  # the last are the settings
        hint = nearest(name, (*own, *SETTINGS))
        what = "a setting of anode.Solver" if caller is None else f"an argument of {caller.__name__}"
        raise TypeError(f"{name}: is not {what}, which takes {', '.join((*own, *SETTINGS))}{hint}")


def as_solver(solver: Any, usual: Solver, settings: dict[str, Any]) -> Solver:
    """Return ``solver``, or ``usual`` if it is ``None``, with some settings changed."""
    takes = "an anode.Solver, or None for the default"
    require(solver is None or isinstance(solver, Solver), "solver", solver, takes)
    return (usual if solver is None else solver).but(**settings)


def _own_norm(norm: Callable[[Any], Any], packing: Packing) -> Callable[[Tensor], Tensor]:
    """Return the caller's norm as a function of packed errors, with its result checked."""

    def checked(error: Tensor) -> Tensor:
        found = norm(packing.unpack(error))
        if not isinstance(found, Tensor | Real) or (isinstance(found, Tensor) and found.numel() != 1):
            takes = "a function norm(error) that returns one number"
            raise TypeError(f"norm: takes {takes}, got one that returned {describe(found)}")
        return torch.as_tensor(found)

    return checked


def _short(name: str, value: Any) -> Any:
    """Check a setting that may be an object, and return its short name if it has one."""
    known = NAMED[name]
    kinds = {"method": Tableau, "controller": Controller, "gradient": Gradient}
    if not isinstance(value, kinds[name]):
        require(
            isinstance(value, str),
            name,
            value,
            f"a name ({', '.join(known)}) or an anode.{kinds[name].__name__} object",
        )
        lookup(name, value, known)
        return value
    return next((short for short, each in known.items() if each == value), value)


def as_noise(value: Any) -> Noise | None:
    """Return the argument ``noise`` as an object: a number is its scale."""
    return value if value is None or isinstance(value, Noise) else Noise(value)


def _tolerance(name: str, value: Any) -> Any:
    """Check a tolerance and return it; its shape is checked later, when the state is known."""
    if isinstance(value, Tensor):
        require(bool((value > 0).all()), name, value, "numbers above 0")
        return value
    if isinstance(value, tuple | list):
        return tuple(_tolerance(name, each) for each in value)
    return float(number(name, value, finite=True))


def _control(control: Any) -> str | int:
    """Check ``control`` and return it; a number of dimensions is checked later, when the state is known."""
    dims = whole_number(control)
    if dims is None:
        lookup("control", control, dict.fromkeys(CONTROLS))
        return control
    return dims


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _to_json(name: str, value: Any) -> Any:
    kind = type(value).__name__.lower()
    if SAVED.get(kind) is type(value):
        return {kind: {each.name: _to_json(name, getattr(value, each.name)) for each in fields(value)}}
    if isinstance(value, tuple):
        return [_to_json(name, each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"{name}: only numbers, names, and objects of {', '.join(each.__name__ for each in SAVED.values())} can be "
        f"written as JSON, got {value!r}"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, settings),) = value.items()
        found = {key: _from_json(each) for key, each in settings.items()}
        return lookup("kind", kind, SAVED)(**found)
    return tuple(map(_from_json, value)) if isinstance(value, list) else value


DEFAULT = Solver()
"""The default solver."""
