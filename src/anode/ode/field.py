"""Right-hand sides and their derivatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Rate = Callable[[Tensor, Tensor], Tensor]
"""f(t, y), the right-hand side of an ODE, on one tensor."""

BYTES_KEPT = 16 << 20
"""How much memory autograd may keep of evaluations of f, so that they need not be made again."""


class Derivative(ABC):
    """Evaluates f, and pulls cotangents back through evaluations.

    An evaluation hangs what pulling it back will need onto the slope it returns, as ``slope.tape``, so that it lives
    and dies with the slope. Gradients with respect to parameters add up until they are taken.

    Attributes:
        parameters: The tensors whose gradients :meth:`take_gradients` returns, in that order; a tied one may be there
            twice.
    """

    parameters: tuple[Tensor, ...]

    def compiled(self, y: Tensor) -> Derivative:
        """The same by the compiled engine, if it has it for such states as y."""
        return self

    def wanted(self, params: Sequence[Tensor], time: bool) -> Derivative | None:
        """The same for these parameters, and for time if that is asked for; ``None`` if there is no such."""
        same = {id(p) for p in self.parameters if p.requires_grad} == {id(p) for p in params}
        return self if same and not time else None

    @abstractmethod
    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        """f(t, y) and nothing else."""

    @abstractmethod
    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        """f(t, y), ready to be pulled back."""

    @abstractmethod
    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gradients for the y and the t of an evaluation, ``None`` for zero."""

    @abstractmethod
    def take_gradients(self) -> Sequence[Tensor]:
        """The sums over all that was pulled since the last call, one for each of ``parameters``."""

    def adjoint(self, sizes: Sequence[int]) -> Rate | None:
        """The rate of change of (0, y, cotangent of y, *cotangents of ``parameters``), which are laid side by side.

        ``sizes`` are how many numbers each has. ``None`` if it has to be put together from the other methods.
        """
        return None

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        """How many steps' evaluations take so little memory that they are better kept than made again."""
        return 0


def parameters_of(module: nn.Module) -> tuple[Tensor, ...]:
    """The parameters of a module; of a replica of ``nn.DataParallel``, what it has in their place."""
    owned = (getattr(part, "_former_parameters", part._parameters) for part in module.modules())
    return tuple({id(p): p for parameters in owned for p in parameters.values() if p is not None}.values())


class AutogradDerivative(Derivative):
    """The derivative of any f, by autograd.

    Args:
        f: The right-hand side.
        params: The tensors whose gradients are wanted.
        time: Whether the gradient with respect to t is wanted.
        again: Whether f may have computed something once and for all, whose graph will be needed again.
        module: The module that f calls; its parameters have to be the same when gradients are taken.
        saved: How many bytes autograd keeps of an evaluation; ``None`` if that is not known.
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
        self._f, self.parameters, self._time, self._again = f, tuple(params), time, again
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
        live = [i for i, p in enumerate(self.parameters) if p.requires_grad]  # some may have been frozen since
        inputs = (y, *((t,) if self._time else ()), *(self.parameters[i] for i in live))
        again = self._again or self._saved is not None  # a kept slope may belong to two steps
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
                "the parameters of f were replaced between the solve and its gradient, as torch.func.functional_call "
                'does, and f would be evaluated with others; use gradient="stored"'
            )
        sums, self._sums = self._sums or self._zeros(), []
        return sums


class Field(nn.Module):
    """A right-hand side that knows its own parameters and may bring a derivative faster than autograd's.

    Subclasses define ``forward(t, y)``, use no tensor that needs a gradient other than their own parameters, and may
    override :meth:`derivative` with something faster.
    """

    features_dim = -1
    """The dimension of the state that holds a point's features, to which others may be added."""

    @property
    def members(self) -> int | None:
        """How many fields are stacked in this one; ``None`` for a field by itself."""
        return None

    def check(self, y: Tensor) -> None:
        """Raise ``ValueError`` if y is no state of this field; called once a solve."""

    def derivative(self) -> Derivative:
        """The derivative with respect to y and to every parameter."""
        return AutogradDerivative(self, tuple(self.parameters()))


def is_hooked(module: nn.Module) -> bool:
    """Whether calling a module does more than its ``forward``, or something else."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    called = type(module).__call__ not in (nn.Module.__call__, nn.ParameterList.__call__)
    return any(hooks) or has_global_hooks() or called or "forward" in module.__dict__


def has_global_hooks() -> bool:
    """Whether something is called with every call of every module."""
    module = nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )
