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
    """Return the runs with 0 to 10 added channels, by label."""
    return {f"p = {p}": f"{data}-p{p}" for p in AUGMENTS}


def row(models: dict[str, str], title: str, *shows: str) -> list[Panel]:
    """Return panels that show the same models."""
    return [Panel(each, title, models) for each in shows]


HEAD = "ANODE with a NODE's linear layer"

MEANS = "Curves show means over windows of training and over the repeats; bands show one standard deviation."
NO_BANDS = "In plots against evaluations, each dot is the mean over one window of training and all repeats."
TESTED = "Curves and bands show mean and standard deviation over the repeats."

FIGURES = (
    panelled(
        "fig10",
        "Training with p added channels",
        "Training loss, function evaluations per solve, and one against the other, with p added channels. p = 0 is "
        f"the NODE. {MEANS} {NO_BANDS}",
        [row(augmented(data), TITLES[data], "loss", "NFE", "loss against NFE") for data in ("mnist", "cifar10")],
    ),
    panelled(
        "fig11",
        "Accuracy against function evaluations",
        f"Training accuracy against evaluations per solve, for NODEs and ANODEs of the same size. {NO_BANDS}",
        [[Panel("accuracy against NFE", TITLES[data], equal(data)) for data in THREE]],
    ),
    panelled(
        "fig12",
        "Accuracy and loss on test images",
        f"NODEs and ANODEs of the same size, evaluated on the test images during training. {TESTED}",
        [row(equal(data), TITLES[data], "test accuracy", "test loss") for data in ("mnist", "cifar10")],
    ),
    panelled(
        "fig13",
        "Overfitting",
        "Models trained for many epochs on a few images of MNIST. Iterations whose solve fails are skipped; the table "
        f"counts them. {MEANS}",
        [row({"NODE": "overfit-node", "ANODE": "overfit-anode"}, "a few images of MNIST", "loss", "NFE")],
    ),
    panelled(
        "fig14",
        "Training on Tiny ImageNet",
        "Training accuracy and loss on the 200 classes. The paper's two models have the same number of parameters only "
        f"if these are counted for ten classes. The table gives the actual counts. {MEANS}",
        [row(equal("tiny_imagenet"), TITLES["tiny_imagenet"], "accuracy", "loss")],
    ),
    panelled(
        "fig18",
        "Training with the same number of parameters",
        f"As in figure 10, for NODEs and ANODEs of the same size. {MEANS} {NO_BANDS}",
        [row(equal(data), TITLES[data], "loss", "NFE", "loss against NFE") for data in ("mnist", "cifar10")],
    ),
    panelled(
        "fig19",
        "Augmentation and weight decay",
        "Training loss and function evaluations on MNIST with and without weight decay, for models of the same size. "
        f"Where lines coincide, the ones underneath are drawn wider. {MEANS}",
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
        f"NODEs and ANODEs of the same size, evaluated on the test images during training. {TESTED}",
        [row(equal("svhn"), TITLES["svhn"], "test loss", "test accuracy")],
    ),
    panelled(
        "fig23",
        "Training on SVHN",
        f"As in figure 18. {MEANS} {NO_BANDS}",
        [row(equal("svhn"), TITLES["svhn"], "loss", "NFE", "loss against NFE")],
    ),
    panelled(
        "fig24",
        "Function evaluations on Tiny ImageNet",
        f"The models of figure 14: evaluations per solve, and loss and accuracy against them. {MEANS} {NO_BANDS}",
        [row(equal("tiny_imagenet"), TITLES["tiny_imagenet"], "NFE", "loss against NFE", "accuracy against NFE")],
    ),
    panelled(
        "svhn",
        "Training on SVHN with p added channels",
        f"As in figure 10. The paper has no such figure. {MEANS} {NO_BANDS}",
        [row(augmented("svhn"), TITLES["svhn"], "loss", "NFE", "loss against NFE")],
    ),
    panelled(
        "channels",
        "Too many added channels",
        f"Training loss, function evaluations and test loss on MNIST with 0, 10 and {TOO_MANY} added channels. The "
        f"paper mentions this in a sentence and has no figure. {MEANS}",
        [row({f"p = {p}": f"mnist-p{p}" for p in (0, 10, TOO_MANY)}, TITLES["mnist"], "loss", "NFE", "test loss")],
    ),
    panelled(
        "heads",
        "The same linear layer for both",
        "Most of an ANODE's parameters are in its linear layer, which reads all channels. A NODE's linear layer reads "
        "only the channels of the image. Next to the two models of the same size, this figure shows an ANODE whose "
        "linear layer reads only the channels of the image. The paper has no such figure.",
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
    """Draw test accuracies next to the paper's."""
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
    "NODEs and ANODEs of the same size at the end of training. Dots are repeats; diamonds are the paper's means. The "
    "paper does not have the third model, an ANODE whose linear layer reads only the channels of the image, as a "
    "NODE's does.",
    tuple(run for data in TABLE1 for run in (*equal(data).values(), f"{data}-head")),
    draw_table,
)

STUDIES: dict[str, Study] = {study.id: study for study in (*FIGURES, TABLE)}
"""All studies of the image half, by id."""
