"""A regulariser: penalise the kinetic energy of a neural ODE, so that the solver needs fewer evaluations.

The example shows how to add a quantity to the state and use it in the loss. Here it is the kinetic energy, the integral
of |f|² along the flow. Run ``python examples/regulariser.py``; it takes about 10 seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import anode


class WithEnergy(nn.Module):
    """A field for the pair (point, energy): it moves the point and integrates the energy."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        speed = self.field(t, state[0])
        return speed, speed.square().mean(-1)


class FromRest(anode.Augment):
    """Append a zero to the point, and set the initial energy to zero."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, torch.zeros_like(x[..., :1])], -1), x.new_zeros(x.shape[:-1])


class OfPoint(nn.Linear):
    """A linear map of the point, which ignores the energy."""

    def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(state[0])


def charged(outcome: anode.Outcome, target: Tensor, price: float) -> Tensor:
    """Return the squared error plus the penalty. A first parameter named ``outcome`` receives the whole outcome."""
    _, energy = outcome.features
    return (outcome.prediction - target).square() + price * energy.unsqueeze(-1)


def main() -> None:
    train, test = anode.datasets.load("g", inner=200, outer=400).split(0.8)
    for price in (0.0, 0.01, 0.1):
        torch.manual_seed(0)
        model = anode.NeuralODE(field=WithEnergy(anode.MLPField(3)), head=OfPoint(3, 1), augment=FromRest())
        loss: Callable[[anode.Outcome, Tensor], Tensor] = partial(charged, price=price)
        anode.fit(model, train, epochs=20, lr=5e-3, loss=loss, progress=False)
        with torch.no_grad():
            outcome = model.run(test.x)
            error = (outcome.prediction - test.y).square().mean().item()
            energy = outcome.features[1].mean().item()
        print(f"price {price}: error {error:.4f}, energy {energy:.2f}, {outcome.solution.stats.nfe} evaluations")


if __name__ == "__main__":
    main()
