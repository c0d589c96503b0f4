"""The claims about evaluations, at tolerances that are certified for all models compared."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anode.experiments.certificates import PAPER_TOLERANCE, Certificates, shared
from anode.experiments.findings import Finding, known
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std, median_mean, tolerance_range
from anode.interface.solve import solve
from anode.models.flow import Flow
from anode.models.nets import NeuralODE
from anode.ode.solution import Status
from anode.train.record import Array

PAIR = ("g-d2-node", "g-d2-anode")
"""The runs that claim 17 is about."""


def inputs(result: Result) -> Tensor:
    """Return a hundred inputs of each repeat, in double precision."""
    return torch.stack([each.x[::30] for each in result.run.datasets()[0]]).double()


def growth_of(*results: Result) -> tuple[list[Array], list[tuple[str, str]]]:
    """Divide the evaluations after the last epoch by those after the first, at the tolerance that all models share.

    Returns:
        The growth of each run, and the numbers of all of them.
    """
    stages = [(each.certificates["first"], each.certificates["last"]) for each in results]
    tolerance = shared(certificates for pair in stages for certificates in pair)
    growth = [last.at(tolerance) / first.at(tolerance) for first, last in stages]
    numbers = [("certified tolerance, median", tolerance_range(tolerance))]
    for result, (first, last), grown in zip(results, stages, growth, strict=True):
        label, paper = result.run.label, np.full_like(tolerance, PAPER_TOLERANCE)
        certified = int((last.loosest >= PAPER_TOLERANCE).sum())
        numbers += [
            (f"{label}, repeats certified at 1e-3", f"{certified} of {len(tolerance)}"),
            (f"{label}, NFE after the first epoch", median_mean(first.at(tolerance))),
            (f"{label}, NFE after the last epoch", median_mean(last.at(tolerance))),
            (f"{label}, growth", median_mean(grown)),
            (f"{label}, growth at 1e-3", median_mean(last.at(paper) / first.at(paper))),
        ]
    return growth, numbers


def nfe_grows(results: Results) -> Finding:
    """Claim 6."""
    (growth,), numbers = growth_of(results["g-d2-node"])
    return Finding(known(growth > 1.25, growth), numbers)


def augmented_nfe_hardly_grows(results: Results) -> Finding:
    """Claim 8."""
    node, anode = results["g-d1-node"], results["g-d1-anode"]
    growth, numbers = growth_of(node, anode)
    numbers += [(f"{each.run.label}, growth at its own tolerance", own_growth(each)) for each in (node, anode)]
    numbers += own_cost(node.certificates["last"], anode.certificates["last"])
    parts = {
        "NODE: nearly doubles": known(growth[0] > 1.75, *growth),
        "ANODE: hardly grows": known(growth[1] < 1.25, *growth),
    }
    return Finding.of_parts(parts, numbers)


def own_growth(result: Result) -> str:
    """Return the growth of a run at the loosest tolerance certified for its own two models."""
    first, last = result.certificates["first"], result.certificates["last"]
    tolerance = shared([first, last])
    return median_mean(last.at(tolerance) / first.at(tolerance))


def own_cost(node: Certificates, anode: Certificates) -> list[tuple[str, str]]:
    """Return the evaluations of a NODE and an ANODE, each at its own certified tolerance."""
    return [
        ("NODE, its own tolerance, median", tolerance_range(node.loosest)),
        ("ANODE, its own tolerance, median", tolerance_range(anode.loosest)),
        ("NODE's NFE over ANODE's, each at its own tolerance", median_mean(node.own / anode.own)),
    ]


@torch.no_grad()
def solving_backwards_returns(results: Results) -> Finding:
    """Claim 17."""
    parts, numbers = {}, []
    for result in (results[name] for name in PAIR):
        model = deepcopy(result.model).double()
        assert isinstance(model, NeuralODE)
        errors = way_back(model.flow, inputs(result), rtol=1e-8, atol=1e-10, max_steps=10_000)
        label, loosest = result.run.label, result.certificates["last"].loosest
        parts[f"{label}: a tolerance is certified"] = np.isfinite(loosest)
        parts[f"{label}: returns at 1e-8"] = errors < 1e-3
        numbers.append((f"{label}: largest |φ⁻¹(φ(x)) - x| at 1e-8", mean_std(errors)))
    numbers += own_cost(*(results[name].certificates["last"] for name in PAIR))
    return Finding.of_parts(parts, numbers)


def way_back(flow: Flow, x: Tensor, **options: Any) -> Array:
    """Return the largest error of each member's inputs after solving forward and back; NaN if a solve fails."""
    there = flow.solve(x, **options)
    back = solve(flow.field, there.y1, (flow.t1, 0.0), control="member", **options)
    assert isinstance(back.y1, Tensor)
    off = (flow.augment.remove(back.y1) - x).abs().amax((1, 2))
    failed = (there.status != Status.SUCCESS) | (back.status != Status.SUCCESS)
    return off.masked_fill(failed, torch.nan).numpy(force=True)
