"""The paper's claims about toy data: statement, criterion and measurement of each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from anode.experiments.certificates import PAPER_TOLERANCE
from anode.experiments.findings import Certified, Claim, Finding
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std, median_mean, nfe_growth
from anode.experiments.toy import certified
from anode.experiments.toy.certified import PAIR, inputs
from anode.experiments.toy.flows import FITTED, ends, euler, mean_gap, validation_gap
from anode.models.certify import BOUND
from anode.models.ensemble import unstack
from anode.models.flow import Flow
from anode.train.record import Array

LARGE = FITTED
"""A gap between losses is large if it is above this level."""


def epochs_to(result: Result, level: float | Array) -> Array:
    """Return the epochs until each repeat's loss was first below a level; infinite if it never was."""
    below = result.per_epoch("loss") < level
    return np.where(below.any(0), below.argmax(0) + 1.0, np.inf)


# ---------------------------------------------------------------------------------------------- one dimension (fig03)


def cannot_swap(results: Results) -> Finding:
    """Claim 1."""
    swapped, same = ends(results["map-g"]), ends(results["map-identity"])
    near_zero = np.abs(swapped).max(1)
    off = np.abs(same - [-1.0, 1.0]).max(1)
    parts = {"g: both points are mapped near 0": near_zero < 0.1, "identity: learned": off < 0.1}
    numbers = [
        ("g: largest |φ(±1)|", mean_std(near_zero)),
        ("g: final loss (0 is perfect, 1 is φ = 0)", mean_std(results["map-g"].final_loss)),
        ("identity: largest |φ(x) - x|", mean_std(off)),
    ]
    return Finding.of_parts(parts, numbers)


@torch.no_grad()
def do_not_cross(results: Results) -> Finding:
    """Claim 2."""
    flow = deepcopy(results["map-g"].model).double()
    assert isinstance(flow, Flow)
    x = torch.linspace(-1.0, 1.0, 41, dtype=torch.float64).reshape(1, 41, 1).expand(flow.members or 1, 41, 1)
    paths = flow.solve(x, save_at=np.linspace(0, 1, 101), rtol=1e-8, atol=1e-10).ys
    assert isinstance(paths, Tensor)
    exact = (paths.diff(dim=-2) > 0).all(-1).all(-1).all(0).numpy()  # NaN, from a failed solve, is out of order
    crossing = [(euler(flow, x, n).diff(dim=-2) < 0).any(-1).any(-1).any(0).numpy() * n for n in range(1, 9)]
    coarse = np.max(crossing, axis=0)
    parts = {"41 trajectories stay in order": exact, "Euler steps cross": coarse > 0}
    return Finding.of_parts(parts, [("largest number of Euler steps that cross (of 1 to 8)", mean_std(coarse))])


# ------------------------------------------------------------------------------------------------------------- losses


def only_resnet_fits(results: Results) -> Finding:
    """Claim 3."""
    resnet, node = results["g-d1-resnet"].final_loss, results["g-d1-node"].final_loss
    parts = {"ResNet fits": resnet < FITTED, "NODE does not": ~(node < FITTED)}
    return Finding.of_parts(parts, [("ResNet, final loss", mean_std(resnet)), ("NODE, final loss", mean_std(node))])


def node_fits_later(results: Results) -> Finding:
    """Claim 4."""
    resnet, node = (epochs_to(results[name], FITTED) for name in ("g-d2-resnet", "g-d2-node"))
    numbers = [
        (f"ResNet, epochs to a loss below {FITTED:.3f}", mean_std(resnet)),
        (f"NODE, epochs to a loss below {FITTED:.3f}", mean_std(node)),
        ("NODE, final loss", mean_std(results["g-d2-node"].final_loss)),
    ]
    parts = {"NODE fits": results["g-d2-node"].final_loss < FITTED, "NODE fits later than the ResNet": node > resnet}
    return Finding.of_parts(parts, numbers)


