"""The paper's claims about images: statement, criterion and measurement of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from anode.experiments.certificates import shared
from anode.experiments.findings import Certified, Claim, Finding, known
from anode.experiments.images.curves import TITLES, final, pair, percent, windows
from anode.experiments.images.reported import TABLE1
from anode.experiments.images.scales import TOO_MANY, equal
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std
from anode.train.record import Array

UNSTABLE = 1000
"""The paper calls a NODE unstable if a solve takes more evaluations than this."""


def reached(result: Result, level: Array) -> tuple[Array, Array]:
    """Return the iterations until each repeat's loss was first at a level or below, and its NFE there."""
    at, loss = windows(result, "loss")
    _, nfe = windows(result, "nfe")
    there = loss <= level
    first = there.argmax(0)
    iterations = np.where(there.any(0), at[first], np.inf)
    return iterations, np.where(there.any(0), nfe[first, np.arange(nfe.shape[1])], np.inf)


def lowest(result: Result) -> Array:
    """Return the lowest loss of each repeat."""
    loss = windows(result, "loss")[1]
    return np.where(np.isnan(loss).all(0), np.nan, np.nanmin(np.where(np.isnan(loss), np.inf, loss), 0))


def times_faster(node: Result, anode: Result) -> Array:
    """Return how many times fewer iterations the ANODE took to the NODE's lowest loss; NaN if it never got there."""
    level = lowest(node)
    gain = ratio(reached(node, level)[0], reached(anode, level)[0])
    return np.where(gain > 0, gain, np.nan)


def evaluations_needed(node: Result, anode: Result) -> Array:
    """Return the ANODE's evaluations at the NODE's lowest loss, divided by the NODE's evaluations there."""
    level = lowest(node)
    return ratio(reached(anode, level)[1], reached(node, level)[1])


def ratio(above: Array, below: Array) -> Array:
    """Divide two arrays; NaN where both are infinite, because there was no level to reach."""
    with np.errstate(invalid="ignore"):
        return above / below


def faster(results: Results) -> Finding:
    """Claim 10."""
    gains = {data: times_faster(results[f"{data}-p0"], results[f"{data}-p10"]) for data in ("mnist", "cifar10")}
    parts = {"MNIST: 5 times fewer": gains["mnist"] >= 5, "CIFAR10: 2.5 times fewer": gains["cifar10"] >= 2.5}
    numbers = [(f"{TITLES[data]}: times fewer iterations", mean_std(gain)) for data, gain in gains.items()]
    return Finding.of_parts(parts, numbers)


def cheaper(results: Results) -> Finding:
    """Claim 11."""
    shares = {data: evaluations_needed(results[f"{data}-p0"], results[f"{data}-p10"]) for data in ("mnist", "cifar10")}
    parts = {f"{TITLES[data]}: at most 2/3": share <= 2 / 3 for data, share in shares.items()}
    numbers = [(f"{TITLES[data]}: ANODE's NFE over NODE's at the same loss", mean_std(s)) for data, s in shares.items()]
    return Finding.of_parts(parts, numbers)


Measure = Callable[[Mapping[str, Result]], dict[str, Array]]
"""Measures the evaluations of trained models that are compared with each other."""


def final_nfe(models: Mapping[str, Result]) -> dict[str, Array]:
    """Return the evaluations over the last tenth of training, at the paper's tolerance."""
    return {label: final(result, "nfe") for label, result in models.items()}


def certified_nfe(models: Mapping[str, Result]) -> dict[str, Array]:
    """Return the evaluations of the trained models, at the loosest tolerance certified for all of them."""
    last = {label: result.certificates["last"] for label, result in models.items()}
    tolerance = shared(last.values())
    return {label: each.at(tolerance) for label, each in last.items()}


