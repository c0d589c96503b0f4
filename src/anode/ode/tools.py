"""torch's tools around a solve: what follows the computation, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(solve: Callable[P, R]) -> Callable[P, R]:
    """Let ``torch.compile`` break its graph at a function instead of tracing into it, and ``torch.jit.trace`` fail.

    The number of steps is known only when it runs. ``torch.compiler.disable`` would do the same, but imports torch's
    compiler, which takes seconds; whoever compiles has imported it.
    """

    @wraps(solve)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(solve)(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            raise RuntimeError(
                "torch.jit.trace cannot record a solve, because its number of steps depends on the data; "
                "call the model as it is, or pass it to torch.compile, which leaves the solve out of its graphs"
            )
        return solve(*args, **kwargs)

    return call


def in_functorch() -> bool:
    """Whether a transform of ``torch.func`` follows the computation."""
    return torch._C._are_functorch_transforms_active()


def may_be_followed() -> bool:
    """Whether there is anything that could follow a computation; quicker to ask than :func:`is_followed`."""
    return in_functorch() or forward_ad._current_level >= 0


def is_followed(*tensors: Tensor) -> bool:
    """Whether forward-mode derivatives are wanted, or ``torch.func`` is at work."""
    return in_functorch() or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def refuse_vmap(y0: Tensor) -> None:
    """Raise if ``torch.vmap`` maps over a state: it would have to take the same steps for every entry."""
    functorch = torch._C._functorch
    while in_functorch() and functorch.is_functorch_wrapped_tensor(y0):
        if functorch.is_batchedtensor(y0):
            raise RuntimeError(
                "torch.vmap cannot map over a solve, whose steps depend on the values; solve takes batches itself: "
                'pass the whole batch, with control="sample" for one step size per sample'
            )
        y0 = functorch.get_unwrapped(y0)
