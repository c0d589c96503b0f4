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
    convection-diffusion equation. The result no longer solves an ODE: trajectories can cross, and there is no inverse.
    Noise requires fixed steps, because an adaptive method would take it for an error.

    In training, each iteration draws one path of the noise. In evaluation mode, a :class:`anode.NeuralODE` predicts the
    mean over ``paths`` paths, and ``Solution.stats`` counts the evaluations of one of them.

    Noise is added to the flow only, not to the input that :class:`anode.DataControl` holds, nor to the integrals of
    regularisers. A subclass of :class:`anode.Field` can override ``noisy`` to exclude parts of its state.

    Args:
        scale: Standard deviation of the noise that is added over one unit of time.
        paths: Number of paths that a model averages over in evaluation mode.

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
    """Noise that is the same for all samples, so that no sample depends on the others. The state is [batch, ...]."""

    def draw(self, y: Tensor, generator: torch.Generator) -> Tensor:
        return super().draw(y[:1], generator)


class Path:
    """One path of the noise. A path with the same seed is the same, so that a solve can be repeated.

    Args:
        noise: The distribution of the noise.
        seed: Random seed.
        device: Device of the state.
        where: 1 for the elements of the state that get noise, 0 for others; ``None`` if all get noise.
    """

    def __init__(self, noise: Noise, seed: int, device: torch.device, where: Tensor | None = None) -> None:
        self.noise, self.where = noise, where
        self.generator = torch.Generator(device).manual_seed(seed)

    def after(self, step: Interval, y: Tensor) -> Tensor:
        """Return the state at the end of a step with noise; groups that do not move stay as they are."""
        xi = self.noise.draw(y, self.generator)
        xi = xi if self.where is None else xi * self.where
        size = torch.as_tensor(step.h, device=y.device).detach().abs().sqrt()
        return y + xi * (self.noise.scale * size).to(y.dtype)
