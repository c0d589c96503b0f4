"""The image half's figures and its table."""

from __future__ import annotations

from anode.experiments.images.curves import COLUMNS, TITLES, pair, rows
from anode.experiments.images.panels import Panel, panelled
from anode.experiments.images.reported import TABLE1
from anode.experiments.images.scales import AUGMENTS, TOO_MANY, equal
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study
from anode.plots.series import compared
from anode.plots.style import figure
from anode.train.record import Array

THREE = ("mnist", "cifar10", "svhn")


def augmented(data: str) -> dict[str, str]:
    """Runs with more and more added channels."""
    return {f"p = {p}": f"{data}-p{p}" for p in AUGMENTS}


def row(models: dict[str, str], title: str, *shows: str) -> list[Panel]:
    """Panels about the same models."""
    return [Panel(each, title, models) for each in shows]


HEAD = "ANODE with a NODE's linear layer"

MEANS = "Means over stretches of training; bands are one standard deviation over the repeats to either side."
NO_BANDS = "Plotted against evaluations, every dot is the mean over a stretch of training and all repeats; no bands."
TESTED = "Means over the repeats, with bands of one standard deviation to either side."

FIGURES = (
    panelled(
        "fig10",
        "Training with more and more added channels",
        "Loss, function evaluations of a solve, and one against the other, with p added channels; p = 0 is the NODE. "
        f"{MEANS} {NO_BANDS}",
        [row(augmented(data), TITLES[data], "loss", "NFE", "loss against NFE") for data in ("mnist", "cifar10")],
    ),
    panelled(
        "fig11",
        "Accuracy against function evaluations",
        f"Training accuracy against the evaluations of a solve, for NODEs and ANODEs of the same size. {NO_BANDS}",
        [[Panel("accuracy against NFE", TITLES[data], equal(data)) for data in THREE]],
    ),
    panelled(
        "fig12",
        "Accuracy and loss on test images",
        f"NODEs and ANODEs of the same size, evaluated on test images in the course of training. {TESTED}",
        [row(equal(data), TITLES[data], "test accuracy", "test loss") for data in ("mnist", "cifar10")],
    ),
    panelled(
        "fig13",
        "Overfitting",
        "A few images of MNIST, fitted for many epochs. Iterations whose solve fails are skipped, and counted in the "
        f"table. {MEANS}",
        [row({"NODE": "overfit-node", "ANODE": "overfit-anode"}, "a few images of MNIST", "loss", "NFE")],
    ),
    panelled(
        "fig14",
        "Training on Tiny ImageNet",
        "Training accuracy and loss on its 200 classes. The paper's two models have the same number of "
        f"parameters only if these are counted for ten classes; the table has the counts as they are. {MEANS}",
        [row(equal("tiny_imagenet"), TITLES["tiny_imagenet"], "accuracy", "loss")],
    ),
    panelled(
        "fig18",
        "Training with the same number of parameters",
        f"As figure 10, for NODEs and ANODEs of the same size. {MEANS} {NO_BANDS}",
        [row(equal(data), TITLES[data], "loss", "NFE", "loss against NFE") for data in ("mnist", "cifar10")],
    ),
    panelled(
        "fig19",
        "Augmentation and weight decay",
        "Losses and function evaluations on MNIST with and without weight decay, models of the same size. Where lines "
        f"coincide, those below are wider. {MEANS}",
        [
            row(
                {
                    "NODE": "mnist-node",
                    "NODE, weight decay": "mnist-node-decay",
                    "ANODE": "mnist-p5",
                    "ANODE, weight decay": "mnist-p5-decay",
                },
                TITLES["mnist"],
                "loss",
                "NFE",
            )
        ],
    ),
    panelled(
        "fig21",
        "Training accuracy",
        f"NODEs and ANODEs of the same size. {MEANS}",
        [[Panel("accuracy", TITLES[data], equal(data)) for data in THREE]],
    ),
    panelled(
        "fig22",
        "Accuracy and loss on test images of SVHN",
        f"NODEs and ANODEs of the same size, evaluated on test images in the course of training. {TESTED}",
        [row(equal("svhn"), TITLES["svhn"], "test loss", "test accuracy")],
    ),
    panelled(
        "fig23",
        "Training on SVHN",
        f"As figure 18. {MEANS} {NO_BANDS}",
        [row(equal("svhn"), TITLES["svhn"], "loss", "NFE", "loss against NFE")],
    ),
    panelled(
        "fig24",
        "Function evaluations on Tiny ImageNet",
        f"As figure 14: evaluations of a solve, and loss and accuracy against them. {MEANS} {NO_BANDS}",
        [row(equal("tiny_imagenet"), TITLES["tiny_imagenet"], "NFE", "loss against NFE", "accuracy against NFE")],
    ),
    panelled(
        "svhn",
        "Training on SVHN with more and more added channels",
        f"As figure 10. Not in the paper. {MEANS} {NO_BANDS}",
        [row(augmented("svhn"), TITLES["svhn"], "loss", "NFE", "loss against NFE")],
    ),
    panelled(
        "channels",
        "Too many added channels",
        f"Loss, function evaluations and test loss on MNIST without, with 10 and with {TOO_MANY} added channels, of "
        f"which the paper has a sentence but no figure. {MEANS}",
        [row({f"p = {p}": f"mnist-p{p}" for p in (0, 10, TOO_MANY)}, TITLES["mnist"], "loss", "NFE", "test loss")],
    ),
    panelled(
        "heads",
        "The same linear layer for both",
        "Most of an ANODE's parameters are in its linear layer, which sees all channels, while a NODE's sees those of "
        "the image. Beside the two models of the same size: an ANODE whose linear layer sees the channels of the image "
        "alone. Not in the paper.",
        [
            row(
                {**equal(data), HEAD: f"{data}-head"},
                TITLES[data],
                "loss",
                "test accuracy",
            )
            for data in ("mnist", "cifar10")
        ],
    ),
)


def draw_table(results: Results) -> Drawing:
    """Test accuracies beside the paper's."""
    made = figure(7.0, 3.2)
    found: dict[str, dict[str, Array]] = {}
    reported: dict[str, dict[str, float]] = {}
    listed: dict[str, Result] = {}
    papers: list[str] = []
    for data, paper in TABLE1.items():
        models = {**pair(results, data), HEAD: results[f"{data}-head"]}
        found[TITLES[data]] = {m: 100 * r.history.validation_accuracy[-1] for m, r in models.items()}
        reported[TITLES[data]] = {m: float(value.split()[0]) for m, value in zip(equal(data), paper, strict=True)}
        listed |= {f"{TITLES[data]}, {label}": result for label, result in models.items()}
        papers += [*(f"{value} %" for value in paper), ""]
    compared(made.axes[0], found, reported, ylabel="test accuracy, %")
    table = [[*line, paper] for line, paper in zip(rows(listed), papers, strict=True)]
    return Drawing(made, [*COLUMNS, "paper"], table)


TABLE = Study(
    "table1",
    "Test accuracies",
    "NODEs and ANODEs of the same size at the end of training: every repeat, and the paper's means as diamonds. Not in "
    "the paper: ANODEs whose linear layer sees the channels of the image alone, as a NODE's does.",
    tuple(run for data in TABLE1 for run in (*equal(data).values(), f"{data}-head")),
    draw_table,
)

STUDIES: dict[str, Study] = {study.id: study for study in (*FIGURES, TABLE)}
"""All studies of the image half by their id."""
