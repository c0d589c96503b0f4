"""Find widths that give different models the same number of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

WIDTHS = range(32, 81)
"""The widths to choose from; the paper's is 32."""
WITHIN = 0.02
"""The largest relative difference of numbers of parameters that are called equal."""


def parameters(model: nn.Module) -> int:
    """Return the number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def equal_widths(builds: Mapping[str, Callable[[int], nn.Module]], at_least: int = 0) -> dict[str, int]:
    """Return a width of the hidden layers per model, such that their parameter counts differ by at most :data:`WITHIN`.

    Changing a width by one changes the count by a few percent, so not every count is possible for all models. The
    function chooses the smallest possible count.

    Args:
        builds: Functions by name, from a width to a model with two hidden layers of that width.
        at_least: The least number of parameters.
    """
    counts = {name: counted(build) for name, build in builds.items()}
    for target in sorted(number for count in counts.values() for number in count.values() if number >= at_least):
        chosen = {name: min(count, key=lambda width: abs(count[width] - target)) for name, count in counts.items()}
        if spread([counts[name][width] for name, width in chosen.items()]) <= WITHIN:
            return chosen
    raise ValueError(f"builds: takes models that widths in {WIDTHS} make equal, got {', '.join(builds)}")


def counted(build: Callable[[int], nn.Module]) -> dict[int, int]:
    """Return the number of parameters for each width. It is quadratic in the width, so three models determine it."""
    with torch.device("meta"):
        one, two, three = (parameters(build(width)) for width in (1, 2, 3))
    bend, slope = one - 2 * two + three, two - one
    return {width: one + (width - 1) * slope + (width - 1) * (width - 2) // 2 * bend for width in WIDTHS}


def spread(numbers: list[int]) -> float:
    """Return how much the largest number exceeds the smallest, as a fraction of the smallest."""
    return max(numbers) / min(numbers) - 1
