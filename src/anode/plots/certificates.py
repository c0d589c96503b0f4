"""How errors and evaluations depend on the tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anode.plots.style import INK, MODEL_COLORS, MUTED, figure, grid, legend, styled


@styled()
def certificate(
    tolerances: Sequence[float],
    errors: Mapping[str, Sequence[float]],
    nfe: Sequence[float],
    bound: float,
    ax: Axes | None = None,
) -> Figure:
    """Draw errors over the tolerance of a solver, and beside them the evaluations.

    Args:
        tolerances: [tolerances], those that were tried.
        errors: By label, [tolerances].
        nfe: [tolerances], the evaluations of the field.
        bound: The largest error that passes.
        ax: Where to draw the errors, without the evaluations; by default in a new figure.
    """
    axes = figure(8.0, 3.4, columns=2).axes if ax is None else [ax]
    for (label, values), color in zip(errors.items(), (INK, MODEL_COLORS["ANODE"]), strict=False):
        axes[0].plot(tolerances, values, "o-", label=label, color=color)
    axes[0].axhline(bound, color=MUTED, linestyle="--", label=f"bound, {bound:.2%}")
    axes[0].set(yscale="log", ylabel="relative error")
    legend(axes[0])
    if ax is None:
        axes[1].plot(tolerances, nfe, "o-", color=INK)
        axes[1].set(ylabel="function evaluations", ylim=(0, None))
    for each in axes:
        each.set(xscale="log", xlabel="tolerance")
        each.invert_xaxis()  # tighter to the right
        grid(each)
    made: Any = axes[0].figure
    return made
