"""How a solve is differentiated: what every way has in common.

* :class:`anode.Discrete`: the exact gradient of the steps that were taken, by walking back over them.
* :class:`anode.Stored`: the same gradient, with autograd recording the whole solve.
* :class:`anode.Continuous`: the adjoint ODE, solved backwards with tolerances of its own.

Step sizes are not differentiated: they are decisions, not values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from anode.ode.problem import Problem
    from anode.ode.solution import Solution


class Gradient(ABC):
    """A way to differentiate solves.

    Subclasses define :meth:`solve`. It is called only where gradients are recorded and the compiled engine does not
    take over.

    Attributes:
        compiled: Whether the compiled engine may solve in its place, with a gradient that is exact for the steps taken.
        twice: Whether the gradient can be differentiated again.
        across_processes: Whether processes that share a batch can use it.
    """

    compiled = False
    twice = False
    across_processes = True

    @property
    def name(self) -> str:
        """What ``Solution.gradient`` reports."""
        return type(self).__name__.lower()

    @abstractmethod
    def solve(self, problem: Problem) -> Solution:
        """Solve a problem so that autograd can differentiate the solution.

        Args:
            problem: What to solve. ``problem.integrate()`` runs the loop over steps, ``problem.dependencies()`` finds
                the tensors to differentiate for, ``problem.solution()`` makes the result out of both.
        """


def autocast_like_now(y: Tensor) -> dict[str, Any]:
    """The arguments of ``torch.autocast`` that restore its present state, for evaluating f again as it was."""
    device = y.device.type
    enabled = torch.is_autocast_enabled(device)
    return {"device_type": device, "enabled": enabled, "dtype": torch.get_autocast_dtype(device)}


def prepare(ctx: Any, y: Tensor) -> None:
    """What :func:`only_once` needs in the backward pass."""
    ctx.autocast, ctx.lock = autocast_like_now(y), Lock()


class NoSecondDerivative(torch.autograd.Function):
    """The identity on gradients, which says so when they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, inputs: int, *inputs_and_gradients: Tensor) -> Any:
        """The first ``inputs`` tensors are what the gradients are functions of."""
        return tuple(gradient.clone() for gradient in inputs_and_gradients[inputs:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Always an error."""
        raise RuntimeError('only gradient="stored" can be differentiated twice; this solve used another gradient')


def only_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Let a backward pass compute as f was evaluated, and its gradients refuse to be differentiated.

    ``ctx.autocast`` says in which precision f was evaluated. Two threads may walk back over one graph: one after the
    other, as gradients are summed up on the way.
    """

    @wraps(backward)
    def as_before(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        with ctx.lock, torch.autocast(**ctx.autocast):
            return backward(ctx, *cotangents)

    return not_twice(as_before)


def not_twice(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Let a backward pass compute without autograd, and its gradients refuse to be differentiated.

    torch's ``once_differentiable`` refuses only where the cotangents need a gradient, and else is silently wrong.
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


class Gate(torch.autograd.Function):
    """The identity, which lets gradients pass once it is open."""

    @staticmethod
    def forward(ctx: Any, opened: list[bool], x: Tensor) -> Tensor:
        """``opened`` is empty as long as it is closed."""
        ctx.opened = opened
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor | None]:
        """The same cotangent, or none."""
        return None, cotangent if ctx.opened else None


def recorded_gradients(
    solve: Callable[..., Sequence[Tensor]],
    starts: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of a solve that autograd records, to be differentiated again.

    Args:
        solve: Solves from ``starts``.
        starts: What it is given. Each may itself have been computed from the tensors, which is not to count here.
        tensors: What it depends on besides.
        cotangents: Of what it returns.
    """
    opened: list[bool] = []
    given = [None if x is None else Gate.apply(opened, x) for x in starts]  # type: ignore[no-untyped-call]
    pairs = [(y, g) for y, g in zip(solve(*given), cotangents, strict=True) if g is not None and y.requires_grad]
    wanted = [x for x in (*given, *tensors) if x is not None and x.requires_grad]
    found = torch.autograd.grad(
        [y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True
    )
    opened.append(True)
    by_tensor = dict(zip(map(id, wanted), found, strict=True))
    return [by_tensor.get(id(x)) for x in (*given, *tensors)]


def is_last_pass() -> bool:
    """Whether the graph that is walked back over is freed on the way; a second pass is then refused by autograd."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # from torch 2.5 on
    return keeps_graph is not None and not keeps_graph()


def plain_sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of some tensors."""
    total = parts[0]
    for n, part in enumerate(parts[1:]):
        total = total.add_(part) if n else total + part
    return total


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The real inner product over all elements."""
    return (x.conj() * y).real.sum()
