"""Measurements of trained toy models, for figures and claims."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anode.data import toy
from anode.experiments.runs import Result
from anode.experiments.study import CERTIFIED_COLUMNS, Results, certified_cells, mean_std
from anode.experiments.toy.runs import snapshot_points
from anode.models.flow import Flow
from anode.ode.solution import Status
from anode.train.record import Array, Snapshot

CONSTANT = 5 / 12
"""The lowest Huber loss of a constant on g: 1/2, with a third of the targets at -1 and the rest at 1."""

FITTED = 0.1 * CONSTANT
"""A model that has come below this loss on g has fitted it."""

FEW = {"g": {"inner": 40, "outer": 80}, "separable": {"points": 100}}
"""Few enough points to tell single trajectories apart."""


@torch.no_grad()
def trajectories(result: Result, times: int = 25) -> tuple[Array, Array]:
    """Return paths [times, points, dims] and labels [points] of a few new points, for the typical repeat of a run."""
    run = result.run
    data = toy.load(run.data, dim=run.dim, seed=run.seed + 10_000, **FEW[run.data])
    flow: Flow = result.member(result.typical).flow
    ys = flow.solve(
        data.x, save_at=np.linspace(0, flow.t1, times)
    ).ys  # NaN where the solve failed; plots leave these out
    assert isinstance(ys, Tensor)
    return ys.numpy(force=True), data.labels.numpy(force=True)


def moments(result: Result, count: int) -> tuple[list[Snapshot], list[str], Array]:
    """Return ``count`` evenly spread snapshots of a run, their titles, and the labels of their points."""
    history = result.history
    chosen = [history.snapshots[i] for i in np.linspace(0, len(history.snapshots) - 1, count).round().astype(int)]
    titles = [f"epoch {s.iteration / history.batches:.0f}, NFE {int(s.nfe)}" for s in chosen]
    return chosen, titles, snapshot_points(result.run)[1].numpy(force=True)


def loss_rows(results: dict[str, Result]) -> list[list[str]]:
    """Return the rows of a table of losses and NFE. Results on the same data share a certified tolerance.

    Args:
        results: By the name of their row.
    """
    rows = []
    solved = {name: result for name, result in results.items() if result.run.model != "ResNet"}
    certified = certified_cells(solved, lambda result: (result.run.data, result.run.dim))
    for name, result in results.items():
        nfe = result.per_epoch("nfe")
        cost = [mean_std(nfe[0]), mean_std(nfe[-1])] if name in solved else ["", ""]
        cost += certified.get(name, ["", ""])
        rows.append([name, mean_std(result.final_loss), *cost, str(len(result.history.failures))])
    return rows


LOSS_COLUMNS = ["", "final loss", "NFE, first epoch", "NFE, last epoch", *CERTIFIED_COLUMNS, "failed"]


def certified_moment(result: Result) -> tuple[str, str]:
    """Return the certified tolerance of the typical repeat after training, in words, and its NFE there."""
    if not result.certificates:
        return "last epoch, not certified", ""
    last, one = result.certificates["last"], result.typical
    if np.isnan(last.loosest[one]):
        return "last epoch, no tolerance is certified", ""
    return f"last epoch, certified tolerance {last.loosest[one]:.0e}", f"{last.own[one]:.0f}"


@torch.no_grad()
def ends(result: Result) -> Array:
    """Return where the flows map -1 and 1, [repeats, 2]; NaN where a solve fails."""
    x = torch.tensor([[-1.0], [1.0]]).expand(len(result.run.seeds), 2, 1)
    outcome = result.model.run(x)
    assert outcome.solution is not None, "it is a flow"
    solved = (outcome.solution.status == Status.SUCCESS).unsqueeze(1)
    return outcome.features[..., 0].masked_fill(~solved, torch.nan).numpy(force=True)


def euler(flow: Flow, x: Tensor, steps: int) -> Tensor:
    """Solve a flow by Euler's method instead of its own; returns [steps + 1, ...]."""
    times = torch.linspace(0.0, flow.t1, steps + 1, dtype=torch.float64)
    ys = flow.solve(x, save_at=times, method="euler", step_size=flow.t1 / steps).ys
    assert isinstance(ys, Tensor)
    return ys


def validation_gap(result: Result) -> Array:
    """Return the final validation loss minus the final training loss."""
    return result.validation[-1] - result.final_loss


def mean_gap(results: Results, data: str) -> Array:
    """Return a NODE's loss minus a ResNet's, averaged over all epochs."""
    node, resnet = (results[f"{data}-{model}"].per_epoch("loss") for model in ("node", "resnet"))
    return (node - resnet).mean(0)
