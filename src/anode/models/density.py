"""Densities: a flow that maps points to a normal distribution, and their log-probabilities."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.checks import Words, describe, lookup, number, require
from anode.interface.solve import solve
from anode.models.augment import Augment
from anode.models.description import described
from anode.models.divergence import TRACES, DensityStart, Divergence, parts, refuse_mixing
from anode.models.fields import MLPField, Network, field_or_perceptron
from anode.models.flow import Flow, check_context
from anode.models.layers import check_state
from anode.models.model import Model, Outcome, as_input, check_input
from anode.ode.field import Field, conditioned
from anode.ode.solver import Solver, as_solver, check_settings

if TYPE_CHECKING:
    from anode.models.along import Along

FFJORD = Solver(rtol=1e-5, atol=1e-5, max_steps=1_000)
"""The tolerances of Grathwohl et al. (2019), and a small step budget for solves that diverge in training."""
NETWORK: dict[str, Any] = {"hidden": 64, "layers": 3, "activation": "tanh"}
"""Their network for points in the plane."""
MOST_EXACT = 64
"""The largest state whose trace is computed exactly: that takes a derivative for each of its numbers."""


def negative_log_likelihood(outcome: Outcome, targets: Tensor) -> Tensor:
    """Return the loss of a density: minus the log-probability of each point. Targets are ignored."""
    found: Tensor = -outcome.prediction
    return found


@described
class DensityFlow(Model):
    """A density learned from points: a continuous normalizing flow, augmented if ``augment`` is above 0.

    A point x flows along dz/dt = f(t, z) from z(0) = x to z(t1), which is standard normal. The density of x
    follows from how the flow changes volumes (Chen et al., 2018, "Neural Ordinary Differential Equations")::

        log p(x) = log N(z(t1); 0, I) + ∫ tr(∂f/∂z) dt

    With ``augment=p``, p normal coordinates e are appended to x, and the flow has a joint density p(x, e). Its integral
    over e is the density of x, which is not computed. Instead, the result is a **lower bound** in the mean over e::

        log p(x) >= E[log p(x, e) - log N(e; 0, I)],    e ~ N(0, I)

    (Huang, Dinh and Courville, 2020, "Augmented Normalizing Flows"; with a learned distribution of e: Chen et al.,
    2020, "VFlow"). More draws of e make it tighter, see :meth:`log_prob`. Samples come from p(x) itself.

    The trace is exact or an estimate (Grathwohl et al., 2019, "FFJORD"). The defaults are those of that paper for
    points in the plane.

    :func:`anode.fit` trains it on points without targets, ``fit(model, x)``. The loss is the mean of -log p(x). e and
    the noise of the estimate come from torch's global random number generator. Call ``torch.manual_seed`` to repeat
    them.

    Args:
        dim: Size of a point.
        hidden, layers, time, activation: Settings of the :class:`anode.MLPField`. Defaults to 3 layers of 64 with tanh.
            Use smooth activations, because the slope contains their derivative.
        augment: Number of normal coordinates to append; 0 is the plain flow.
        context: Size of the context c of a conditional density p(x | c); 0 for a density without one. Pass c, with a
            row per point, to every method, and to :func:`anode.fit` as the targets, ``fit(model, (x, c))``.
        field: f(t, z), any ``nn.Module``, in place of the perceptron. It takes points ``[batch, dim + augment]``
            and must not mix the points of a batch. With a context it is called as f(t, z, c).
        trace: ``"exact"`` takes ``dim + augment`` derivatives per evaluation. ``"hutchinson"`` takes one;
            log-probabilities are then unbiased estimates, up to solver errors.
        t1: The end time, at which points are normal.
        solver: An :class:`anode.Solver` without noise. Defaults to one with tolerances of 1e-5.
        **settings: Settings that override those of the solver, such as ``rtol``.

    Attributes:
        flow: The :class:`anode.Flow` of points together with the growth of volumes; ``flow.solver`` may be changed.

    Example:
        >>> import torch, anode
        >>> _ = torch.manual_seed(0)
        >>> model = anode.DensityFlow(2, hidden=16, layers=2)
        >>> history = anode.fit(model, 0.3 * torch.randn(500, 2) + 1.0, epochs=20, lr=1e-2)
        >>> bool(history.loss[-1] < history.loss[0])
        True
        >>> model.log_prob(torch.ones(3, 2)).shape, model.sample(100).shape
        (torch.Size([3]), torch.Size([100, 2]))
    """

    default_loss = staticmethod(negative_log_likelihood)

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        augment: int = 0,
        context: int = 0,
        layers: int | None = None,
        time: bool | None = None,
        activation: str | None = None,
        field: nn.Module | None = None,
        trace: str = "exact",
        t1: float = 1.0,
        solver: Solver | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        check_settings(settings, type(self))
        network = {"hidden": hidden, "layers": layers, "time": time, "activation": activation}
        self.dim = number("dim", dim, whole=True)
        if isinstance(augment, Augment):
            takes = "a whole number from 0, because added coordinates must be normal"
            raise TypeError(
                f"augment: takes {takes}, got {type(augment).__name__}; pass augment={self.dim}, for example"
            )
        self.context = number("context", context, whole=True, zero=True)
        size = self.dim + number("augment", augment, whole=True, zero=True)
        usual = {**NETWORK, "inputs": size + self.context}
        field = field_or_perceptron(field, size, network, usual)
        _check_size(field, size, self.context)
        check_trace(trace, size)
        start = DensityStart(augment, trace)
        self.flow = Flow(Divergence(field, trace), augment=start, t1=t1, solver=as_solver(solver, FFJORD, settings))
        self._refuse_noise({})

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build a model with the same parts."""
        field, flow = self.field, self.flow
        own = {"field": field}
        if type(field) is MLPField:
            own = {name: value for name, value in field.settings.items() if name not in ("dim", "inputs")}
        if self.context:
            own["context"] = self.context
        shared = {"augment": self.augment, "trace": self.trace, "t1": flow.t1, "solver": flow.solver}
        return {"dim": self.dim, **own, **shared}

    @property
    def field(self) -> Any:
        """The field f(t, z)."""
        return self.flow.field.field

    @property
    def augment(self) -> int:
        """The number of normal coordinates that are appended."""
        return self.start.extra

    @property
    def trace(self) -> str:
        """How the trace is computed. Assign another value to change it, such as ``"exact"`` after training."""
        return self.start.trace

    @trace.setter
    def trace(self, trace: str) -> None:
        check_trace(trace, self.dim + self.augment)
        self.start.trace = self.flow.field.trace = trace  # type: ignore[assignment]

    @property
    def start(self) -> DensityStart:
        """What is appended to points."""
        start = self.flow.augment
        assert isinstance(start, DensityStart)
        return start

    @property
    def members(self) -> int | None:
        return self.flow.members

    def first_flow(self) -> Flow:
        return self.flow

    @property
    def _like(self) -> Tensor:
        """Return a tensor with the dtype and device of the model."""
        return self._like_or(torch.empty(()))

    def _like_or(self, x: Any) -> Tensor:
        """Return the same. A model without parameters and buffers computes in the precision of x."""
        found = next((each for each in chain(self.parameters(), self.buffers()) if each.is_floating_point()), None)
        if found is not None:
            return found
        return x if isinstance(x, Tensor) and x.is_floating_point() else torch.empty(())

    def _refuse_noise(self, options: dict[str, Any]) -> None:
        """Raise ``ValueError`` if a solve with these options has noise."""
        noise = self.flow.noise(options)
        takes = "None for a density, which requires an ODE that can be solved backward; pass noise=None"
        require(noise is None, "noise", noise, takes)

    def _check_input(self, x: Tensor) -> None:
        """Raise ``ValueError`` or ``TypeError`` if x does not hold points of this model's size."""
        check_input(x, self._like_or(x))
        check_state(x, self.dim, self.members, "x")
        require(x.ndim > 1, "x", tuple(x.shape), f"points of shape [batch, {self.dim}]")

    def options_for(self, targets: Tensor) -> dict[str, Any]:
        return {"context": targets} if self.context else {}

    def _check_context(self, x: Tensor, context: Tensor | None) -> None:
        """Raise ``ValueError`` or ``TypeError`` unless the context fits points x, and this model."""
        if self.context == 0:
            given = None if context is None else describe(context)
            require(given is None, "context", given, "None for a density built without context=")
            return
        if context is None:
            raise ValueError(f"context: takes [batch, {self.context}] for this density of p(x | c), got None")
        check_context(self, context, x)
        takes = f"shape {(len(x), self.context)}, which anode.fit takes as targets, fit(model, (x, context))"
        require(context.numel() == len(x) * self.context, "context", describe(context), takes)

    def run(self, x: Tensor, *, context: Tensor | None = None, along: Along | None = None, **options: Any) -> Outcome:
        """Return the log-probabilities of points, which may be bounds or estimates, and the points that they flow to.

        Args:
            x: Points, [batch, dim].
            context: The context of each point, [batch, context], for a conditional density.
            along: What to integrate along the trajectories, see :meth:`anode.Flow.run`. It is given the points, with
                added coordinates but without the growth of volumes.
            **options: Options of :func:`anode.solve` for this call only, or another ``t1``.

        Returns:
            ``prediction`` has the log-probabilities, [batch], and ``features`` the points, [batch, dim + augment].
        """
        self._check_input(x)
        self._check_context(x, context)
        self._refuse_noise(options)
        refuse_mixing(self.field, "a density")
        if torch.is_inference_mode_enabled():  # in which autograd, and so the divergence, cannot be computed
            with torch.inference_mode(False), torch.no_grad():
                context = None if context is None else context.clone()
                return self.run(x.clone(), context=context, along=along, **options)
        x = as_input(x, self._like_or(x))
        start, solution = self.flow.start_and_solve(x, along, context=context, **options)
        end, integrals = (solution.y1, ()) if along is None else along.read(solution.y1)
        assert isinstance(start, Tensor)
        assert isinstance(end, Tensor)
        z, growth, _ = parts(end, self.trace)
        drawn = start[..., self.dim : self.dim + self.augment]
        return Outcome(log_normal(z) + growth[..., 0] - log_normal(drawn), z, solution, integrals)

    def log_prob(self, x: Tensor, samples: int = 1, *, context: Tensor | None = None, **options: Any) -> Tensor:
        """Return the log-probability of each point; with ``augment`` above 0, a lower bound on it.

        Args:
            x: Points, [batch, dim].
            samples: Number of draws of the added coordinates and of Hutchinson's noise per point. With an exact trace,
                the result is the logarithm of the mean of p(x, e) / N(e) over the draws. Its mean is a lower bound,
                which tends to log p(x) for many draws (Burda et al., 2016, "Importance Weighted Autoencoders"). With
                an estimated trace, the result is the mean of the logarithms, the lower bound above.
            context: The context of each point, [batch, context], for a conditional density.
            **options: Options of :func:`anode.solve`, such as tighter tolerances.

        Returns:
            [batch], one number per point.

        Raises:
            SolveError: If the solve fails.
            FloatingPointError: If a log-probability is not finite.
        """
        samples = number("samples", samples, whole=True)
        self._check_input(x)
        self._check_context(x, context)
        often = x if samples == 1 else x.repeat(*[1] * (x.ndim - 2), samples, 1)
        if context is not None and samples > 1:
            context = context.repeat(samples, *[1] * (context.ndim - 1))
        found = self.run(often, context=context, **options).check().prediction.unflatten(-1, (samples, -1))
        # The mean of the exponential of an estimate is too large, so the result would not be a lower bound.
        found = found.logsumexp(-2) - math.log(samples) if self.trace == "exact" else found.mean(-2)
        if not found.isfinite().all():
            bad = int((~found.isfinite()).sum())
            raise FloatingPointError(
                f"log_prob: is not finite for {bad} of {found.numel()} points, which the flow moves too far; scale x "
                "as in training, compute in float64, or use run(x).prediction, which is not checked"
            )
        return found

    @torch.no_grad()
    def sample(self, n: int, *, context: Tensor | None = None, **options: Any) -> Tensor:
        """Draw points from the density: normal points, mapped back by the flow.

        Args:
            n: Number of points.
            context: The context of each point, [n, context], for a conditional density.
            **options: Options of :func:`anode.solve`, such as tighter tolerances.

        Returns:
            [n, dim]; for a stack [members, n, dim].
        """
        front = () if self.members is None else (self.members,)
        shape = (*front, number("n", n, whole=True), self.dim + self.augment)
        return self.inverse(self._like.new_empty(shape).normal_(), context=context, **options)

    def inverse(self, z: Tensor, *, context: Tensor | None = None, **options: Any) -> Tensor:
        """Return the points that flow to given points, by solving backwards in time. Added coordinates are removed.

        Args:
            z: Points at the end of the flow, [batch, dim + augment], such as the ``features`` of :meth:`run`.
            context: The context of each point, [batch, context], for a conditional density.
            **options: Options of :func:`anode.solve`, such as tighter tolerances.
        """
        check_input(z, self._like_or(z), "z")
        check_state(z, self.dim + self.augment, self.members, "z")
        self._check_context(z, context)
        self._refuse_noise(options)
        field = self.field if context is None else conditioned(self.field, context)
        back = solve(field, z, (self.flow.t1, 0.0), **{"solver": self.flow.solver, **options})
        x: Any = back.check().y1
        return x[..., : self.dim]

    def joint(self) -> DensityFlow:
        """Return the joint density of points and added coordinates: a plain flow of both, which shares the field.

        Its log-probabilities are not bounds.
        """
        flow, size = self.flow, self.dim + self.augment
        shared = {"context": self.context, "trace": self.trace, "t1": flow.t1, "solver": flow.solver}
        return DensityFlow(size, field=self.field, **shared)


def check_trace(trace: Any, size: int) -> None:
    """Raise ``ValueError`` unless the trace of a state with this many features can be computed this way."""
    lookup("trace", trace, TRACES)
    takes = f'"hutchinson" for a state of {size} numbers, as "exact" takes a derivative for each of up to {MOST_EXACT}'
    require(trace != "exact" or size <= MOST_EXACT, "trace", trace, takes)


def _check_size(field: Any, size: int, context: int) -> None:
    """Raise ``ValueError`` if a field has a known size that does not fit."""
    require(isinstance(field, nn.Module), "field", field, "a torch.nn.Module f(t, z)")
    if isinstance(field, Network) and context:
        got = Words(f"one with inputs={field.inputs}")
        takes = f"a field with inputs={size + context}, for points, added coordinates and context together"
        require(field.inputs == size + context, "field", got, takes)
    if isinstance(field, Field) and not context:
        try:
            field.check(torch.empty(*(() if field.members is None else (field.members,)), 1, size))
        except ValueError as error:
            raise ValueError(
                f"field: takes states of {size} numbers, which are dim and augment together: {error}"
            ) from None


def log_normal(z: Tensor) -> Tensor:
    """Return the logarithm of the standard normal density over the last dimension."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
