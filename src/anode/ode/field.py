"""Right-hand sides and their derivatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anode.checks import describe, uncallable

if TYPE_CHECKING:
    from anode.ode.integrate import Trace
    from anode.ode.problem import Problem

Rate = Callable[[Tensor, Tensor], Tensor]
"""The right-hand side f(t, y) of an ODE whose state is one tensor."""

BYTES_KEPT = 16 << 20
"""Bytes of autograd graphs that the backward pass may keep instead of evaluating f again."""


class Derivative(ABC):
    """Evaluates f and its vector-Jacobian products.

    :meth:`evaluate` stores what :meth:`pull` needs on the slope it returns, for example as ``slope.tape``, so that both
    are freed together. Gradients of the parameters accumulate until :meth:`take_gradients` returns them.

    Attributes:
        parameters: The tensors whose gradients :meth:`take_gradients` returns, in this order. A tied parameter may
            occur twice.
    """

    parameters: tuple[Tensor, ...]

    def compiled(self, y: Tensor) -> Derivative:
        """Return a compiled version of this derivative for states like y, or itself if there is none."""
        return self

    def wanted(self, params: Sequence[Tensor], time: bool) -> Derivative | None:
        """Return this derivative for the given parameters, and for t if ``time``; ``None`` if it cannot provide it."""
        same = {id(p) for p in self.parameters if p.requires_grad} == {id(p) for p in params}
        return self if same and not time else None

    @abstractmethod
    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        """Return f(t, y) without preparing :meth:`pull`."""

    @abstractmethod
    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        """Return f(t, y) as a slope that can be passed to :meth:`pull`."""

    @abstractmethod
    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients for y and t of an evaluation, given the cotangent of its slope; ``None`` for zero."""

    @abstractmethod
    def take_gradients(self) -> Sequence[Tensor]:
        """Return the gradients of ``parameters``, summed over all calls of :meth:`pull` since the last call."""

    def recorded(self) -> Rate | None:
        """Return f as a function that autograd can record, even if what f reads has changed; ``None`` for f itself."""
        return None

    def adjoint(self, sizes: Sequence[int]) -> Rate | None:
        """Return the right-hand side of the adjoint ODE on one flat tensor, or ``None``.

        The tensor is the concatenation of (0, y, cotangent of y, *cotangents of ``parameters``). With ``None``, the
        solver builds the right-hand side from the other methods.

        Args:
            sizes: Number of elements of each of these parts.
        """
        return None

    def adjoint_loop(self, problem: Problem, seminorm: bool) -> Callable[[Tensor], Trace] | None:
        """Return a compiled loop over the steps of the adjoint ODE, or ``None``.

        The loop takes the packed state at the start, see :meth:`adjoint`, and uses the usual norm.

        Args:
            problem: The backward solve.
            seminorm: Whether the norm leaves out the gradients of ``parameters``.
        """
        return None

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        """Return the number of steps whose evaluations should be kept in memory instead of being computed again.

        Args:
            y: A state.
            stages: Number of evaluations per step.
        """
        return 0


def parameters_of(module: nn.Module) -> tuple[Tensor, ...]:
    """Return the parameters of a module; for a replica of ``nn.DataParallel``, the tensors that replace them."""
    owned = (getattr(part, "_former_parameters", part._parameters) for part in module.modules())
    return tuple({id(p): p for parameters in owned for p in parameters.values() if p is not None}.values())


def partial_gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], **options: Any
) -> tuple[Tensor | None, ...]:
    """Return what ``torch.autograd.grad`` does, with respect to each input as if the others did not depend on it.

    An input may have been computed from another one. If a caller returns the gradients of both from a backward pass,
    autograd itself passes the first one on to the second. It must not be in there already.

    Args:
        outputs, inputs, cotangents: The arguments of ``torch.autograd.grad``. An input that occurs twice gets its
            gradient the first time and ``None`` the second time.
        **options: Further arguments of ``torch.autograd.grad``.
    """
    thread = get_ident()

    def stop(arriving: tuple[Tensor, ...]) -> tuple[None, ...] | None:
        return (None,) * len(arriving) if get_ident() == thread else None  # other threads may use the same graph

    distinct = {id(x): x for x in inputs}
    nodes: set[Any] = {x.grad_fn for x in distinct.values()} - {None}
    handles = [node.register_prehook(stop) for node in nodes]  # runs after the gradient of the input was taken
    try:
        gradients = torch.autograd.grad(outputs, tuple(distinct.values()), cotangents, allow_unused=True, **options)
    finally:
        for handle in handles:
            handle.remove()
    found = dict(zip(distinct, gradients, strict=True))
    return tuple(found.pop(id(x), None) for x in inputs)


