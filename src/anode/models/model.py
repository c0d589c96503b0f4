"""The base class of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anode.checks import describe
from anode.models.layers import Stackable
from anode.ode.field import Field
from anode.ode.solution import Solution, SolveError
from anode.ode.solves import solves_made

if TYPE_CHECKING:
    from anode.models.flow import Flow


@dataclass
class Outcome:
    """The result of :meth:`Model.run`: prediction, features and solution.

    Attributes:
        prediction: The output of the model.
        features: What the prediction is computed from: the final state of the flow, a tensor or a tuple of tensors.
        solution: The :class:`anode.Solution`, with its cost and status; ``None`` if the model does not solve an ODE.
        integrals: Integrals along the trajectories, [batch] each, if :meth:`Model.run` was asked for them.
    """

    prediction: Any
    features: Any
    solution: Solution | None = None
    integrals: tuple[Tensor, ...] = ()

    @property
    def unfinished(self) -> bool:
        """Whether there is no prediction, because a solve failed in a model that raises an error then."""
        return self.prediction is None and self.solution is not None and not self.solution.success

    def check(self) -> Outcome:
        """Return the outcome, or raise :class:`anode.SolveError` if the solve failed."""
        if self.solution is not None:
            self.solution.check()
        return self


class Model(nn.Module, ABC):
    """Base class of models. Subclasses define :meth:`run`.

    Models with the same architecture can be stacked with :func:`anode.stack`. A stack takes inputs
    ``[members, batch, ...]``.

    Attributes:
        default_loss: The loss that :func:`anode.fit` uses if none is given; ``None`` if it depends on the targets.

    Example:
        >>> import torch, anode
        >>> class Scaled(anode.Model):
        ...     def __init__(self, model):
        ...         super().__init__()
        ...         self.model, self.scale = model, torch.nn.Parameter(torch.ones(()))
        ...     def run(self, x, **options):
        ...         outcome = self.model.run(x, **options)
        ...         return anode.Outcome(self.scale * outcome.prediction, outcome.features, outcome.solution)
        >>> model = Scaled(anode.NeuralODE(2, 1))
        >>> history = anode.fit(model, anode.datasets.load("moons"), epochs=1)
        >>> bool(history.nfe[-1] > 0)  # the cost of the solve is known
        True
    """

    default_loss: ClassVar[Callable[..., Tensor] | None] = None

    @property
    def members(self) -> int | None:
        """The number of models that are stacked in this one; ``None`` for a single model."""
        return members_in(self)

    @abstractmethod
    def run(self, x: Tensor, **options: Any) -> Outcome:
        """Return prediction, features and solution. A failed solve does not raise; check ``outcome.solution``.

        A model that runs several flows calls :meth:`Outcome.check` on all outcomes but the last.

        Args:
            x: Inputs.
            **options: Options of :func:`anode.solve` for this call, such as tighter tolerances, and those of
                :meth:`anode.Flow.run`. Models that do not solve an ODE ignore them.
        """

    def first_flow(self) -> Flow | None:
        """Return the flow that inputs of this model enter first; ``None`` if there is none.

        Override it in models that contain a flow, so that :func:`anode.fit` can check its solves (``check_every``) and
        regularise it (:class:`anode.Regularised`). Regularisers also need that :meth:`run` passes its options on to the
        flow, and its integrals to the outcome.
        """
        return None

    def forward(self, x: Tensor, *others: Any, context: Tensor | None = None, **options: Any) -> Any:
        """Return the prediction, or raise :class:`anode.SolveError` if the solve failed.

        Args:
            x: Inputs.
            *others: None. Other arguments raise an error that says which method takes them.
            context: The ``context`` of :meth:`run`, for a flow that depends on one.
            **options: None, likewise.
        """
        if others or options:
            name = next(iter(options), "others")
            raise TypeError(
                f"{name}: a {type(self).__name__} is called with x, and with context if f takes it; {_INSTEAD}"
            )
        return self.run(x, **given(context)).check().prediction

    def features(self, x: Tensor, *, context: Tensor | None = None) -> Any:
        """Return the features, or raise :class:`anode.SolveError` if the solve failed. Arguments as for a call."""
        return self.run(x, **given(context)).check().features

    def options_for(self, targets: Tensor) -> dict[str, Any]:
        """Return options of :meth:`run` that targets determine, in :func:`anode.fit`; by default none."""
        return {}


_INSTEAD = (
    "pass options of a solve, such as rtol, to run(x, ...); for states at other times, call trajectory(x, times) or "
    "solve(x, save_at=times) of the flow"
)


def given(context: Tensor | None) -> dict[str, Any]:
    """Return the arguments for a method that may not know of contexts, which are needed only if there is one."""
    return {} if context is None else {"context": context}


def over_paths(once: Callable[[], Outcome], paths: int) -> Outcome:
    """Return the outcome of a model whose solves are noisy: the means over several runs.

    Args:
        once: Runs the model once.
        paths: Number of runs.
    """
    if paths == 1:
        return once()
    outcomes = [once() for _ in range(paths)]
    prediction, features, integrals = (
        tree_map(lambda *parts: torch.stack(parts).mean(0), *each)
        for each in zip(*((each.prediction, each.features, each.integrals) for each in outcomes), strict=True)
    )
    return Outcome(
        prediction, features, _worst([each.solution for each in outcomes if each.solution is not None]), integrals
    )


def _worst(solutions: Sequence[Solution]) -> Solution:
    """Return the solution that failed; if groups have their own step sizes, the one that failed for each group."""
    last = solutions[-1]
    if not isinstance(last.status, Tensor) or all(each.success for each in solutions):
        return max(reversed(solutions), key=lambda each: int(torch.as_tensor(each.status).max()))
    worst = torch.stack([each.status for each in solutions]).argmax(0, keepdim=True)

    def of(name: str, parts: Sequence[Any]) -> Tensor:
        return torch.stack([getattr(part, name) for part in parts]).gather(0, worst)[0]

    stats = [each.stats for each in solutions]
    nfe, accepted, rejected = (of(name, stats) for name in ("nfe", "accepted", "rejected"))
    cost = replace(stats[-1], nfe=nfe, accepted=accepted, rejected=rejected)
    return replace(last, status=of("status", solutions), t1=of("t1", solutions), stats=cost)


class AnyModule(Model):
    """Any module that maps a batch to predictions, as a :class:`Model`.

    Args:
        module: The module. Its parameters are not copied.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def run(self, x: Tensor, **options: Any) -> Outcome:
        prediction = self.module(x)
        return Outcome(prediction, prediction)


