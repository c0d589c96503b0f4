"""Modules that are called with the state only, as functions of time and state."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

MEMORY = "_anode_memory"
"""The attribute in which a module keeps what is known of it, which f does not read."""


class Timeless(nn.Module):
    """The function f(t, y) = net(y).

    Args:
        net: The module, such as an ``nn.Sequential``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Apply the module to y."""
        result: Tensor = self.net(y)
        return result


def knows_no_time(f: Any) -> bool:
    """Whether f is an ``nn.Sequential``, which is called with the state only."""
    return isinstance(f, nn.Sequential) and type(f).forward is nn.Sequential.forward


def rate_at(field: nn.Module, t: Tensor, h: Any) -> Any:
    """Return a field's value at time t and state h; an ``nn.Sequential`` is called with the state only."""
    return field(h) if knows_no_time(field) else field(t, h)


def as_function(f: Any) -> Any:
    """Return a right-hand side as f(t, y); for an ``nn.Sequential`` its last :class:`Timeless`, or a new one."""
    if not knows_no_time(f):
        return f
    last = getattr(f.__dict__.get(MEMORY), "timeless", None)
    return last if isinstance(last, Timeless) and last.net is f else Timeless(f)
