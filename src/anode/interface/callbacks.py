"""torchdiffeq's callbacks: methods of the right-hand side that are called at every step."""

from __future__ import annotations

import warnings
from collections.abc import Set
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from anode.engine.watch.bytecode import reads
from anode.ode.integrate import Watch
from anode.ode.packing import Packing, views
from anode.ode.plan import Interval

CALLBACKS = {"try": "callback_step", "accept": "callback_accept_step", "reject": "callback_reject_step"}
"""The callbacks by the event of a step at which they are called."""


def watch_of(
    func: Any, packing: Packing, method: str, supported: Set[str], adaptive: bool, times: Tensor
) -> tuple[Watch | None, bool]:
    """Return a function that calls the callbacks of ``func``, ``None`` if it has none, and whether any may write.

    Args:
        func: The right-hand side.
        packing: The packing of the state.
        method: Name of the method, for the warning about callbacks that it does not support.
        supported: The events for which it does.
        adaptive: Whether the method adapts its steps. Callbacks are then given times in double precision.
        times: The times of the solve.
    """
    if isinstance(func, nn.Module) and type(func).__getattr__ is nn.Module.__getattr__:
        # Checked here because a missing attribute of a module is slow to look up.
        kind, own, parts = type(func), vars(func), func._modules
        if not any(hasattr(kind, name) or name in own or name in parts for name in CALLBACKS.values()):
            return None, False
    found = {event: callback for event, name in CALLBACKS.items() if (callback := getattr(func, name, None))}
    if missing := sorted(CALLBACKS[event] for event in found.keys() - supported):
        warnings.warn(f"method {method!r} does not support the callbacks {missing}", stacklevel=6)
    callbacks = {event: callback for event, callback in found.items() if event in supported}
    if not callbacks:
        return None, False

    dtype = torch.float64 if adaptive else times.dtype

    def watch(event: str, step: Interval, y: Tensor) -> None:
        if event in callbacks:
            t, dt = (torch.as_tensor(value, dtype=dtype, device=y.device) for value in (step.t, step.h))
            callbacks[event](t, packing.unpack(y, views), dt.abs())

    return watch, any(map(_reads_state, callbacks.values()))


def _reads_state(callback: Any) -> bool:
    """Whether a callback may read the state that it is given. Otherwise it cannot change it either."""
    function = getattr(callback, "__func__", callback)
    code = getattr(function, "__code__", None)
    return not isinstance(code, CodeType) or reads(code, 1 if function is callback else 2)