def same_size(results: Results, evaluations: Measure = final_nfe) -> Finding:
    """Claim 12."""
    parts, numbers = {}, []
    for data in ("mnist", "cifar10"):
        models = pair(results, data)
        loss = {label: final(result, "loss") for label, result in models.items()}
        for name, ends in (("loss", loss), ("NFE", evaluations(models))):
            parts[f"{TITLES[data]}: lower {name}"] = known(ends["ANODE"] < ends["NODE"], *ends.values())
            numbers += [(f"{TITLES[data]}, {label}: final {name}", mean_std(value)) for label, value in ends.items()]
    return Finding.of_parts(parts, numbers)


def weight_decay(results: Results, evaluations: Measure = final_nfe) -> Finding:
    """Claim 13."""
    names = {
        "NODE": "mnist-node",
        "NODE with decay": "mnist-node-decay",
        "ANODE": "mnist-p5",
        "ANODE with decay": "mnist-p5-decay",
    }
    loss = {label: final(results[name], "loss") for label, name in names.items()}
    nfe = evaluations({label: results[name] for label, name in names.items()})
    parts = {
        "ANODE: lower loss than NODE with decay": loss["ANODE"] < loss["NODE with decay"],
        "ANODE: lower NFE than NODE with decay": known(nfe["ANODE"] < nfe["NODE with decay"], *nfe.values()),
        "ANODE with decay: fewest evaluations": known(
            np.all([nfe["ANODE with decay"] < nfe[other] for other in list(names)[:-1]], axis=0), *nfe.values()
        ),
    }
    numbers = [(f"{label}: final loss, NFE", f"{mean_std(loss[label])}, {mean_std(nfe[label])}") for label in names]
    return Finding.of_parts(parts, numbers)


def accuracies(results: Results) -> Finding:
    """Claim 14."""
    parts, numbers = {}, []
    for data, reported in TABLE1.items():
        found = [r.history.validation_accuracy[-1] for r in pair(results, data).values()]
        parts[f"{TITLES[data]}: higher accuracy"] = found[1] > found[0]
        for label, share, paper in zip(("NODE", "ANODE"), found, reported, strict=True):
            numbers.append((f"{TITLES[data]}, {label} (paper: {paper} %)", percent(share)))
    return Finding.of_parts(parts, numbers)


def unstable(result: Result) -> Array:
    """Return which repeats had an iteration that failed or took more evaluations than the paper calls stable."""
    failed = np.isin(np.arange(result.run.repeats), [failure.member for failure in result.history.failures])
    return failed | (result.history.nfe.max(0) > UNSTABLE)


def stability(results: Results) -> Finding:
    """Claim 15."""
    node, anode = results["overfit-node"], results["overfit-anode"]
    numbers = []
    for label, result in (("NODE", node), ("ANODE", anode)):
        numbers.append((f"{label}: most evaluations in a solve", mean_std(result.history.nfe.max(0))))
        numbers.append((f"{label}: iterations that failed", str(len(result.history.failures))))
        numbers.append((f"{label}: final training loss", mean_std(final(result, "loss"))))
    return Finding.of_parts({"NODE: unstable": unstable(node), "ANODE: stable": ~unstable(anode)}, numbers)


def scales(results: Results) -> Finding:
    """Claim 16."""
    models = pair(results, "tiny_imagenet")
    loss = {label: final(result, "loss") for label, result in models.items()}
    gain = times_faster(models["NODE"], models["ANODE"])
    numbers = [(f"{label}: final loss", mean_std(value)) for label, value in loss.items()]
    parts = {"lower loss": loss["ANODE"] < loss["NODE"], "5 times fewer iterations": gain >= 5}
    return Finding.of_parts(parts, [*numbers, ("times fewer iterations", mean_std(gain))])


def too_much(results: Results, evaluations: Measure = final_nfe) -> Finding:
    """Claim 18."""
    parts, numbers = {}, []
    models = {f"p = {p}": results[f"mnist-p{p}"] for p in (10, TOO_MANY)}
    loss = {label: final(result, "loss") for label, result in models.items()}
    for name, ends in (("loss", loss), ("NFE", evaluations(models))):
        few, many = ends.values()
        parts[f"p = {TOO_MANY}: higher {name}"] = known(many > few, few, many)
        numbers += [(f"{label}: final {name}", mean_std(value)) for label, value in ends.items()]
    numbers += [(f"{label}: test loss", mean_std(r.history.validation[-1])) for label, r in models.items()]
    return Finding.of_parts(parts, numbers)


