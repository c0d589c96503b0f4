"""What the toy half's figures and its claims both measure."""

from __future__ import annotations

import torch
from torch import Tensor

from anode.experiments.runs import Result
from anode.models.flow import Flow
from anode.ode.solution import Status
from anode.train.history import Array


@torch.no_grad()
def ends(result: Result) -> Array:
    """Where the flows map -1 and 1: [repeats, 2]; NaN where one cannot be solved."""
    x = torch.tensor([[-1.0], [1.0]]).expand(len(result.run.seeds), 2, 1)
    outcome = result.model.run(x)
    assert outcome.solution is not None, "it is a flow"
    solved = (outcome.solution.status == Status.SUCCESS).unsqueeze(1)
    return outcome.features[..., 0].masked_fill(~solved, torch.nan).numpy(force=True)


def euler(flow: Flow, x: Tensor, steps: int) -> Tensor:
    """Euler's method in place of the flow's own: [steps + 1, ...]."""
    times = torch.linspace(0.0, flow.t1, steps + 1, dtype=torch.float64)
    ys = flow.solve(x, save_at=times, method="euler", step_size=flow.t1 / steps).ys
    assert isinstance(ys, Tensor)
    return ys


def validation_gap(result: Result) -> Array:
    """How far the validation loss is above the training loss at the end."""
    return result.validation[-1] - result.final_loss
