"""Figures 2, 4, 15 and 16: diagrams, drawn by code from no run."""

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
        "An input is carried along the flow of an ODE; a linear layer reads the prediction from where it ends up.",
        diagrams.fig02,
    ),
    _study(
        "fig04",
        "The function g in two dimensions",
        "Points of the inner disc are to be mapped to -1, points of the ring around it to 1.",
        diagrams.fig04,
    ),
    _study(
        "fig15",
        "What a flow would have to do to represent g",
        "(a) The disc A and the ring B around it. (b) A map that puts them on two sides of a hyperplane. No flow in the"
        " same space does that to all points of A and B, however long it takes. Finitely many points leave gaps between"
        " them: a flow can squeeze the disc out through a gap, and so separate every point of a training set.",
        diagrams.fig15,
    ),
    _study(
        "fig16",
        "Why it cannot",
        "(a) The disc D, whose boundary is the inner boundary of the ring. (b) A flow deforms it but keeps inside "
        "inside. (c) If the boundary's image lies above the hyperplane, all of the interior does too.",
        diagrams.fig16,
    ),
)
