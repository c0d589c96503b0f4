"""Why augment? A neural ODE and an augmented one learn to tell a disc from the ring around it.

The flow of an ODE in the plane cannot carry the disc out through the ring, because trajectories do not cross. With one
more dimension, which starts at zero, it can lift the one off the other. This trains both and draws what they learned.

Run ``python examples/demonstration.py --out results``; it takes about a minute.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import anode

BLUE, RED = "#2b6cb0", "#c53030"


def disc_and_ring(inner: int, outer: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points with |x| <= 0.5, labelled -1, and with 1 <= |x| <= 1.5, labelled 1; uniform by area."""
    low = torch.cat([torch.zeros(inner), torch.full((outer,), 1.0)])
    high = torch.cat([torch.full((inner,), 0.5), torch.full((outer,), 1.5)])
    radius = (low**2 + (high**2 - low**2) * torch.rand(inner + outer, generator=generator)).sqrt()
    angle = 2 * torch.pi * torch.rand(inner + outer, generator=generator)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    labels = torch.cat([-torch.ones(inner, 1), torch.ones(outer, 1)])
    return points, labels


class NeuralODE(nn.Module):
    """A flow on the plane and ``augment`` further dimensions, then a linear map."""

    def __init__(self, augment: int) -> None:
        super().__init__()
        self.augment = augment
        self.field = anode.MLPField(2 + augment, hidden=32)
        self.head = nn.Linear(2 + augment, 1)

    def lift(self, x: Tensor) -> Tensor:
        """The plane, in the larger space."""
        return nn.functional.pad(x, (0, self.augment))

    def forward(self, x: Tensor) -> tuple[Tensor, anode.Solution]:
        """The prediction, and the solve it came from."""
        solution = anode.solve(self.field, self.lift(x), (0.0, 1.0), rtol=1e-3, atol=1e-3)
        return self.head(solution.y1), solution


@dataclass
class Run:
    """One training run."""

    name: str
    model: NeuralODE
    losses: list[float] = field(default_factory=list)
    nfe: list[int] = field(default_factory=list)


def train(run: Run, x: Tensor, y: Tensor, epochs: int, generator: torch.Generator, progress: Progress) -> None:
    optimizer = torch.optim.Adam(run.model.parameters(), lr=1e-3)
    task = progress.add_task(run.name, total=epochs, loss=float("nan"), nfe=0)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            prediction, solution = run.model(x[batch])
            loss = nn.functional.smooth_l1_loss(prediction, y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.losses.append(loss.item())
            run.nfe.append(solution.check().stats.nfe)
        progress.update(task, advance=1, loss=np.mean(run.losses[-40:]), nfe=run.nfe[-1])


def draw_flow(ax: plt.Axes, model: NeuralODE, x: Tensor, y: Tensor) -> None:
    """Trajectories from the inputs to the features."""
    with torch.no_grad():
        paths = anode.solve(model.field, model.lift(x), (0.0, 1.0), save_at=torch.linspace(0, 1, 40)).ys
    for i, label in enumerate(y[:, 0]):
        color = BLUE if label < 0 else RED
        ax.plot(*paths[:, i, :3].T, color=color, alpha=0.35, linewidth=0.8)
        ax.plot(*paths[-1:, i, :3].T, "o", color=color, markersize=3)
    ax.set_xticks([])
    ax.set_yticks([])
    if model.augment:
        ax.set_zticks([])
        ax.set_zlabel("the added dimension", labelpad=-12)
        ax.view_init(elev=14, azim=-60)
        ax.set_box_aspect(None, zoom=1.2)
    else:
        ax.set_aspect("equal")


def draw(runs: list[Run], x: Tensor, y: Tensor) -> plt.Figure:
    figure = plt.figure(figsize=(11, 7), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[1.5, 1])
    for column, run in enumerate(runs):
        ax = figure.add_subplot(grid[0, column], projection="3d" if run.model.augment else None)
        draw_flow(ax, run.model, x, y)
        ax.set_title(f"{run.name}: from inputs to features (dots)")
    for column, (title, series) in enumerate((("training loss", "losses"), ("function evaluations per solve", "nfe"))):
        ax = figure.add_subplot(grid[1, column])
        for run, color in zip(runs, ("0.55", "black"), strict=True):
            values = np.convolve(getattr(run, series), np.ones(40) / 40, mode="valid")
            ax.plot(values, color=color, label=run.name)
        ax.set_xlabel("iteration (means over 40)")
        ax.set_title(title)
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[2].legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of the picture (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=25, help="passes over the data (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the data, weights and batches (default: %(default)s)")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs takes a whole number above 0, got {options.epochs}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out takes a folder, got {options.out}: {error.strerror}")

    torch.set_num_threads(1)  # the networks are too small to gain from more
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    x, y = disc_and_ring(1000, 2000, generator)
    runs = [Run("neural ODE", NeuralODE(augment=0)), Run("augmented neural ODE", NeuralODE(augment=1))]
    columns = (
        TextColumn("{task.description:21}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  NFE {task.fields[nfe]}"),
        TimeRemainingColumn(),
    )
    console = Console()
    with Progress(*columns, console=console) as progress:
        for run in runs:
            train(run, x, y, options.epochs, generator, progress)

    table = Table("model", "final loss", "NFE at first", "NFE at last")
    for run in runs:
        table.add_row(run.name, f"{np.mean(run.losses[-40:]):.4f}", str(run.nfe[0]), str(run.nfe[-1]))
    console.print(table)
    path = options.out / "demonstration.png"
    unfinished = path.with_suffix(".part.png")  # so that a picture is whole or not there
    draw(runs, *disc_and_ring(60, 120, generator)).savefig(unfinished, dpi=130)
    unfinished.replace(path)
    console.print(f"picture: {path}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped before the end; nothing was written") from None