CERTIFIED = (
    "The same criterion, with the evaluations of the trained models on 64 test images, at the loosest tolerance "
    "certified for all models compared."
)

CLAIMS = (
    Claim(
        10,
        "fig10",
        "With p = 10, ANODEs reach the same loss in about 10 times (MNIST) and 5 times (CIFAR10) fewer iterations.",
        "With p = 10, the ANODE reaches the NODE's lowest loss in at least 5 times (MNIST) and 2.5 times (CIFAR10) "
        "fewer iterations than the NODE. These factors are half of those claimed.",
        ("mnist-p0", "mnist-p10", "cifar10-p0", "cifar10-p10"),
        faster,
    ),
    Claim(
        11,
        "fig10",
        "ANODEs reach the same loss with about half the function evaluations.",
        "With p = 10, on MNIST and CIFAR10: at the NODE's lowest loss, a solve of the ANODE takes at most 2/3 of the "
        "evaluations of the NODE.",
        ("mnist-p0", "mnist-p10", "cifar10-p0", "cifar10-p10"),
        cheaper,
    ),
    Claim(
        12,
        "fig18",
        "With the same number of parameters, ANODEs still have the lower loss and need fewer evaluations.",
        "On MNIST and on CIFAR10, over the last tenth of training, the ANODE has a lower loss and fewer evaluations "
        "than the NODE of its size.",
        ("mnist-node", "mnist-p5", "cifar10-node", "cifar10-p10"),
        same_size,
        certified=Certified(CERTIFIED, partial(same_size, evaluations=certified_nfe)),
    ),
    Claim(
        13,
        "fig19",
        "ANODEs without weight decay are better than NODEs with it. ANODEs with weight decay need the fewest "
        "evaluations.",
        "On MNIST, over the last tenth of training, the ANODE without weight decay has a lower loss and fewer "
        "evaluations than the NODE with it. The ANODE with weight decay has the fewest evaluations of all four "
        "models.",
        ("mnist-node", "mnist-node-decay", "mnist-p5", "mnist-p5-decay"),
        weight_decay,
        certified=Certified(CERTIFIED, partial(weight_decay, evaluations=certified_nfe)),
    ),
    Claim(
        14,
        "table1",
        "ANODEs have higher test accuracies than NODEs of their size on MNIST, CIFAR10 and SVHN.",
        "At the end of training, the ANODE's test accuracy is higher than the NODE's on all three datasets.",
        tuple(name for data in TABLE1 for name in equal(data).values()),
        accuracies,
    ),
    Claim(
        15,
        "fig13",
        "NODEs that overfit become unstable: their solves take over 1000 evaluations or fail. ANODEs stay stable.",
        "At least one iteration of the NODE fails or takes more than 1000 evaluations, and no iteration of the ANODE "
        "does.",
        ("overfit-node", "overfit-anode"),
        stability,
        failing_is_part_of_it=True,
    ),
    Claim(
        16,
        "fig14",
        "On ImageNet (64 by 64 pixels, 200 classes), ANODEs reach lower losses and train almost 10 times faster.",
        "Over the last tenth of training, the ANODE's loss is lower than the NODE's. It reaches the NODE's lowest "
        "loss in at least 5 times fewer iterations than the NODE, which is half of the factor claimed.",
        ("tiny_imagenet-node", "tiny_imagenet-p5"),
        scales,
    ),
    Claim(
        18,
        "channels",
        "Too much augmentation is worse: with 100 added channels on MNIST, loss and evaluations are higher.",
        "Over the last tenth of training, loss and evaluations with p = 100 are higher than with p = 10.",
        ("mnist-p10", f"mnist-p{TOO_MANY}"),
        too_much,
        certified=Certified(CERTIFIED, partial(too_much, evaluations=certified_nfe)),
    ),
)
"""The claims, by the numbers of the specification."""
