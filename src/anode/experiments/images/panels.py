"""Figures made of panels. A panel is a plot of some runs, described as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from anode.experiments.images.curves import COLUMNS, against_nfe, in_training, on_test, rows
from anode.experiments.runs import Result
from anode.experiments.study import Drawing, Results, Study
from anode.plots.style import figure, shared_legend

Draw = Callable[[Axes, Mapping[str, Result]], None]

PLOTS: dict[str, Draw] = {
    "loss": lambda ax, models: in_training(ax, models, "loss", "training loss", log=True),
    "accuracy": lambda ax, models: in_training(ax, models, "accuracy", "training accuracy"),
    "NFE": lambda ax, models: in_training(ax, models, "nfe", "function evaluations"),
    "loss against NFE": lambda ax, models: against_nfe(ax, models, "loss", "training loss", log=True),
    "accuracy against NFE": lambda ax, models: against_nfe(ax, models, "accuracy", "training accuracy"),
    "test loss": lambda ax, models: on_test(ax, models, "validation", "test loss"),
    "test accuracy": lambda ax, models: on_test(ax, models, "validation_accuracy", "test accuracy"),
}
"""What a panel can show."""


@dataclass(frozen=True)
class Panel:
    """One plot of a figure.

    Attributes:
        shows: One of :data:`PLOTS`.
        title: The title above it.
        models: The names of the runs it shows, by label.
    """

    shows: str
    title: str
    models: Mapping[str, str]


def panelled(name: str, title: str, caption: str, grid: Sequence[Sequence[Panel]]) -> Study:
    """Return a study whose figure is a grid of panels, and whose table has one row per run.

    Args:
        name, title, caption: The id, title and caption of the :class:`Study`.
        grid: The rows of the figure, each a list of panels.
    """
    panels = [panel for row in grid for panel in row]
    shown: dict[str, str] = {}
    for panel in panels:
        for label, run in panel.models.items():
            shown.setdefault(run, f"{panel.title}, {label}")  # a run is listed once, by its first label

    def draw(results: Results) -> Drawing:
        made = figure(3.5 * len(grid[0]), 3.2 * len(grid), rows=len(grid), columns=len(grid[0]))
        for ax, panel in zip(made.axes, panels, strict=True):
            PLOTS[panel.shows](ax, {label: results[run] for label, run in panel.models.items()})
            ax.set_title(panel.title)
        shared_legend(made)
        return Drawing(made, COLUMNS, rows({label: results[run] for run, label in shown.items()}))

    return Study(name, title, caption, tuple(shown), draw)
