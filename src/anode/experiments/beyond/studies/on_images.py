"""The family on MNIST, and networks with and without normalisation and pooling."""

from __future__ import annotations

from collections.abc import Mapping

from anode.experiments.beyond.on_images import NETWORKS, SIZE, accuracy, network, of_family
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies.tables import COLORS, median
from anode.experiments.images import curves
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study, median_mean
from anode.plots.rows import rows
from anode.plots.style import MODEL_COLORS, figure

COLUMNS = [*curves.COLUMNS, "NFE at 1e-3"]
"""Those of the image half, and the evaluations of the trained models on test images."""


def drawing(found: Mapping[str, Result], colors: Mapping[str, str]) -> Drawing:
    """Draw test accuracies, test losses and evaluations, with one row per model.

    Args:
        found: By label. All models share a certified tolerance.
        colors: By label.
    """
    made = figure(13.0, 1.6 + 0.26 * len(found), columns=3)
    accuracies = {label: 100 * accuracy(each) for label, each in found.items()}
    losses = {label: each.history.validation[-1] for label, each in found.items()}
    costs = {label: cost_of(each) for label, each in found.items()}
    panels = {"test accuracy, %": accuracies, "test loss": losses, "NFE at 1e-3": costs}
    for ax, (title, values) in zip(made.axes, panels.items(), strict=True):
        rows(ax, values, colors, xlabel=title, named=ax is made.axes[0])
    table = [[*line, median_mean(costs[line[0]])] for line in curves.rows(found)]
    best = max(accuracies, key=lambda label: median(accuracies[label]))
    return Drawing(made, COLUMNS, table, remark=f"Highest median accuracy: {best} ({median(accuracies[best]):.1f} %).")


def draw_family(results: Results) -> Drawing:
    """Draw the family."""
    return drawing({label: results[of_family(kind)] for kind, label in LABELS.items()}, COLORS)


def draw_networks(results: Results) -> Drawing:
    """Draw the four networks."""
    colors = {label: MODEL_COLORS["NODE" if kind == "node" else "ANODE"] for (_, kind), label in NETWORKS.items()}
    return drawing({label: results[network(*both)] for both, label in NETWORKS.items()}, colors)


DOTS = (
    "Dots are repeats, strokes are medians. NFE are evaluations of a solve of 64 test images at a tolerance of 1e-3, "
    "after training."
)

STUDIES = (
    Study(
        "mnist",
        "The family on MNIST",
        "Test accuracy and test loss at the end of training, and evaluations. All models have the same number of "
        "parameters, to within 2 %. The state of every model but the NODE has six channels: the image and zeros, a "
        "learned constant, or a learned map without or with a hidden layer; the image again (data control); or "
        f"positions and velocities of three channels each (second order, heavy balls). {DOTS}",
        tuple(of_family(kind) for kind in LABELS),
        draw_family,
    ),
    Study(
        "architecture",
        "How much of table 1 is architecture",
        f"Four models of about {SIZE:,} parameters, equal to within 2 %. The plain ones are the paper's: a flow of "
        "the image, and a linear layer that reads all channels and pixels. The pooled ones have a convolution with "
        "normalisation and pooling before the flow. After it they have normalisation, the mean over all pixels and a "
        f"linear layer. {DOTS}",
        tuple(network(*both) for both in NETWORKS),
        draw_networks,
    ),
)
