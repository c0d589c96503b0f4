"""Regularisers: penalties on a flow that are added to the loss, and changes to how training solves it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anode.checks import Words, flag, lookup, number, require
from anode.models.along import Along, Pull, Quantity
from anode.models.flow import Flow
from anode.models.model import Outcome
from anode.train.losses import LOSSES, Loss, default_loss, takes_outcome

EXACT = 10
"""Largest number of features for which the norm of a Jacobian is exact by default."""
MOST_EXACT = 100
"""Largest number for which ``exact=True`` is accepted. Each feature takes a backward pass of f per evaluation."""


class Regulariser:
    """A part of a :class:`Regularised` loss: it changes how training solves, adds to the loss, or both.

    Subclasses override one of the two methods, or both.

    Example:
        >>> import anode
        >>> class Short(anode.Regulariser):
        ...     def penalty(self, outcome, integral):
        ...         return 0.01 * outcome.features.square().mean(-1)
        >>> loss = anode.Regularised(Short())
        >>> history = anode.fit(anode.NeuralODE(2, 1), anode.datasets.load("moons"), loss=loss, epochs=1)
    """

    def options(self, flow: Flow) -> dict[str, Any]:
        """Return options of ``Flow.run`` for the next training iteration."""
        return {}

    def penalty(self, outcome: Outcome, integral: Tensor | None) -> Tensor | None:
        """Return the penalty of each sample, [batch]; ``None`` for none.

        Args:
            outcome: The outcome of the model.
            integral: The integral along the trajectory of each sample, if the regulariser is a ``Quantity``.
        """
        return None


class _Weighted(Regulariser):
    """A regulariser with a weight."""

    def __init__(self, weight: float) -> None:
        self.weight = number("weight", weight, zero=True, finite=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.weight:g})"


class _Integrated(_Weighted, Quantity):
    """A regulariser that is an integral along the trajectory."""

    def penalty(self, outcome: Outcome, integral: Tensor | None) -> Tensor | None:
        assert integral is not None
        return self.weight * integral


class Kinetic(_Integrated):
    """The kinetic energy of the flow: the integral of |f(t, h)|^2 / 2n over time, where n is the size of the state.

    Finlay et al. (2020), "How to Train Your Neural ODE" (RNODE). Trajectories become straight and of constant speed,
    and take fewer evaluations. The solver integrates the energy as a part of the state.

    Args:
        weight: Factor of the penalty. Defaults to 0.01, as in their experiments.

    Example:
        >>> import anode
        >>> loss = anode.Regularised(anode.Kinetic(0.1))
        >>> history = anode.fit(anode.NeuralODE(2, 1), anode.datasets.load("moons"), loss=loss, epochs=1)
    """

    def __init__(self, weight: float = 0.01) -> None:
        super().__init__(weight)

    def rate(self, h: Tensor, slope: Tensor, pull: Pull | None, probe: Tensor | None) -> Tensor:
        return slope.square().flatten(1).mean(1) / 2


class Jacobian(_Integrated):
    """The size of the Jacobian J of f: the integral of |J|^2 / n over time, in the Frobenius norm.

    Finlay et al. (2020), "How to Train Your Neural ODE" (RNODE). If a state has many features n, the norm is estimated
    with Hutchinson's method: the mean of |J^T e|^2 over standard normal e is |J|^2. One e is drawn per sample and kept
    for the whole solve, so that the solver sees a smooth function.

    Args:
        weight: Factor of the penalty. Defaults to 0.01, as in their experiments.
        exact: Whether to compute the norm exactly, which takes n backward passes of f per evaluation. Defaults to true
            up to n = 10.

    Example:
        >>> import anode
        >>> loss = anode.Regularised(anode.Kinetic(), anode.Jacobian())
        >>> history = anode.fit(anode.NeuralODE(2, 1), anode.datasets.load("moons"), loss=loss, epochs=1)
    """

    needs_pull = True

    def __init__(self, weight: float = 0.01, exact: bool | None = None) -> None:
        super().__init__(weight)
        if exact is not None:
            flag("exact", exact)
        self.exact = exact

    def needs_probe(self, size: int) -> bool:
        takes = f"False for a state of {size} features: an exact norm takes as many backward passes of f"
        require(self.exact is not True or size <= MOST_EXACT, "exact", True, takes)
        return not (size <= EXACT if self.exact is None else self.exact)

    def rate(self, h: Tensor, slope: Tensor, pull: Pull | None, probe: Tensor | None) -> Tensor:
        assert pull is not None
        size = math.prod(h.shape[1:])
        if self.needs_probe(size):
            assert probe is not None
            return pull(probe)[0].square().flatten(1).mean(1)
        rows = torch.eye(size, dtype=h.dtype, device=h.device).reshape(size, 1, *h.shape[1:])
        return torch.stack([pull(row.expand_as(h))[0].square().flatten(1).sum(1) for row in rows]).sum(0) / size

    def __repr__(self) -> str:
        return super().__repr__() if self.exact is None else f"Jacobian({self.weight:g}, exact={self.exact})"


class Steer(Regulariser):
    """Solve up to a random time in training: t1 + u, where u is uniform between -width and width.

    Ghosh et al. (2020), "STEER: Simple Temporal Regularization for Neural ODEs". Every iteration draws one time, which
    all samples and all members of a stack share. Outside of training, the flow ends at t1.

    Args:
        width: Half the length of the interval, below t1. The best value depends on the task; the default is for t1 = 1.

    Example:
        >>> import anode
        >>> loss = anode.Regularised(anode.Steer(0.25))
        >>> history = anode.fit(anode.NeuralODE(2, 1), anode.datasets.load("moons"), loss=loss, epochs=1)
    """

    def __init__(self, width: float = 0.5) -> None:
        self.width = number("width", width, finite=True)

    def options(self, flow: Flow) -> dict[str, Any]:
        require(self.width < flow.t1, "width", self.width, f"a number below t1, which is {flow.t1:g}")
        return {"t1": flow.t1 + self.width * (2 * float(torch.rand((), device="cpu")) - 1)}

    def __repr__(self) -> str:
        return f"Steer({self.width:g})"


class LocalErrors(_Weighted):
    """The solver's own error estimates: the sum of |h_j| E_j over the steps j.

    Pal et al. (2021), "Opening the Blackbox: Accelerating Neural Differential Equations by Regularizing Internal Solver
    Heuristics" (ERNODE). h_j is the size of step j, E_j the root mean square of its error estimate. It requires a
    method with an error estimate. The Python loop takes the steps, because the penalty is differentiated through the
    slopes of every step.

    Args:
        weight: Factor of the penalty. Error estimates are below the tolerance, so useful factors are large.

    Example:
        >>> import anode
        >>> loss = anode.Regularised(anode.LocalErrors(10.0))
        >>> history = anode.fit(anode.NeuralODE(2, 1), anode.datasets.load("moons"), loss=loss, epochs=1)
    """

    def __init__(self, weight: float = 100.0) -> None:
        super().__init__(weight)

    def options(self, flow: Flow) -> dict[str, Any]:
        takes = "a method with an error estimate for LocalErrors, such as dopri5"
        require(flow.solver.tableau.adaptive, "method", flow.solver.method, takes)
        return {"dense": True}

    def penalty(self, outcome: Outcome, integral: Tensor | None) -> Tensor | None:
        assert outcome.solution is not None
        parts = [abs(size) * error for size, error in outcome.solution.local_errors()]
        return self.weight * torch.stack(parts).sum(0) if parts else None  # no step if the solve has failed at once


class Regularised:
    """A loss with regularisers: pass it to ``anode.fit(..., loss=...)``.

    The penalties are added in training only; the validation loss is the plain loss. Weight decay is a setting of the
    optimizer: pass ``weight_decay`` to :func:`anode.fit`. In your own loop, solve with
    ``outcome = model.run(x, **loss.options(model.flow))``, and minimise the mean of ``loss(outcome, target)``.

    Args:
        *terms: :class:`Kinetic`, :class:`Jacobian`, :class:`Steer`, :class:`LocalErrors`, or a :class:`Regulariser` of
            your own.
        loss: The loss to which the penalties are added, as for :func:`anode.fit`. In :func:`anode.fit` it defaults to
            that of the model, such as that of :class:`anode.DensityFlow`. Otherwise it defaults to cross entropy for
            integer targets, and to Huber's loss for others.

    Example:
        >>> import anode
        >>> loss = anode.Regularised(anode.Kinetic(0.1), anode.Steer(0.25), loss="mse")
        >>> loss
        Regularised(Kinetic(0.1), Steer(0.25), loss='mse')
        >>> model = anode.NeuralODE(2, 1, augment=1)
        >>> history = anode.fit(model, anode.datasets.load("moons"), loss=loss, epochs=1)
    """

    def __init__(self, *terms: Regulariser, loss: str | Loss | None = None) -> None:
        for term in terms:
            takes = "regularisers, such as anode.Kinetic(0.01); the loss they are added to is loss="
            require(isinstance(term, Regulariser), "terms", term, takes)
        if loss is not None and not callable(loss):
            lookup("loss", loss, LOSSES)
        self.terms, self.loss = terms, loss
        self._integrated = [term for term in terms if isinstance(term, Quantity)]
        self._along = Along(self._integrated)

    def options(self, flow: Flow) -> dict[str, Any]:
        """Return options of ``Flow.run`` for the next iteration. They may be random."""
        found: dict[str, Any] = {"along": self._along} if self._integrated else {}
        for term in self.terms:
            for name, value in term.options(flow).items():
                takes = f"at most one regulariser that sets {name}"
                require(found.setdefault(name, value) is value, "terms", self, takes)
        return found

    def __call__(self, outcome: Outcome, target: Tensor) -> Tensor:
        """Return the loss of every sample, with the penalties if gradients are enabled."""
        losses = self._losses(outcome, target)
        for penalty in self._penalties(outcome):
            few = min(penalty.ndim, losses.ndim)
            part = penalty.flatten(few).mean(-1) if penalty.ndim > few else penalty
            losses = losses + part.reshape(part.shape + (1,) * (losses.ndim - part.ndim))
        return losses

    def _losses(self, outcome: Outcome, target: Tensor) -> Tensor:
        loss = default_loss(target) if self.loss is None else self.loss
        if isinstance(loss, str):
            return LOSSES[loss](outcome.prediction, target)
        return loss(outcome if takes_outcome(loss) else outcome.prediction, target)

    def _penalties(self, outcome: Outcome) -> list[Tensor]:
        if not torch.is_grad_enabled():
            return []
        takes = "an outcome of model.run(x, **loss.options(model.flow)), which has the integrals of its regularisers"
        missing = Words("one without")
        require(len(outcome.integrals) == len(self._integrated), "outcome", missing, takes)
        integrals = dict(zip(map(id, self._integrated), outcome.integrals, strict=True))
        found = (term.penalty(outcome, integrals.get(id(term))) for term in self.terms)
        return [penalty for penalty in found if penalty is not None]

    def __repr__(self) -> str:
        named = [] if self.loss is None else [f"loss={getattr(self.loss, '__name__', self.loss)!r}"]
        return f"Regularised({', '.join([*map(repr, self.terms), *named])})"
