"""Augmented neural ODEs for PyTorch."""

import sys
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and ("-m", "anode") in pairwise(sys.orig_argv):  # which imports this before __main__
    from anode_command import interrupt_quietly

    interrupt_quietly()

from anode.data import densities, images
from anode.data import toy as datasets
from anode.engine.explain import explain
from anode.exporting.export import export
from anode.interface.solve import solve
from anode.interface.torchdiffeq import odeint, odeint_adjoint, odeint_dense, odeint_event
from anode.models import family
from anode.models.augment import Augment, Zeros
from anode.models.control import DataControl, WithInput
from anode.models.density import DensityFlow
from anode.models.description import register
from anode.models.ensemble import seeded, stack, unstack
from anode.models.fields import ConvField, MLPField
from anode.models.flow import Flow
from anode.models.layers import First
from anode.models.learned import Constant, Learned
from anode.models.model import Model, Outcome
from anode.models.motion import HeavyBall, SecondOrder, WithVelocity
from anode.models.nets import ImageNeuralODE, NeuralODE, ResNet
from anode.models.saving import load, save
from anode.ode.continuous import Continuous
from anode.ode.control import PID, Controller
from anode.ode.discrete import Discrete
from anode.ode.field import Derivative, Field
from anode.ode.gradient import Gradient
from anode.ode.noise import Noise
from anode.ode.solution import Solution, SolveError, Stats, Status
from anode.ode.solver import Solver
from anode.ode.stored import Stored
from anode.ode.tableau import Tableau
from anode.ode.tableaus import TABLEAUS
from anode.train.callbacks import Callback, Report
from anode.train.fit import Snapshots, fit
from anode.train.history import History
from anode.train.regularisers import Jacobian, Kinetic, LocalErrors, Regularised, Regulariser, Steer
from anode.version import __version__

if TYPE_CHECKING:
    from anode import plots as plots
    from anode.estimators.classifier import ANODEClassifier as ANODEClassifier
    from anode.estimators.regressor import ANODERegressor as ANODERegressor

METHODS = tuple(TABLEAUS)
"""The names of all methods."""

__all__ = [  # without estimators and plots, so that a star import needs no extra
    "METHODS",
    "PID",
    "Augment",
    "Callback",
    "Constant",
    "Continuous",
    "Controller",
    "ConvField",
    "DataControl",
    "DensityFlow",
    "Derivative",
    "Discrete",
    "Field",
    "First",
    "Flow",
    "Gradient",
    "HeavyBall",
    "History",
    "ImageNeuralODE",
    "Jacobian",
    "Kinetic",
    "Learned",
    "LocalErrors",
    "MLPField",
    "Model",
    "NeuralODE",
    "Noise",
    "Outcome",
    "Regularised",
    "Regulariser",
    "Report",
    "ResNet",
    "SecondOrder",
    "Snapshots",
    "Solution",
    "SolveError",
    "Solver",
    "Stats",
    "Status",
    "Steer",
    "Stored",
    "Tableau",
    "WithInput",
    "WithVelocity",
    "Zeros",
    "__version__",
    "datasets",
    "densities",
    "explain",
    "export",
    "family",
    "fit",
    "images",
    "load",
    "odeint",
    "odeint_adjoint",
    "odeint_dense",
    "odeint_event",
    "register",
    "save",
    "seeded",
    "solve",
    "stack",
    "unstack",
]


_ESTIMATORS = {"ANODEClassifier": "anode.estimators.classifier", "ANODERegressor": "anode.estimators.regressor"}


def __getattr__(name: str) -> Any:
    """Import the estimators and the plots on first use: they need scikit-learn and matplotlib."""
    if name == "plots":
        return import_module("anode.plots")
    if name in _ESTIMATORS:
        return getattr(import_module(_ESTIMATORS[name]), name)
    raise AttributeError(f"module 'anode' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, including those that are imported on first use."""
    return [*__all__, *_ESTIMATORS, "plots"]
