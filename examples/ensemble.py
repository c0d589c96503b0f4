"""An ensemble with uncertainty: train 30 models as one program, and use their spread where there are no data.

The example shows how to train members on different data (here bootstrap samples), how to predict with all of them, and
how to check their spread. The spread grows in the gap between the data, but it does not bound the error. Run ``python
examples/ensemble.py``; it takes about 10 seconds.
"""

from __future__ import annotations

import torch

import anode

MEMBERS = 30
NOISE = 0.1


def curve(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * x)


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, generator=random) * 4 - 2
    x = x[(x[:, 0] < 0.0) | (x[:, 0] > 1.0)]  # no data between 0 and 1
    y = curve(x) + NOISE * torch.randn(x.shape, generator=random)

    # Each member has its own weights, and its own points, drawn with replacement.
    draws = [torch.randint(len(x), (len(x),), generator=random) for _ in range(MEMBERS)]
    models = anode.seeded(lambda: anode.NeuralODE(1, 1, hidden=32, augment=3), seeds=range(MEMBERS))
    history = anode.fit(models, [(x[i], y[i]) for i in draws], epochs=150, lr=1e-2, loss="mse", progress=False)
    print(f"{MEMBERS} members, loss {history.loss[-1].min():.4f} to {history.loss[-1].max():.4f}")

    at = torch.linspace(-2, 2, 81).unsqueeze(1)
    with torch.no_grad():
        predictions = models(at.expand(MEMBERS, -1, -1))[..., 0]  # [members, points]
    mean, spread = predictions.mean(0), predictions.std(0)
    gap = (at[:, 0] > 0.1) & (at[:, 0] < 0.9)
    inside = ((at[:, 0] > -1.8) & (at[:, 0] < -0.1)) | ((at[:, 0] > 1.1) & (at[:, 0] < 1.8))
    for name, where in (("with data", inside), ("in the gap", gap)):
        error = (mean - curve(at[:, 0]))[where]
        within = (error.abs() < 2 * spread[where]).float().mean()
        size = error.square().mean().sqrt()
        print(f"{name}: error {size:.3f}, spread {spread[where].mean():.3f}, within two spreads {within:.0%}")


if __name__ == "__main__":
    main()
