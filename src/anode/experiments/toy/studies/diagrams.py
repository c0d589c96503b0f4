"""Figures 2, 4, 15 and 16: diagrams that need no training run."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from anode.experiments.study import Drawing, Study
from anode.plots import diagrams


def _study(name: str, title: str, caption: str, draw: Callable[[], Figure]) -> Study:
    return Study(name, title, caption, (), lambda _: Drawing(draw()))


STUDIES = (
    _study(
        "fig02",
        "The architecture of a neural ODE",
        "The flow of an ODE carries an input to its features. A linear layer maps the features to the prediction.",
        diagrams.fig02,
    ),
    _study(
        "fig04",
        "The function g in two dimensions",
        "g maps the points of the inner disc to -1, and the points of the ring around it to 1.",
        diagrams.fig04,
    ),
    _study(
        "fig15",
        "What a flow would have to do to represent g",
        "(a) The disc A and the ring B around it. (b) A map that puts A and B on different sides of a hyperplane. In "
        "the same space, no flow does this for all points of A and B, no matter how long it runs. A training set is "
        "finite, so it leaves gaps in the ring. A flow can squeeze the disc out through a gap, and so separate all "
        "training points.",
        diagrams.fig15,
    ),
    _study(
        "fig16",
        "Why no flow can represent g",
        "(a) The disc D, whose boundary is the inner boundary of the ring. (b) A flow deforms D, but what is inside "
        "stays inside. (c) If the flow moves the boundary above the hyperplane, it moves the whole interior there too.",
        diagrams.fig16,
    ),
)
