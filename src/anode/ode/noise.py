"""Gaussian noise in the state, after every step of given size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anode.checks import names_settings, number
from anode.ode.plan import Interval


@names_settings
@dataclass(frozen=True)
class Noise:
    """Add Gaussian noise to the state after every step: y <- y + scale * sqrt(h) * xi, where xi is standard normal.

    Wang et al. (2018), "ResNets Ensemble via the Feynman-Kac Formalism" (EnResNet): a residual network with noise takes
    steps of the stochastic differential equation dy = f(t, y) dt + scale dW, and the mean of its predictions solves a
    convection-diffusion equation. Such a solve is no solve of an ODE any more: trajectories can cross, and there is no
    inverse. Steps have to be of given size, as an adaptive method would take the noise for an error.

    In training, a model sees one path of the noise in every iteration. In use, after ``model.eval()``, a
    :class:`anode.NeuralODE` predicts the mean over several paths. ``Solution.stats`` counts the evaluations of one.

    What is no part of the flow itself gets no noise: the input of :class:`anode.DataControl`, and what regularisers
    integrate. A field of your own that derives from ``Field`` can say so with ``noisy``.

    Args:
        scale: The standard deviation of the noise that a unit of time adds.
        paths: How many noisy solves a model's prediction is the mean of.

    Example:
        >>> import torch, anode
        >>> solver = anode.Solver(method="euler", step_size=0.1, noise=anode.Noise(0.1, paths=20))
        >>> model = anode.NeuralODE(2, 1, solver=solver).eval()
        >>> model(torch.rand(8, 2)).shape
        torch.Size([8, 1])
    """

    scale: float = 0.1
    paths: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", float(number("scale", self.scale, finite=True)))
        object.__setattr__(self, "paths", number("paths", self.paths, whole=True))

    def draw(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return standard normal numbers for a state, in a shape that broadcasts against it."""
        return torch.randn(y.shape, generator=generator, dtype=y.dtype, device=y.device)


class SharedNoise(Noise):
    """Noise that is the same for all samples, so that none depends on the others. The state is [batch, ...]."""

    def draw(self, y: Tensor, generator: torch.Generator) -> Tensor:
        return super().draw(y[:1], generator)


class Path:
    """One path of the noise, which is the same whenever it is walked again.

    Args:
        noise: Its distribution.
        seed: Says which path.
        device: Where the state is.
        where: 1 for the numbers of the state that get noise, 0 for others; ``None`` for noise in all of them.
    """

    def __init__(self, noise: Noise, seed: int, device: torch.device, where: Tensor | None = None) -> None:
        self.noise, self.where = noise, where
        self.generator = torch.Generator(device).manual_seed(seed)

    def after(self, step: Interval, y: Tensor) -> Tensor:
        """The state at the end of a step with the noise that belongs to it; of a group that stands still, as it was."""
        xi = self.noise.draw(y, self.generator)
        xi = xi if self.where is None else xi * self.where
        size = torch.as_tensor(step.h, device=y.device).detach().abs().sqrt()
        return y + xi * (self.noise.scale * size).to(y.dtype)
