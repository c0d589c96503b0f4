"""How errors and evaluations depend on the tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anode.plots.style import INK, MODEL_COLORS, MUTED, figure, grid, legend, styled

if TYPE_CHECKING:
    from anode.models.certify import Certificate


@styled()
def certificate(found: Certificate, ax: Axes | None = None) -> Figure:
    """Draw the errors of a flow over the tolerance of its solver, and beside them the evaluations.

    Args:
        found: What ``flow.certify`` returned; of a stack, medians over its members are drawn.
        ax: Where to draw the errors, without the evaluations; by default in a new figure.
    """
    axes = figure(8.0, 3.4, columns=2).axes if ax is None else [ax]
    tolerances = [check.rtol for check in found.checks]
    errors = {
        "forward and back": ([float(check.overall.median()) for check in found.checks], INK),
        "against a tighter solve": (
            [float(check.error_overall.median()) for check in found.checks],
            MODEL_COLORS["ANODE"],
        ),
    }
    for label, (values, color) in errors.items():
        axes[0].plot(tolerances, values, "o-", label=label, color=color)
    axes[0].axhline(found.bound, color=MUTED, linestyle="--", label=f"bound, {found.bound:.2%}")
    axes[0].set(yscale="log", ylabel="relative error")
    legend(axes[0])
    if ax is None:
        axes[1].plot(tolerances, [float(check.nfe.median()) for check in found.checks], "o-", color=INK)
        axes[1].set(ylabel="function evaluations", ylim=(0, None))
    for each in axes:
        each.set(xscale="log", xlabel="tolerance")
        each.invert_xaxis()
        grid(each)
    made: Any = axes[0].figure
    return made
