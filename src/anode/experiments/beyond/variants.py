"""Runs of the family that are trained with noise in the state, or with a regulariser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anode.experiments.beyond.runs import FamilyRun, condense, held_out
from anode.experiments.certificates import Certificates
from anode.experiments.runs import HERE, Place, Result
from anode.models import family
from anode.models.nets import NeuralODE
from anode.models.randomness import with_seed
from anode.ode.noise import Noise
from anode.ode.solver import Solver
from anode.train.regularisers import Jacobian, Kinetic, LocalErrors, Regularised, Regulariser, Steer

PATHS = 10
"""Number of noisy solves per prediction, which is their mean."""


@dataclass(frozen=True)
class NoisyRun(FamilyRun):
    """A run with Gaussian noise in the state after every step of Euler's method, so it does not solve an ODE.

    Attributes:
        noise: Standard deviation of the noise per unit of time; 0 for none.
        steps: Number of steps of Euler's method.
    """

    noise: float = 0.0
    steps: int = 20

    def described(self) -> dict[str, Any]:
        said = f"Euler, {self.steps} steps, noise {self.noise:g}"
        return {**super().described(), "solver": said + (f", mean of {PATHS} paths" if self.noise else "")}

    def build(self) -> NeuralODE:
        noise = Noise(self.noise, PATHS) if self.noise else None
        solver = Solver(method="euler", step_size=1 / self.steps, noise=noise)
        return family.build("zeros", self.dim, 1, augment=self.augment, hidden=self.hidden, solver=solver)

    def certify(self, result: Result, place: Place = HERE) -> dict[str, Certificates]:
        """Return nothing: the step size is fixed, so there is no tolerance."""
        return {}

    def finish(self, result: Result) -> None:
        x, y = self.others()
        with with_seed(self.seed):  # for the noise
            result.measured = {"held-out": held_out(result.model.eval().run(x), y, self.loss)}
        condense(result)


REGULARISERS: dict[str, Callable[[float], Regulariser]] = {
    "kinetic": Kinetic,
    "jacobian": Jacobian,
    "steer": Steer,
    "errors": LocalErrors,
}
"""Functions from a strength to a regulariser. In addition, ``"decay"`` is the weight decay of Adam."""


@dataclass(frozen=True)
class RegularisedRun(FamilyRun):
    """A run with a regulariser.

    Attributes:
        regulariser: One of :data:`REGULARISERS`, or ``"decay"``.
        strength: Weight of the regulariser; for STEER, the width of the end times.
    """

    regulariser: str = "decay"
    strength: float = 0.0

    def described(self) -> dict[str, Any]:
        return {**super().described(), "regulariser": f"{self.regulariser}, {self.strength:g}"}

    def options(self) -> dict[str, Any]:
        if self.regulariser == "decay":
            return {"loss": self.loss, "weight_decay": self.strength}
        return {"loss": Regularised(REGULARISERS[self.regulariser](self.strength), loss=self.loss)}
