"""A density flow (continuous normalizing flow): learn the density of points, and check that it integrates to one.

The example shows how to solve for a state of two tensors, and how to compute the divergence of a field exactly. Along
the flow, the log-density changes by minus the divergence. Run ``python examples/density_flow.py``; it takes about 10
seconds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import anode


class Field(nn.Module):
    """f(t, z) = W2 tanh(W1 z + w t + b) and its divergence, the trace of W2 diag(1 - tanh²) W1."""

    def __init__(self, dim: int = 2, hidden: int = 64) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, hidden)
        self.outer = nn.Linear(hidden, dim)
        self.time = nn.Parameter(torch.zeros(hidden))

    def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a = torch.tanh(self.inner(state[0]) + self.time * t)
        weights = (self.outer.weight * self.inner.weight.T).sum(0)
        return self.outer(a), (1 - a * a) @ weights


def log_density(field: Field, x: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Return log p(x): map x to a point z of a normal distribution, and integrate the divergence along the path."""
    start = (x, x.new_zeros(len(x)))
    z, divergence = anode.solve(field, start, (0.0, 1.0), rtol=tolerance, atol=tolerance).check().y1
    return -0.5 * z.square().sum(1) - math.log(2 * math.pi) + divergence


def samples(field: Field, count: int) -> Tensor:
    """Return samples of the learned density: normal samples, mapped back by the flow."""
    z = torch.randn(count, 2)
    return anode.solve(field, (z, torch.zeros(count)), (1.0, 0.0), rtol=1e-4, atol=1e-4).check().y1[0]


def main() -> None:
    torch.manual_seed(0)
    data = anode.datasets.load("moons", points=2000, noise=0.1).x
    field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    for iteration in range(400):
        loss = -log_density(field, data[torch.randint(len(data), (256,))]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 100 == 0:
            print(f"iteration {iteration}: negative log-likelihood {loss.item():.3f}")

    with torch.no_grad():
        print(f"all data: {-log_density(field, data).mean().item():.3f}; a normal distribution has {normal(data):.3f}")
        side = torch.linspace(-8, 8, 321)
        density = log_density(field, torch.cartesian_prod(side, side), tolerance=1e-5).exp()
        print(f"the density integrates to {density.sum().item() * (side[1] - side[0]).item() ** 2:.4f}")
        drawn = samples(field, 2000)
    for name, points in (("samples", drawn), ("data", data)):
        print(f"{name}: standard deviations {points[:, 0].std().item():.2f} and {points[:, 1].std().item():.2f}")


def normal(x: Tensor) -> float:
    """Return the negative log-likelihood of x under the normal distribution that fits best."""
    return -torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).log_prob(x).mean().item()


if __name__ == "__main__":
    main()