def gap_is_smaller_if_separable(results: Results) -> Finding:
    """Claim 5."""
    entangled, separable = mean_gap(results, "g-d2"), mean_gap(results, "separable-d2")
    numbers = [("g: mean gap NODE - ResNet", mean_std(entangled)), ("separable: mean gap", mean_std(separable))]
    return Finding(entangled > separable, numbers)


def augmented_is_lower_and_sooner(results: Results) -> Finding:
    """Claim 7."""
    parts, numbers = {}, []
    for d in (1, 2):
        node, anode = results[f"g-d{d}-node"], results[f"g-d{d}-anode"]
        level = np.nextafter(node.final_loss, np.inf)  # at this loss or below
        needed = {name: epochs_to(result, level) for name, result in (("NODE", node), ("ANODE", anode))}
        parts[f"d = {d}: lower loss"] = anode.final_loss < node.final_loss
        parts[f"d = {d}: sooner"] = needed["ANODE"] < needed["NODE"]
        numbers += [
            (f"d = {d}: NODE, final loss", mean_std(node.final_loss)),
            (f"d = {d}: ANODE, final loss", mean_std(anode.final_loss)),
            *((f"d = {d}: {name}, epochs to the final loss of the NODE", mean_std(n)) for name, n in needed.items()),
        ]
    return Finding.of_parts(parts, numbers)


# ---------------------------------------------------------------------------------------------------------------- NFE


def nfe_grows(results: Results) -> Finding:
    """Claim 6."""
    growth = nfe_growth(results["g-d2-node"])
    nfe = results["g-d2-node"].per_epoch("nfe")
    numbers = [
        ("NFE in the first epoch", mean_std(nfe[0])),
        ("NFE in the last epoch", mean_std(nfe[-1])),
        ("growth", mean_std(growth)),
    ]
    return Finding(growth > 1.25, numbers)


def augmented_nfe_hardly_grows(results: Results) -> Finding:
    """Claim 8."""
    node, anode = nfe_growth(results["g-d1-node"]), nfe_growth(results["g-d1-anode"])
    last = {name: results[f"g-d1-{name}"].per_epoch("nfe")[-1] for name in ("node", "anode")}
    numbers = [
        ("NODE, growth of NFE", mean_std(node)),
        ("ANODE, growth of NFE", mean_std(anode)),
        ("NODE, NFE in the last epoch", mean_std(last["node"])),
        ("ANODE, NFE in the last epoch", mean_std(last["anode"])),
    ]
    return Finding.of_parts({"NODE: nearly doubles": node > 1.75, "ANODE: hardly grows": anode < 1.25}, numbers)


# ------------------------------------------------------------------------------------------- generalisation, topology


def augmented_generalises(results: Results) -> Finding:
    """Claim 9."""
    node, anode = results["slices-d2-node"], results["slices-d2-anode"]
    node_gap, anode_gap = validation_gap(node), validation_gap(anode)
    numbers = [
        ("NODE: validation loss", mean_std(node.validation[-1])),
        ("NODE: gap to training loss", mean_std(node_gap)),
        ("ANODE: validation loss", mean_std(anode.validation[-1])),
        ("ANODE: gap to training loss", mean_std(anode_gap)),
    ]
    return Finding.of_parts({"NODE: large gap": node_gap > LARGE, "ANODE: no such gap": anode_gap < LARGE}, numbers)


def solving_backwards_returns(results: Results) -> Finding:
    """Claim 17."""
    parts, numbers = {}, []
    for result in (results[name] for name in PAIR):
        flows = [model.flow for model in unstack(deepcopy(result.model).double())]
        checks = [
            flow.check(x, BOUND, rtol=PAPER_TOLERANCE, atol=PAPER_TOLERANCE)
            for flow, x in zip(flows, inputs(result), strict=True)
        ]
        errors = np.array([float(check.overall) for check in checks])
        parts[f"{result.run.label}: returns"] = errors <= BOUND
        numbers.append((f"{result.run.label}: relative error of the states, %", median_mean(100 * errors)))
    return Finding.of_parts(parts, numbers)


