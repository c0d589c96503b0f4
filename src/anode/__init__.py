"""Augmented neural ODEs for PyTorch."""

from anode.models.fields import MLPField
from anode.ode.compat import odeint, odeint_adjoint, odeint_dense, odeint_event
from anode.ode.control import PID
from anode.ode.field import Field
from anode.ode.gradients import Continuous
from anode.ode.solution import Solution, SolveError, Stats, Status
from anode.ode.solve import solve
from anode.ode.tableaus import TABLEAUS

METHODS = tuple(TABLEAUS)
"""The names of all methods."""

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "PID",
    "Continuous",
    "Field",
    "MLPField",
    "Solution",
    "SolveError",
    "Stats",
    "Status",
    "odeint",
    "odeint_adjoint",
    "odeint_dense",
    "odeint_event",
    "solve",
]
