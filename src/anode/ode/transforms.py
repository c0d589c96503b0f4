"""How a solve behaves under ``torch.compile``, ``torch.jit.trace``, ``torch.func`` and forward-mode autograd."""

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
    """Decorate a function so that ``torch.compile`` breaks its graph there and ``torch.jit.trace`` raises an error.

    The number of steps is known only at run time. ``torch.compiler.disable`` as a decorator would import torch's
    compiler, which takes seconds. Here it is called only while compiling, when the compiler is already imported.
    """

    @wraps(solve)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(solve)(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            raise RuntimeError(
                "torch.jit.trace cannot record a solve, because the number of steps depends on the data; "
                "call the model without tracing, or use torch.compile, which leaves the solve out of its graphs"
            )
        return solve(*args, **kwargs)

    return call


def in_functorch() -> bool:
    """Whether a transform of ``torch.func`` is active."""
    return torch._C._are_functorch_transforms_active()


def may_be_followed() -> bool:
    """Whether ``torch.func`` or forward-mode autograd is active; cheaper to check than :func:`is_followed`."""
    return in_functorch() or forward_ad._current_level >= 0


def is_followed(*tensors: Tensor) -> bool:
    """Whether ``torch.func`` is active, or a tensor carries a forward-mode derivative."""
    return in_functorch() or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def is_batched(*tensors: Tensor) -> bool:
    """Whether a tensor is one of many that ``torch.autograd.grad`` maps over with ``is_grads_batched=True``."""
    return any(torch._C._functorch.is_legacy_batchedtensor(x) for x in tensors)


def saves_are_hooked() -> bool:
    """Whether ``torch.autograd.graph.saved_tensors_hooks`` are active, as in ``torch.utils.checkpoint``.

    Checkpointing repeats a solve and expects autograd to save as many tensors again. Tracing f the first time would
    add some.
    """
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # not in torch 2.4
    return top is not None and top(False) is not None


def refuse_vmap(y0: Tensor) -> None:
    """Raise ``RuntimeError`` if ``torch.vmap`` maps over a state: all entries would have to share their steps."""
    functorch = torch._C._functorch
    while in_functorch() and functorch.is_functorch_wrapped_tensor(y0):
        if functorch.is_batchedtensor(y0):
            raise RuntimeError(
                "torch.vmap cannot map over a solve, because its steps depend on the values; pass the whole batch "
                'to anode.solve instead, with control="sample" for one step size per sample'
            )
        y0 = functorch.get_unwrapped(y0)