CLAIMS: Sequence[Claim] = (
    Claim(
        1,
        "fig03",
        "A flow on the line cannot represent g, which swaps -1 and 1. Trained on g, it maps both points near 0. It "
        "learns the identity easily.",
        "|φ(±1)| < 0.1 after training on g, and |φ(x) - x| < 0.1 after training on the identity",
        ("map-g", "map-identity"),
        cannot_swap,
    ),
    Claim(
        2,
        "fig03",
        "Trajectories of the trained ODE never cross. Trajectories of Euler's method cross if its steps are large "
        "enough.",
        "41 accurately solved trajectories keep their order at 101 times; with some number of Euler steps from 1 to 8, "
        "trajectories cross",
        ("map-g",),
        do_not_cross,
    ),
    Claim(
        3,
        "fig05",
        "In d = 1, a ResNet fits g and a NODE does not.",
        f"the ResNet's final loss is below {FITTED:.3f}, a tenth of the best constant's loss, and the NODE's is not",
        ("g-d1-resnet", "g-d1-node"),
        only_resnet_fits,
    ),
    Claim(
        4,
        "fig05",
        "In d = 2, a NODE fits g in the end, but more slowly than a ResNet.",
        f"the NODE's final loss is below {FITTED:.3f}, and the NODE takes more epochs than the ResNet to get below it",
        ("g-d2-resnet", "g-d2-node"),
        node_fits_later,
    ),
    Claim(
        5,
        "fig05",
        "The difference between NODE and ResNet is smaller on separable data.",
        "the NODE's loss minus the ResNet's, averaged over all epochs, is larger on g than on the separable data",
        ("g-d2-resnet", "g-d2-node", "separable-d2-resnet", "separable-d2-node"),
        gap_is_smaller_if_separable,
    ),
    Claim(
        6,
        "fig06",
        "The number of function evaluations (NFE) of a NODE grows while it is trained on g.",
        "the mean NFE of the last epoch is more than 1.25 times that of the first (d = 2)",
        ("g-d2-node",),
        nfe_grows,
        certified=Certified(
            "the model's NFE after the last epoch is more than 1.25 times that after the first, at the loosest "
            "tolerance certified for both",
            certified.nfe_grows,
        ),
    ),
    Claim(
        7,
        "fig07",
        "An ANODE reaches a lower loss than a NODE, and sooner, in d = 1 and d = 2.",
        "in both dimensions, the ANODE's final loss is lower, and it reaches the NODE's final loss in fewer epochs",
        ("g-d1-node", "g-d1-anode", "g-d2-node", "g-d2-anode"),
        augmented_is_lower_and_sooner,
    ),
    Claim(
        8,
        "fig08",
        "In training, an ANODE's NFE hardly grows, while a NODE's nearly doubles (d = 1).",
        "mean NFE of the last epoch over that of the first is above 1.75 for the NODE and below 1.25 for the ANODE",
        ("g-d1-node", "g-d1-anode"),
        augmented_nfe_hardly_grows,
        certified=Certified(
            "NFE after the last epoch over NFE after the first is above 1.75 for the NODE and below 1.25 for the "
            "ANODE, at the loosest tolerance certified for all four models",
            certified.augmented_nfe_hardly_grows,
        ),
    ),
    Claim(
        9,
        "fig09",
        "With slices of the plane held out, the NODE's validation loss is far above its training loss. The ANODE's is "
        "not.",
        f"validation minus training loss is above {LARGE:.3f} for the NODE and below it for the ANODE",
        ("slices-d2-node", "slices-d2-anode"),
        augmented_generalises,
    ),
    Claim(
        17,
        "fig01",
        "The flow is a homeomorphism: solving backwards from the features returns the inputs.",
        f"at a tolerance of 1e-3, solving back returns the states of 100 inputs to within {BOUND:.0%}, for NODE and "
        "ANODE",
        PAIR,
        solving_backwards_returns,
        certified=Certified(
            f"for NODE and ANODE, some tolerance returns the states to within {BOUND:.0%}; at 1e-8, every coordinate "
            "of an input returns to within 1e-3",
            certified.solving_backwards_returns,
        ),
    ),
)
