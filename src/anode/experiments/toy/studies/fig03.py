"""Figure 3: one dimension, where trajectories would have to cross."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study, mean_std
from anode.experiments.toy.flows import ends, euler
from anode.models.flow import Flow
from anode.plots.flows import flow_1d, vector_field_1d
from anode.plots.style import CLASS_COLORS, INK, figure, legend
from anode.train.record import Array

TIMES = np.linspace(0, 1, 61)
STARTS = torch.tensor([[-1.0], [1.0]])
EULER_STEPS = 3


def paths_of(flow: Flow, x: Tensor) -> Array:
    """Return trajectories [times, points, 1]."""
    return flow.trajectory(x, TIMES.tolist()).numpy(force=True)


def cross(ax: Any) -> None:
    """Draw what a continuous swap would look like."""
    ease = (1 - np.cos(np.pi * TIMES)) / 2
    swap = np.stack([-1 + 2 * ease, 1 - 2 * ease], axis=1)[..., None]
    flow_1d(ax, TIMES, swap, [0, 1], arrows=2)
    ax.plot(0.5, 0, "o", markersize=13, markerfacecolor="none", markeredgecolor=INK)
    ax.set_title("a swap: trajectories would cross")


def against_euler(ax: Any, flow: Flow) -> None:
    """Draw solutions of the ODE, and Euler's method on the same field."""
    solid = paths_of(flow, STARTS)
    dashed = euler(flow, STARTS, EULER_STEPS).numpy(force=True)
    for i, color in enumerate(CLASS_COLORS[:2]):
        ax.plot(TIMES, solid[:, i, 0], color=color, label="solution of the ODE" if i else None)
        steps = np.linspace(0, 1, EULER_STEPS + 1)
        label = f"Euler, {EULER_STEPS} steps" if i else None
        ax.plot(steps, dashed[:, i, 0], "--o", color=color, markersize=4, label=label)
    ax.set_xlabel("$t$")
    ax.set_ylabel("$h(t)$")
    ax.set_title("ODE solutions and Euler steps")
    legend(ax, loc="upper center")


@torch.no_grad()
def field_and_paths(ax: Any, result: Result, title: str) -> None:
    """Draw the vector field after training, and trajectories in it."""
    flow: Flow = result.member(result.typical)
    paths = paths_of(flow, torch.cat([STARTS, torch.linspace(-1.3, 1.3, 14).unsqueeze(1)]))
    reach = 1.15 * np.abs(paths).max()
    states = torch.linspace(-reach, reach, 15)
    slopes = np.stack([flow.field(torch.tensor(t), states.unsqueeze(1))[:, 0].numpy() for t in np.linspace(0, 1, 17)])
    vector_field_1d(ax, np.linspace(0, 1, 17), states.numpy(), slopes)
    ax.plot(TIMES, paths[:, 2:, 0], color=INK, alpha=0.25, linewidth=0.8)
    flow_1d(ax, TIMES, paths[:, :2], [0, 1], arrows=2)
    ax.set_ylim(-reach, reach)
    ax.set_title(title)


@torch.no_grad()
def draw(results: Results) -> Drawing:
    """Draw the four panels of the paper."""
    swap, same = results["map-g"], results["map-identity"]
    made = figure(8.0, 6.4, rows=2, columns=2)
    cross(made.axes[0])
    against_euler(made.axes[1], swap.member(swap.typical))
    field_and_paths(made.axes[2], same, "trained on the identity")
    field_and_paths(made.axes[3], swap, "trained on g, the swap")
    rows = [
        [name, mean_std(ends(result)[:, 0]), mean_std(ends(result)[:, 1]), mean_std(result.final_loss)]
        for name, result in (("identity", same), ("g", swap))
    ]
    return Drawing(made, ["trained on", "φ(-1)", "φ(1)", "final loss"], rows)


STUDY = Study(
    "fig03",
    "Trajectories in one dimension",
    "Top: to swap -1 and 1, two continuous trajectories would have to meet. Trajectories of an ODE never meet. Those "
    "of Euler's method, which is what a ResNet computes, can jump over each other. Bottom: vector field and "
    "trajectories after training on the identity and on the swap. On the swap, the best that a flow can do is to "
    "bring both points close to 0.",
    ("map-identity", "map-g"),
    draw,
)