def always_recorded(f: Rate) -> Rate:
    """Return an f that autograd also records where the solver needs no gradients, because f itself may differentiate.

    Without autograd, ``torch.autograd.grad`` in f would raise an error.
    """

    def evaluate(t: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return f(t, y)
        with torch.enable_grad():
            return f(t, y).detach()

    return evaluate


class AutogradDerivative(Derivative):
    """The derivative of any f by autograd.

    Args:
        f: The right-hand side.
        params: The tensors to differentiate with respect to.
        time: Whether to differentiate with respect to t.
        again: Whether evaluations may share a graph, for example of a tensor that f computed once. The graph is then
            retained.
        module: The module that f calls. Its parameters must not be replaced before the gradients are taken.
        saved: Number of bytes that autograd keeps per evaluation; ``None`` if unknown.
    """

    def __init__(
        self,
        f: Rate,
        params: Sequence[Tensor],
        time: bool = False,
        again: bool = False,
        module: nn.Module | None = None,
        saved: int | None = None,
    ) -> None:
        self._saved = saved
        self._module, self._known = module, () if module is None else parameters_of(module)
        self._f, self.parameters, self._time = f, tuple(params), time
        self._computed = any(p.grad_fn is not None for p in params)
        self._again = again or self._computed
        self._sums: list[Tensor] = []

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self._f(t, y)

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            t = t.detach().requires_grad_(self._time)
            recorded = self._f(t, y)
        slope = recorded.detach()
        slope.tape = (t, y, recorded)  # type: ignore[attr-defined]
        return slope

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        t, y, recorded = slope.tape  # type: ignore[attr-defined]
        if not recorded.requires_grad:
            return None, None
        live = [i for i, p in enumerate(self.parameters) if p.requires_grad]  # some may have been frozen meanwhile
        inputs = (y, *((t,) if self._time else ()), *(self.parameters[i] for i in live))
        again = self._again or self._saved is not None  # a kept slope may belong to two steps
        if self._computed:
            grads = partial_gradients((recorded,), inputs, (cotangent,), retain_graph=again)
        else:
            grads = torch.autograd.grad(recorded, inputs, cotangent, allow_unused=True, retain_graph=again)
        self._sums = self._sums or self._zeros()
        for i, grad in zip(live, grads[1 + self._time :], strict=True):
            if grad is not None:
                self._sums[i].add_(grad)
        return grads[0], grads[1] if self._time else None

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        return 0 if self._saved is None else BYTES_KEPT // (stages * (self._saved + y.nbytes))

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p) for p in self.parameters]

    def take_gradients(self) -> Sequence[Tensor]:
        if self._module is not None and list(map(id, self._known)) != list(map(id, parameters_of(self._module))):
            raise RuntimeError(
                "the parameters of f were replaced between the solve and its backward pass, as "
                "torch.func.functional_call does, so the gradient would be wrong; use "
                'gradient="stored"'
            )
        sums, self._sums = self._sums or self._zeros(), []
        return sums


class Field(nn.Module):
    """Base class of right-hand sides that are modules.

    Subclasses define ``forward(t, y)``. Apart from their own parameters, they must not use tensors that require a
    gradient. They may override :meth:`derivative` with one that is faster than autograd.

    Example:
        >>> import torch, anode
        >>> class Spiral(anode.Field):
        ...     def check(self, y):
        ...         if y.shape[-1] != 2:
        ...             raise ValueError(f"y: takes points in the plane, got shape {tuple(y.shape)}")
        ...     def forward(self, t, y):
        ...         return torch.stack([y[..., 1], -y[..., 0]], dim=-1)
        >>> anode.solve(Spiral(), torch.rand(8, 2), (0.0, 1.0)).success
        True
    """

    features_dim = -1
    """The dimension of the state that holds the features, along which a state can be augmented."""

    @property
    def members(self) -> int | None:
        """The number of fields that are stacked in this one; ``None`` for a single field."""
        return None

    def check(self, y: Tensor) -> None:
        """Raise ``ValueError`` if y is not a valid state of this field. Called once per solve."""

    def derivative(self) -> Derivative | None:
        """Return a derivative with respect to y and all parameters that is faster than autograd's, or ``None``."""
        return None

    def noisy(self, y: Any) -> Any:
        """Return where :class:`anode.Noise` is added to a state y: 1, or 0 for what is no part of the flow itself."""
        return tuple(map(torch.ones_like, y)) if isinstance(y, tuple) else torch.ones_like(y)

    def with_context(self, context: Tensor) -> Field:
        """Return this field with a context, which ``forward(t, y, context)`` is given in every evaluation."""
        return Conditioned(self, context)

    def part(self) -> Derivative | None:
        """Return a derivative that is faster than autograd's, or ``None``, for a field that calls this one.

        What this field returns need not have the shape of what it is given.
        """
        return None


class Conditioned(Field):
    """A field f(t, y, context) with its context, made for one solve.

    The context is no attribute of the field itself, so the backward pass sees that of its solve, whatever came after.

    Args:
        field: The field, any module.
        context: The context.
    """

    def __init__(self, field: nn.Module, context: Tensor) -> None:
        super().__init__()
        if why := uncallable(field, 3):
            takes = "None for a field that is not called as f(t, h, context)"
            raise TypeError(f"context: takes {takes}, got {describe(context)} for {why}")
        self.field, self.context = field, context

    def noisy(self, y: Any) -> Any:
        return self.field.noisy(y) if isinstance(self.field, Field) else super().noisy(y)

    def forward(self, t: Tensor, y: Any) -> Any:
        """Return the derivative of y at time t."""
        return self.field(t, y, self.context)


def conditioned(field: nn.Module, context: Tensor) -> Field:
    """Return a field f(t, y) that computes f(t, y, context)."""
    return field.with_context(context) if isinstance(field, Field) else Conditioned(field, context)


def is_hooked(module: nn.Module) -> bool:
    """Whether calling a module does something other than its class's ``forward``, such as running hooks."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    called = type(module).__call__ not in (nn.Module.__call__, nn.ParameterList.__call__)
    return any(hooks) or has_global_hooks() or called or "forward" in module.__dict__


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    module = nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )
