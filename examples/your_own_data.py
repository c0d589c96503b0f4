"""An augmented neural ODE on your own data: train several models at once, compare them, save the best and use it.

Run ``python examples/your_own_data.py``; it takes about ten seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import anode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("my-model"), help="folder (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (default: %(default)s)")
    options = parser.parse_args()

    # Replace x and y with your own tensors: points [n, d] and targets [n, outputs].
    angle = 2 * torch.pi * torch.rand(1200, generator=torch.Generator().manual_seed(0))
    radius = torch.where(torch.arange(1200) % 2 == 0, 0.4, 1.2)
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    y = torch.where(radius < 1, -1.0, 1.0).unsqueeze(1)
    train, test = anode.datasets.Dataset("mine", x, y).split(0.8)

    # Train five models with five seeds as one program. Each ends up as if trained alone.
    models = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=range(5))
    history = anode.fit(models, train, epochs=options.epochs, validation=test)
    for seed, (loss, nfe) in enumerate(zip(history.validation[-1], history.nfe[-1], strict=True)):
        print(f"seed {seed}: validation loss {loss:.4f}, {nfe} function evaluations")

    best = anode.unstack(models)[int(np.argmin(history.validation[-1]))]
    anode.save(best, options.out / "model")
    model = anode.load(options.out / "model")
    with torch.no_grad():
        right = (model(test.x).sign() == test.y).float().mean()
        paths = model.flow.trajectory(test.x[:100], 40).numpy()
    print(f"accuracy on held-out points: {right:.1%}")
    drawing = anode.plots.figure(5, 5, three_d=[0])
    anode.plots.flow_3d(drawing.axes[0], anode.plots.project_3d(paths), test.labels[:100])
    print(f"flow: {anode.plots.save(drawing, options.out / 'flow', formats=['png'])[0]}")


if __name__ == "__main__":
    main()
