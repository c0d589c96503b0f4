"""Runs of the family on images, and of a small network with normalisation and pooling, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from torch import nn

from anode.data import images
from anode.experiments.beyond.runs import ADDING, LABELS
from anode.experiments.beyond.widths import WITHIN, equal_widths
from anode.experiments.images import scales
from anode.experiments.images.runs import ImageRun
from anode.experiments.runs import Result
from anode.models import family
from anode.models.augment import Zeros
from anode.models.fields import ConvField
from anode.models.flow import PAPER
from anode.models.learned import Learned
from anode.models.nets import NeuralODE
from anode.ode.solver import Solver
from anode.train.record import Array

DATA = "mnist"
"""The dataset of the image half that all runs use. The scale sets its size."""

ADDED = 5
"""Number of channels that are added to the one of an image."""

EXTRA = {"node": 0, **dict.fromkeys(ADDING, ADDED), "control": ADDED - 1}
"""The ``augment`` of each kind, which gives all states but the NODE's the same number of channels.

Data control also adds the input, which is one channel. Second-order flows and heavy balls double the state, and get
:data:`BEFORE_DOUBLING`.
"""
BEFORE_DOUBLING = (1 + ADDED) // 2 - 1

SIZE = 35_000
"""Least number of parameters of the models with and without normalisation and pooling."""

STEM, GROUPS = 16, 4
"""Channels in front of the flow of a pooled network, and groups that normalisation divides them into."""

NETWORKS = {
    ("plain", "node"): "plain, NODE",
    ("plain", "zeros"): "plain, ANODE",
    ("pooled", "node"): "pooled, NODE",
    ("pooled", "zeros"): "pooled, ANODE",
}
"""The paper's network and the one with normalisation and pooling, in words."""


@dataclass(frozen=True)
class FamilyImageRun(ImageRun):
    """A run of a model of the family on images.

    Attributes:
        kind: One of :data:`anode.experiments.beyond.runs.LABELS`.
        pooled: Whether the flow is between normalisation and pooling, and sees smaller images with more channels.
    """

    kind: str = "node"
    pooled: bool = False

    @property
    def label(self) -> str:
        return LABELS[self.kind]

    @property
    def cost(self) -> float:
        """As for the paper's models, on a quarter of the pixels after pooling."""
        return super().cost / (4 if self.pooled else 1)

    def described(self) -> dict[str, Any]:
        around = ", between normalisation and pooling" if self.pooled else ""
        told = super().described()
        return {**told, "network": told["network"] + around}

    def build(self) -> NeuralODE:  # type: ignore[override]
        source = images.IMAGES[self.data]
        solver = replace(PAPER, max_steps=self.max_steps)
        if self.pooled:
            return pooled(source.shape[0], source.classes, self.augment, self.filters, solver)
        kind, image = "zeros" if self.kind == "node" else self.kind, (source.shape[0], self.side, self.side)
        return family.build(
            kind, image, source.classes, augment=self.augment, filters=self.filters, time=self.time, solver=solver
        )


def pooled(channels: int, classes: int, augment: int, filters: int, solver: Solver) -> NeuralODE:
    """Return a flow between a convolution with normalisation and pooling, and normalisation, a mean and a linear map.

    Args:
        channels: Of the images.
        classes: Size of a prediction.
        augment: Channels of zeros that are added to those of the convolution; 0 for a NODE.
        filters: Number of channels of the field's hidden layers.
        solver: The settings of the solves.
    """
    state = STEM + augment
    stem = nn.Sequential(
        nn.Conv2d(channels, STEM, 3, padding=1),
        nn.GroupNorm(GROUPS, STEM),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Zeros(augment, ConvField.features_dim),
    )
    mean = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Sequential(nn.GroupNorm(1, state), nn.ReLU(), *mean, nn.Linear(state, classes))
    start = Learned(stem, keep=False, dim=ConvField.features_dim)
    return NeuralODE(field=ConvField(state, filters), head=head, augment=start, solver=solver)


def network(architecture: str, kind: str) -> str:
    """Return the name of a run of one of :data:`NETWORKS`."""
    return f"{architecture}-{kind}"


def of_family(kind: str) -> str:
    """Return the name of a run of the family."""
    return f"mnist-{kind}"


def note(scale: scales.Scale) -> str:
    """Return what all runs at a scale have in common, for the report."""
    size = scale.sizes[DATA]
    return (
        f"The data are {size.data}: {size.train:,} training images of {size.side}x{size.side} pixels, for "
        f"{size.epochs} epochs with batch size {scale.batch_size}, and {size.test:,} test images. The states of all "
        "models of the family but the NODE have six channels. Models that are compared have the same number of "
        f"parameters, to within {100 * WITHIN:g} %. All models have the same learning rate, {scale.lr:g}; it was not "
        "searched for."
    )


def runs(scale: scales.Scale) -> dict[str, FamilyImageRun]:
    """Return all runs at a scale of the image half, by name."""
    make = partial(scales.run, scale, data=DATA, make=FamilyImageRun)
    extra = {kind: EXTRA.get(kind, BEFORE_DOUBLING) for kind in LABELS}
    members = (make(of_family(kind), kind=kind, augment=extra[kind]) for kind in LABELS)
    networks = (
        make(network(*both), kind=both[1], augment=extra[both[1]], pooled=both[0] == "pooled") for both in NETWORKS
    )
    return {run.name: run for run in (*comparable(tuple(members)), *comparable(tuple(networks), SIZE))}


def accuracy(result: Result) -> Array:
    """Return the test accuracy of each repeat at the end of training."""
    return result.history.validation_accuracy[-1]


@cache
def comparable(runs: tuple[FamilyImageRun, ...], at_least: int = 0) -> tuple[FamilyImageRun, ...]:
    """Return runs with filters that give all of them the same number of parameters, at least the given one."""
    filters = equal_widths({run.name: partial(_of_filters, run) for run in runs}, at_least)
    return tuple(replace(run, filters=filters[run.name]) for run in runs)


def _of_filters(run: FamilyImageRun, filters: int) -> NeuralODE:
    return replace(run, filters=filters).build()
