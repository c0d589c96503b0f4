"""The base class of gradient methods, and what they share.

* :class:`anode.Discrete`: the exact gradient of the accepted steps, computed by going back over them.
* :class:`anode.Stored`: the same gradient, with autograd recording the whole solve.
* :class:`anode.Continuous`: the adjoint ODE, solved backward in time with its own tolerances.

Step sizes are treated as constants: they are not differentiated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anode.ode.field import partial_gradients
from anode.ode.transforms import is_batched

if TYPE_CHECKING:
    from anode.ode.problem import Problem
    from anode.ode.solution import Solution


class Gradient(ABC):
    """Base class of methods to differentiate a solve.

    Subclasses define :meth:`solve`. It is called only if gradients are recorded and the compiled engine does not run
    the solve.

    Attributes:
        compiled: Whether the compiled engine may run the solve instead. Its gradient is exact for the accepted steps.
        twice: Whether the gradient can be differentiated again.
        across_processes: Whether it supports training in which several processes share a batch.
    """

    compiled = False
    twice = False
    across_processes = True

    @property
    def name(self) -> str:
        """The name that ``Solution.gradient`` reports."""
        return type(self).__name__.lower()

    @abstractmethod
    def solve(self, problem: Problem) -> Solution:
        """Solve a problem so that autograd can differentiate the solution.

        Args:
            problem: The problem to solve. ``problem.integrate()`` runs the loop over steps, ``problem.dependencies()``
                returns the tensors to differentiate with respect to, and ``problem.solution()`` builds the result.
        """


def autocast_like_now(y: Tensor) -> dict[str, Any]:
    """Return the arguments of ``torch.autocast`` that restore its current state, to evaluate f again the same way."""
    device = y.device.type
    enabled = torch.is_autocast_enabled(device)
    return {"device_type": device, "enabled": enabled, "dtype": torch.get_autocast_dtype(device)}


def prepare(ctx: Any, y: Tensor) -> None:
    """Store on ``ctx`` what :func:`only_once` needs in the backward pass."""
    ctx.autocast, ctx.lock = autocast_like_now(y), Lock()


class NoSecondDerivative(torch.autograd.Function):
    """The identity on gradients, which raises an error if they are differentiated again."""

    @staticmethod
    def forward(ctx: Any, inputs: int, *inputs_and_gradients: Tensor) -> Any:
        """The first ``inputs`` tensors are what the gradients are functions of."""
        return tuple(gradient.clone() for gradient in inputs_and_gradients[inputs:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Raise ``RuntimeError``."""
        raise RuntimeError(
            "this gradient cannot be differentiated again; use odeint instead of odeint_adjoint, or pass "
            'gradient="stored" to anode.solve or to the model'
        )


def only_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Decorate a backward pass to run in the precision of the forward pass, and refuse a second derivative.

    ``ctx.autocast`` holds that precision. If two threads go back over the same graph, a lock runs them one after the
    other, because they accumulate gradients in the same place.
    """

    @wraps(backward)
    def as_before(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        with ctx.lock, torch.autocast(**ctx.autocast):
            return backward(ctx, *cotangents)

    return not_twice(as_before)


def not_twice(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Decorate a backward pass to run without autograd, and refuse a second derivative.

    torch's ``once_differentiable`` refuses only if the cotangents require a gradient; otherwise it is silently wrong.
    """

    @wraps(backward)
    def once(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():
            return backward(ctx, *cotangents)
        with torch.no_grad():
            gradients = backward(ctx, *cotangents)
        inputs = [x for x in ctx.saved_tensors if x is not None and x.requires_grad]
        found = [g for g in gradients if g is not None]
        rest = iter(NoSecondDerivative.apply(len(inputs), *inputs, *found))  # type: ignore[no-untyped-call]
        return tuple(None if g is None else next(rest) for g in gradients)

    return once


def is_plain_pass(cotangents: Sequence[Tensor | None]) -> bool:
    """Whether a backward pass is neither differentiated again nor mapped over many cotangents at once.

    ``torch.autograd.grad`` maps with ``is_grads_batched=True``. Compiled code cannot be mapped.
    """
    return not torch.is_grad_enabled() and not is_batched(*(g for g in cotangents if g is not None))


def recorded_gradients(
    solve: Callable[..., Sequence[Tensor]],
    starts: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Repeat a solve under autograd and return its gradients, which can be differentiated again if autograd is on.

    Args:
        solve: The solve, as a function of ``starts``.
        starts: Its arguments.
        tensors: The other tensors that the solve depends on. Any of these and of ``starts`` may have been computed from
            others; this is not differentiated here.
        cotangents: The cotangents of the results of ``solve``.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        given = [None if x is None else x.view_as(x) for x in starts]  # to tell it from other uses of the tensor in f
        pairs = [(y, g) for y, g in zip(solve(*given), cotangents, strict=True) if g is not None and y.requires_grad]
    wanted = [x for x in (*given, *tensors) if x is not None and x.requires_grad]
    outputs, arriving = [y for y, _ in pairs], [g for _, g in pairs]
    # Some of the tensors may have graphs of their own, which belong to the caller.
    found = iter(partial_gradients(outputs, wanted, arriving, create_graph=again, retain_graph=True))
    return [next(found) if x is not None and x.requires_grad else None for x in (*given, *tensors)]


def is_last_pass() -> bool:
    """Whether the current backward pass frees its graph, so that autograd will refuse a second pass."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # from torch 2.5 on
    return keeps_graph is not None and not keeps_graph()


def plain_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the tensors."""
    total = parts[0]
    for n, part in enumerate(parts[1:]):
        total = total.add_(part) if n else total + part
    return total


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the real part of the inner product over all elements."""
    return (x.conj() * y).real.sum()
