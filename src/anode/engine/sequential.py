"""``nn.Sequential`` as a right-hand side that does not depend on time."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class SequentialField(nn.Module):
    """The field f(t, y) = net(y).

    Args:
        net: The layers.
    """

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Apply the layers to y."""
        return self.net(y)


def knows_no_time(f: Any) -> bool:
    """Whether f is an ``nn.Sequential``, which is called with the state only."""
    return isinstance(f, nn.Sequential) and type(f).forward is nn.Sequential.forward


def as_function(f: Any) -> Any:
    """Return a right-hand side as f(t, y); an ``nn.Sequential`` is wrapped in a :class:`SequentialField`."""
    return SequentialField(f) if knows_no_time(f) else f
