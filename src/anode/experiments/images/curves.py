"""Series over the course of training, for the figures and claims of the image half."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from anode.experiments.images.scales import equal
from anode.experiments.runs import Result
from anode.experiments.study import CERTIFIED_COLUMNS, Results, certified_cells, mean_std
from anode.plots.series import curves, paths
from anode.plots.style import MODEL_COLORS, shades
from anode.train.record import Array

POINTS = 25
"""Windows that training is divided into. Figures and claims use means over windows, as iterations are noisy."""

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR10", "svhn": "SVHN", "tiny_imagenet": "Tiny ImageNet"}


def windows(result: Result, series: str, points: int = POINTS) -> tuple[Array, Array]:
    """Return the iterations at which windows of training end, and the means over them, [windows, repeats]."""
    return result.history.windows(series, points)


def final(result: Result, series: str) -> Array:
    """Return the mean of each repeat over the last tenth of training."""
    return windows(result, series, 10)[1][-1]


def pair(results: Results, data: str) -> dict[str, Result]:
    """Return the NODE and the ANODE of the same size."""
    return {label: results[name] for label, name in equal(data).items()}


def colors(labels: Mapping[str, object]) -> dict[str, str]:
    """Return the NODE's colour for p = 0, and darker shades for more added channels."""
    added = [label for label in labels if label.startswith("p = ") and label != "p = 0"]
    return {"p = 0": MODEL_COLORS["NODE"], **dict(zip(added, shades(len(added)), strict=True))} if added else {}


def in_training(ax: Axes, models: Mapping[str, Result], series: str, ylabel: str, *, log: bool = False) -> None:
    """Draw a series over the course of training."""
    drawn = {label: windows(result, series) for label, result in models.items()}
    x = next(iter(drawn.values()))[0]
    curves(ax, x, {label: y for label, (_, y) in drawn.items()}, colors(models), ylabel, xlabel="iteration", log=log)


def on_test(ax: Axes, models: Mapping[str, Result], series: str, ylabel: str) -> None:
    """Draw a series measured on the test images during training."""
    histories = {label: result.history for label, result in models.items()}
    x = next(iter(histories.values())).validation_at
    values = {label: getattr(history, series) for label, history in histories.items()}
    curves(ax, x, values, colors(models), ylabel, xlabel="iteration")


def against_nfe(ax: Axes, models: Mapping[str, Result], series: str, ylabel: str, *, log: bool = False) -> None:
    """Draw a series against the function evaluations."""
    drawn = {label: (windows(result, "nfe")[1], windows(result, series)[1]) for label, result in models.items()}
    paths(ax, drawn, colors(models), xlabel="function evaluations", ylabel=ylabel, log=log)


COLUMNS = [
    "",
    "parameters",
    "loss",
    "NFE, first tenth",
    "NFE, last tenth",
    *CERTIFIED_COLUMNS,
    "test loss",
    "test accuracy",
    "skipped",
]


def rows(models: Mapping[str, Result]) -> list[list[str]]:
    """Return a table of final results. Models of the same data share a certified tolerance."""
    made = []
    certified = certified_cells(models, lambda result: result.run.data)
    for label, result in models.items():
        nfe = windows(result, "nfe", 10)[1]
        history = result.history
        made.append(
            [
                label,
                f"{result.run.parameters:,}",
                mean_std(final(result, "loss")),
                mean_std(nfe[0]),
                mean_std(nfe[-1]),
                *certified[label],
                mean_std(history.validation[-1]),
                percent(history.validation_accuracy[-1]),
                str(len(history.failures)),
            ]
        )
    return made


def percent(shares: Array) -> str:
    """Return mean and standard deviation over repeats in percent, and how many repeats have a value if not all do."""
    return mean_std(100 * shares, "{:.1f} ± {:.1f} %")
