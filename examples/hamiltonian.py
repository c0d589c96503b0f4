"""A Hamiltonian system: learn the energy of a pendulum from noisy slopes, and check that its flow conserves it.

The example shows how to derive a field from a scalar network, so that a physical law holds by construction, and which
tolerance a long solve needs. It compares the result with SciPy. Run ``python examples/hamiltonian.py``; it takes about
10 seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

import anode


class Hamiltonian(nn.Module):
    """The energy H(q, p) = v · tanh(W (q, p) + b) and its field (dH/dp, -dH/dq)."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.inner = nn.Linear(2, hidden)
        self.v = nn.Parameter(torch.randn(hidden) / hidden)

    def energy(self, state: Tensor) -> Tensor:
        return torch.tanh(self.inner(state)) @ self.v

    def forward(self, t: Tensor, state: Tensor) -> Tensor:
        a = torch.tanh(self.inner(state))
        slope = ((1 - a * a) * self.v) @ self.inner.weight
        return torch.stack([slope[..., 1], -slope[..., 0]], -1)


def pendulum(t: Tensor, state: Tensor) -> Tensor:
    q, p = state.unbind(-1)
    return torch.stack([p, -torch.sin(q)], -1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    states = (2 * torch.rand(1000, 2) - 1) * torch.tensor([2.5, 2.0])
    slopes = pendulum(torch.zeros(()), states) + 0.05 * torch.randn_like(states)
    model = Hamiltonian()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(1000):
        loss = (model(torch.zeros(()), states) - slopes).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.5f}; the noise has a variance of 0.0025")

    start = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.5]])
    with torch.no_grad():
        for tolerance in (1e-3, 1e-6, 1e-9):
            solution = anode.solve(model, start, (0.0, 50.0), method="dopri8", rtol=tolerance, atol=tolerance).check()
            drift = (model.energy(solution.y1) - model.energy(start)).abs().max()
            print(f"rtol {tolerance:.0e}: the energy drifts by {drift:.1e} in {solution.stats.nfe} evaluations")

        def slope(t: float, y: np.ndarray) -> np.ndarray:
            return model(torch.zeros(()), torch.as_tensor(y)).numpy()

        witness = solve_ivp(slope, (0, 50), start[0].numpy(), method="DOP853", rtol=1e-10, atol=1e-10).y[:, -1]
        print(f"largest difference from SciPy: {np.abs(witness - solution.y1[0].numpy()).max():.1e}")
        truth = anode.solve(pendulum, start, (0.0, 50.0), method="dopri8", rtol=1e-9, atol=1e-9).y1
        print(f"largest difference from the true pendulum at t = 50: {(solution.y1 - truth).abs().max():.2f}")


if __name__ == "__main__":
    main()