def observed(model: Model, x: Tensor, **options: Any) -> tuple[Outcome, list[Solution]]:
    """Run a model, and return its outcome and all solves that it made, in whichever of its parts.

    If a part raises an error because its solve failed, the outcome has no prediction. For a stack, the error is raised,
    because it does not say how the other members fared.

    Args:
        model: The model.
        x: Inputs.
        **options: Options of :meth:`Model.run`.
    """
    with solves_made() as made:
        try:
            return model.run(x, **options), made
        except SolveError as error:
            if error.solution is None or model.members is not None:
                raise
            return Outcome(None, None, error.solution), made


def as_model(module: Any) -> Model:
    """Return a module as a :class:`Model`, as an :class:`AnyModule` if it is none."""
    if isinstance(module, Model):
        return module
    if not isinstance(module, nn.Module):
        raise TypeError(f"model: takes a torch.nn.Module, such as an anode.NeuralODE, got {type(module).__name__}")
    return AnyModule(module)


def members_in(module: nn.Module) -> int | None:
    """Return the number of members that are stacked in a module, according to its parts; ``None`` if not stacked.

    Only parts of known classes are asked: the attribute ``members`` of any other module may mean something else.
    """
    found = (part.members for part in module.children() if isinstance(part, Model | Field | Stackable))
    return next((members for members in found if members is not None), None)


def first_parameter(module: nn.Module) -> Tensor:
    """Return the first of ``module.parameters()``, whose iterator is slow; an empty tensor if there are none."""
    waiting = [module]
    while waiting:
        each = waiting.pop()
        for own in each._parameters.values():
            if own is not None:
                return own
        waiting += [child for child in reversed(each._modules.values()) if child is not None]
    return torch.empty(0)


def check_input(x: Any, like: Tensor, name: str = "x") -> None:
    """Raise ``TypeError`` unless x is a tensor with the dtype of a model, or ``torch.uint8``.

    Args:
        x: The input.
        like: A parameter of the model.
        name: The name of the argument, for the error message.
    """
    if not isinstance(x, Tensor):
        hint = f"convert it with torch.as_tensor(x, dtype={like.dtype})"
        raise TypeError(f"{name}: takes a tensor, got {describe(x)}; {hint}")
    if x.dtype not in (like.dtype, torch.uint8) and not torch.is_autocast_enabled(x.device.type):
        takes = f"{like.dtype}, the dtype of the model's parameters, or torch.uint8, which is scaled to [0, 1]"
        raise TypeError(f"{name}: takes {takes}, got {x.dtype}; convert it with x.to({like.dtype})")


def as_input(x: Tensor, like: Tensor) -> Tensor:
    """Return the input on the model's device, with ``uint8`` scaled to [0, 1].

    Example:
        >>> as_input(torch.tensor([0, 51, 255], dtype=torch.uint8), torch.empty(()))
        tensor([0.0000, 0.2000, 1.0000])
    """
    x = x.to(like.device)
    return x.to(like.dtype).div_(255) if x.dtype == torch.uint8 else x
