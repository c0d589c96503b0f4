"""Plots of the solver's accuracy: errors and evaluations over the tolerance, and errors during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike

from anode.plots.inputs import as_values
from anode.plots.series import curves, make_logarithmic
from anode.plots.style import INK, MODEL_COLORS, MUTED, figure, grid, legend, legend_above, styled, whole_ticks

TICKS = 6
"""Maximum number of tolerances that are labelled on an axis."""


@styled()
def certificate(
    tolerances: Sequence[float],
    errors: Mapping[str, Sequence[float]],
    nfe: Sequence[float],
    bound: float,
    ax: Axes | None = None,
) -> Figure:
    """Plot the errors of a flow over the tolerance of its solver, and next to them the number of evaluations.

    Args:
        tolerances: The tolerances that were tried.
        errors: Errors by label, one per tolerance.
        nfe: Number of evaluations, one per tolerance.
        bound: Largest error that passes, drawn as a dashed line.
        ax: Axes to plot only the errors on. By default both are plotted in a new figure.

    Example:
        >>> from anode.plots.certificates import certificate
        >>> figure = certificate([1e-2, 1e-3], {"forward and back": [0.05, 0.004]}, [14, 26], bound=0.01)
        >>> [ax.get_ylabel() for ax in figure.axes]
        ['relative error', 'function evaluations']
    """
    axes = figure(8.0, 3.4, columns=2).axes if ax is None else [ax]
    for (label, values), color in zip(errors.items(), cycle([INK, MODEL_COLORS["ANODE"]]), strict=False):
        axes[0].plot(tolerances, values, "o-", label=label, color=color)
    axes[0].axhline(bound, color=MUTED, linestyle="--", label=f"bound, {100 * bound:g} %")
    heights = np.array([bound, *(value for values in errors.values() for value in values)], dtype=np.float64)
    heights = heights[np.isfinite(heights) & (heights > 0)]
    make_logarithmic(axes[0], heights)
    axes[0].set(ylabel="relative error", ylim=(heights.min() / 1.5, 1.5 * heights.max()))
    made: Any = axes[0].figure
    if ax is None:
        legend_above(made, handles=axes[0].get_lines())  # on the axes it would hide points
        axes[1].plot(tolerances, nfe, "o-", color=INK)
        axes[1].set(ylabel="function evaluations", ylim=(0, 1.1 * max(nfe)))  # the default margin cuts dots in half
        whole_ticks(axes[1].yaxis)
    else:
        legend(ax)
    for each in axes:  # set the limits, because matplotlib finds none if all errors are infinite
        each.set(xscale="log", xlim=(1.5 * max(tolerances), min(tolerances) / 1.5), xlabel="tolerance")
        shown = sorted(tolerances)[:: -(-len(tolerances) // TICKS)]
        each.set_xticks(shown, [f"{t:g}" for t in shown])
        each.xaxis.set_minor_locator(NullLocator())
        grid(each)
    return made


@styled()
def reconstructions(ax: Axes, at: ArrayLike, errors: ArrayLike, bound: float) -> None:
    """Plot the reconstruction errors during training on a logarithmic axis.

    Args:
        ax: Axes to plot on.
        at: Iterations of the checks, [checks].
        errors: Errors, [checks], or [checks, members] for a mean and a band. A cross at the top marks infinite errors,
            which are failed solves.
        bound: Largest error that passes, drawn as a dashed line.

    Example:
        >>> import numpy as np
        >>> from anode import plots
        >>> from anode.plots.certificates import reconstructions
        >>> ax = plots.figure().axes[0]
        >>> reconstructions(ax, [0, 10, 20], [0.001, 0.02, np.inf], bound=0.01)
        >>> [line.get_label() for line in ax.lines]
        ['forward and back', 'bound, 1 %', 'a solve failed']
    """
    at = as_values("at", at, ["checks"])
    errors = np.asarray(errors, dtype=np.float64)
    curves(
        ax, at, {"forward and back": errors}, {"forward and back": INK}, "relative error", xlabel="iteration", log=True
    )
    ax.lines[-1].set_marker("o")  # a point between two failures has no visible line
    ax.axhline(bound, color=MUTED, linestyle="--", label=f"bound, {100 * bound:g} %")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, bound / 2), max(high, bound * 2))
    failed = at[np.isinf(errors.reshape(len(at), -1)).any(1)]
    if len(failed):
        top = np.full(len(failed), 0.97)
        ax.plot(failed, top, "x", color=INK, transform=ax.get_xaxis_transform(), label="a solve failed")
    legend(ax)
