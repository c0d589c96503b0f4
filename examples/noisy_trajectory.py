"""Fit an ODE to noisy trajectories with missing times: recover the rates of a predator-prey model, and its start.

The example shows how to:

- solve many trajectories at once, with one step size per trajectory,
- mask missing observations,
- train parameters that have to be positive,
- avoid local minima, by fitting the early times first.

Run ``python examples/noisy_trajectory.py``; it takes about 10 seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import anode

TRUE = torch.tensor([1.5, 1.0, 1.0, 3.0])
"""The rates of: hares born, hares eaten by lynxes, lynxes born per hare, lynxes dying."""
SPAN = 4.0


class LotkaVolterra(nn.Module):
    """The Lotka-Volterra equations. The parameters are logarithms, so that the rates stay positive."""

    def __init__(self, rates: Tensor) -> None:
        super().__init__()
        self.log_rates = nn.Parameter(rates.log())

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        birth, hunted, growth, death = self.log_rates.exp()
        hare, lynx = y[..., 0], y[..., 1]
        return torch.stack([hare * (birth - hunted * lynx), lynx * (growth * hare - death)], -1)


def main() -> None:
    torch.manual_seed(0)
    # Twelve regions with 60 common times. In each region, a different 60 % of the observations are missing.
    times = torch.linspace(0, SPAN, 60)
    start = 0.5 + 2.5 * torch.rand(12, 2)
    settings = {"save_at": times, "control": "sample", "rtol": 1e-4, "atol": 1e-4}
    with torch.no_grad():
        truth = anode.solve(LotkaVolterra(TRUE), start, (0.0, SPAN), **settings).check().ys  # [times, regions, 2]
    seen = truth * (1 + 0.1 * torch.randn_like(truth))
    observed = torch.rand(truth.shape[:2]) < 0.4
    seen[~observed] = torch.nan  # the mask excludes missing values, so they may be NaN

    model = LotkaVolterra(torch.ones(4))
    log_start = nn.Parameter(torch.zeros(12, 2))
    optimizer = torch.optim.Adam([*model.parameters(), log_start], lr=5e-2)
    for iteration in range(301):
        solution = anode.solve(model, log_start.exp(), (0.0, SPAN), **settings).check()
        used = observed & (times < SPAN * (iteration + 20) / 200).unsqueeze(1)
        loss = (solution.ys[used].log() - seen[used].log()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 100 == 0:
            nfe = solution.stats.nfe
            print(f"iteration {iteration}: loss {loss.item():.4f}, {int(nfe.min())} to {int(nfe.max())} evaluations")

    found = model.log_rates.exp().detach()
    print("found", [round(v, 2) for v in found.tolist()], "true", TRUE.tolist())
    error = (solution.ys - truth)[~observed].square().mean().sqrt() / truth.std()
    print(f"error at the missing times: {error.item():.1%} of the spread")
    print(f"largest error of a rate: {((found - TRUE) / TRUE).abs().max().item():.1%}")


if __name__ == "__main__":
    main()
