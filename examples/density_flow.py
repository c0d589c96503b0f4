"""A density flow (continuous normalizing flow): learn the density of points, and check that it integrates to one.

You learn how to train a ``DensityFlow`` on points without targets, how to evaluate its density, and how to draw
samples. Run ``python examples/density_flow.py``; it takes about 10 seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

import anode


def main() -> None:
    torch.manual_seed(0)
    data = anode.datasets.load("moons", points=2000, noise=0.1).x
    model = anode.DensityFlow(2, hidden=64, layers=1, rtol=1e-3, atol=1e-3)
    history = anode.fit(model, data, epochs=50, batch_size=256, lr=1e-2)
    for epoch, loss in enumerate(history.per_epoch("loss")[::10]):
        print(f"epoch {10 * epoch}: negative log-likelihood {loss:.3f}")

    with torch.no_grad():
        learned = -model.log_prob(data).mean().item()
        print(f"all data: {learned:.3f}; a normal distribution has {normal(data):.3f}")
        side = torch.linspace(-8, 8, 321)
        density = model.log_prob(torch.cartesian_prod(side, side), rtol=1e-5, atol=1e-5).exp()
        print(f"the density integrates to {density.sum().item() * (side[1] - side[0]).item() ** 2:.4f}")
    for name, points in (("samples", model.sample(2000)), ("data", data)):
        print(f"{name}: standard deviations {points[:, 0].std().item():.2f} and {points[:, 1].std().item():.2f}")


def normal(x: Tensor) -> float:
    """The negative log-likelihood of x under the normal distribution that fits best."""
    return -torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).log_prob(x).mean().item()


if __name__ == "__main__":
    main()
