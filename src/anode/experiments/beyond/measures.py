"""Measure trained flows, to see what augmentation changes: one number per model of a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anode.models.flow import Flow
from anode.models.nets import NeuralODE
from anode.ode.solution import Status
from anode.train.record import Array

MEASURES = {
    "length": "path length",
    "straightness": "straightness",
    "energy": "kinetic energy",
    "lipschitz": "Lipschitz constant",
    "condition": "condition of the inverse",
    "curvature": "curvature of the surface",
}
"""What is measured, in words."""

TIMES = 51
"""Number of evenly spaced states of a trajectory."""
POINTS, FEW = 50, 8
"""Number of trajectories, and of points with a Jacobian, which takes two more trajectories per dimension."""
PAIRS, HALVINGS = 32, 12
"""Number of points on the decision boundary, and how often the way between two classes is halved to find each."""
SOLVER: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
"""A tolerance at which differences of neighbours can be trusted."""
STEP, APART = 1e-3, 2e-2
"""Steps of the finite differences: of a flow, and on the decision boundary, which has kinks."""


@torch.no_grad()
def of_flows(flow: Flow, x: Tensor) -> dict[str, Tensor]:
    """Return measures of the flows of a stack, along the trajectories of some inputs [members, points, dim].

    - ``length``: the length of the trajectories h(t);
    - ``straightness``: the distance of their ends, divided by the length;
    - ``energy``: the integral of |dh/dt|² over time;
    - ``lipschitz``: the largest spectral norm of ∂f/∂h along the trajectories;
    - ``condition``: the condition number of ∂h(1)/∂h(0), which is how much errors grow when solving back.

    All are means over the points; for condition numbers, the geometric mean.
    """
    times = torch.linspace(0, flow.t1, TIMES, dtype=torch.float64)
    paths = flow.solve(x[:, :POINTS], save_at=times, **SOLVER).ys  # NaN where that fails, and so is what comes of it
    assert isinstance(paths, Tensor)
    moves = paths.diff(dim=0)
    length = moves.norm(dim=-1).sum(0)
    moved = (paths[-1] - paths[0]).norm(dim=-1)
    some = range(0, TIMES, 5)
    slopes = [jacobian(lambda h, t=times[i]: flow.field(t, h), paths[i]) for i in some]  # type: ignore[misc]
    steep = torch.stack([_spectral(each) for each in slopes])
    start = paths[0][:, :FEW]
    mapped = jacobian(lambda h: _features(flow, h), start)
    return {
        "length": length.mean(-1),
        "straightness": (moved / length.clamp(min=1e-12)).mean(-1),
        "energy": (moves.square().sum(-1).sum(0) * (TIMES - 1) / flow.t1).mean(-1),
        "lipschitz": steep.amax((0, 2)),
        "condition": _condition(mapped).log().mean(-1).exp(),
    }


def jacobian(f: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    """Return the Jacobian of f at each point, [..., points, outputs, inputs], by finite differences."""
    size = h.shape[-1]
    offsets = STEP * torch.eye(size, dtype=h.dtype)
    near = torch.cat([h.unsqueeze(-2) + offsets, h.unsqueeze(-2) - offsets], -2)
    found = f(near.flatten(-3, -2)).reshape(*near.shape[:-1], -1)
    return ((found[..., :size, :] - found[..., size:, :]) / (2 * STEP)).transpose(-1, -2)


def _features(flow: Flow, h: Tensor) -> Tensor:
    """Return the final states; NaN for members whose solve fails."""
    solution = flow.solve_from(h, (0.0, flow.t1), **SOLVER)
    assert isinstance(solution.y1, Tensor)
    return solution.y1.masked_fill((solution.status != Status.SUCCESS)[:, None, None], torch.nan)


def _spectral(matrices: Tensor) -> Tensor:
    """Return the largest singular values; NaN where an entry is NaN."""
    known = matrices.isfinite().all(-1).all(-1)
    return torch.linalg.matrix_norm(matrices.nan_to_num(), 2).where(known, torch.nan)


def _condition(matrices: Tensor) -> Tensor:
    """Return the largest singular values divided by the smallest; NaN where an entry is NaN."""
    known = matrices.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(matrices.nan_to_num())
    return (values[..., 0] / values[..., -1].clamp(min=1e-12)).where(known, torch.nan)


def of_surfaces(model: NeuralODE, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean curvature of the decision boundary in the space of inputs, as the median over some points.

    A sphere of radius r has 1/r. The result is NaN in one dimension, where the boundary consists of points, and if no
    pair of points is on different sides of the boundary.

    Args:
        model: The models of a stack.
        x: Inputs [members, points, dim].
        y: Their targets, -1 or 1.
    """
    members, dim = x.shape[0], x.shape[-1]
    if dim == 1:
        return torch.full((members,), torch.nan, dtype=x.dtype)
    ends = (torch.stack([_first(a, b, sign) for a, b in zip(x, y, strict=True)]) for sign in (-1, 1))
    at, known = _between(model, *ends)
    offsets = APART * torch.eye(dim, dtype=x.dtype)
    near = torch.cat([at.unsqueeze(-2) + offsets, at.unsqueeze(-2) - offsets], -2)
    normals = _normals(model, near.flatten(-3, -2)).reshape(near.shape)
    turned = (normals[..., :dim, :] - normals[..., dim:, :]).diagonal(dim1=-2, dim2=-1).sum(-1) / (2 * APART)
    return (turned.abs() / (dim - 1)).where(known, torch.nan).nanmedian(-1).values


def _first(x: Tensor, y: Tensor, sign: int) -> Tensor:
    """Return the first points of one class. The points of a class are in random order."""
    return x[y[:, 0] == sign][:PAIRS]


@torch.no_grad()
def _between(model: NeuralODE, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return points between two others where the prediction changes its sign, and whether it does."""
    known = (model.run(low, **SOLVER).prediction < 0) & (model.run(high, **SOLVER).prediction > 0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = model.run(middle, **SOLVER).prediction > 0
        low, high = middle.where(~above, low), middle.where(above, high)
    return (low + high) / 2, known.squeeze(-1)


def _normals(model: NeuralODE, x: Tensor) -> Tensor:
    """Return the directions in which predictions grow fastest."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.run(x, **SOLVER).prediction.sum(), x)
    found: Tensor = slope / slope.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return found


def measures(model: NeuralODE, x: Tensor, y: Tensor) -> dict[str, Array]:
    """Return all :data:`MEASURES` of the models of a stack, in double precision.

    Args:
        model: The models.
        x, y: Inputs [members, points, dim] and targets -1 or 1.
    """
    found = {**of_flows(model.flow, x), "curvature": of_surfaces(model, x, y)}
    return {name: found[name].numpy(force=True) for name in MEASURES}
