"""Optimizers, learning rate schedules and gradient clipping."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anode.checks import describe, lookup, require
from anode.models.randomness import with_seed


class Adam(torch.optim.Optimizer):
    """The Adam optimizer, with one learning rate per member of a stack.

    ``torch.optim.Adam`` has one learning rate per tensor, and a stack holds all members in one tensor. Otherwise both
    compute the same updates.

    Args:
        parameters: Parameters to train, with a leading member dimension if ``lr`` has several values.
        lr: Learning rate, or a tensor with one per member.
        betas: Decay rates of the running means of the gradient and its square.
        eps: Added to the denominator for numerical stability.
        weight_decay: L2 penalty: this times the parameter is added to the gradient.

    References:
        Kingma and Ba, *Adam: a method for stochastic optimization*, ICLR 2015.
    """

    # torch wraps these so that its compiler leaves them out, and imports the compiler when one of them is first called.
    # That takes a second, which is longer than a short training run.
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "steps": 0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to train, with settings of their own."""
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter] = {"mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"] += 1
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._move(parameters, [p.grad for p in parameters], group)
        return loss

    def _move(self, parameters: list[Tensor], gradients: Any, group: dict[str, Any]) -> None:
        """Update parameters with one call per operation, not one per operation and parameter."""
        beta1, beta2 = group["betas"]
        means, squares = ([self.state[p][name] for p in parameters] for name in ("mean", "square"))
        if group["weight_decay"]:
            gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_mul_(roots, (1 - beta2 ** group["steps"]) ** -0.5)
        torch._foreach_add_(roots, group["eps"])
        moves = torch._foreach_div(means, roots)
        rate = torch.as_tensor(group["lr"], dtype=torch.float64) / (1 - beta1 ** group["steps"])
        if rate.ndim:
            torch._foreach_mul_(moves, [rate.to(x).reshape(rate.shape + (1,) * (x.ndim - rate.ndim)) for x in moves])
        else:
            torch._foreach_mul_(moves, rate.item())
        torch._foreach_sub_(parameters, moves)


MakeOptimizer = Callable[[list[Tensor]], Optimizer]
"""A function that takes a list of parameters and returns an optimizer."""
MakeScheduler = Callable[[Any], LRScheduler]
"""A function that takes an optimizer and returns a learning rate scheduler."""

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
"""Optimizers by name. All take a learning rate and a weight decay."""
LR = 1e-3
"""Default learning rate."""


def optimizer_of(
    make: str | MakeOptimizer,
    parameters: list[Tensor],
    lr: Sequence[float],
    weight_decay: float,
    members: int | None = None,
) -> Optimizer:
    """Build an optimizer by its name or with a function.

    Args:
        make: The name or the function.
        parameters: Parameters to train.
        lr: Learning rate, or one per member.
        weight_decay: Weight decay of the optimizer.
        members: Number of members of a stack; ``None`` for a single model.
    """
    if isinstance(make, str):
        rates: Any = lr[0] if len(set(lr)) == 1 else torch.tensor(lr, dtype=torch.float64, device=parameters[0].device)
        return lookup("optimizer", make, OPTIMIZERS)(parameters, lr=rates, weight_decay=weight_decay)  # type: ignore[call-arg]
    made = _made_by(make, parameters)
    takes = "one that moves every number by its own gradients for a stack of models, whose members would be mixed"
    require(members is None or not _mixes_members(make, parameters), "optimizer", type(made).__name__, takes)
    return made


def _made_by(make: MakeOptimizer, parameters: list[Tensor]) -> Optimizer:
    """Call the user's function, and check what it returns."""
    made = make(parameters)
    if not isinstance(made, Optimizer):
        takes = "a function that returns a torch.optim.Optimizer"
        raise TypeError(f"optimizer: takes {takes}, got one that returned {describe(made)}")
    closure = inspect.signature(made.step).parameters.get("closure")
    needed = closure is not None and closure.default is inspect.Parameter.empty
    require(not needed, "optimizer", type(made).__name__, "one whose step() does not require a closure")
    held = {id(p) for group in made.param_groups for p in group["params"]}
    known = {id(p) for p in parameters}
    require(held <= known, "optimizer", type(made).__name__, "an optimizer of only the parameters that it is given")
    return made


def _mixes_members(make: MakeOptimizer, parameters: list[Tensor]) -> bool:
    """Whether a step moves the first member of a stack differently if the gradients of the others change."""

    def moved(factor: float) -> list[Tensor]:
        copies = [p.detach().clone().requires_grad_() for p in parameters]
        with with_seed(0, {p.device for p in parameters if p.is_cuda}):
            for copy in copies:
                copy.grad = torch.randn_like(copy)
                copy.grad[1:] *= factor
            _made_by(make, copies).step()
        return [copy.detach()[0] for copy in copies]

    try:
        return not all(map(torch.equal, moved(1.0), moved(1e3)))
    except Exception:  # the function may know the parameters of the model, and not these copies
        return False


class Schedule:
    """A learning rate schedule.

    Args:
        make: A function that returns a torch scheduler; ``None`` for constant learning rates.
        optimizer: The optimizer.
    """

    def __init__(self, make: MakeScheduler | None, optimizer: Optimizer) -> None:
        self.scheduler = None if make is None else make(optimizer)
        takes = "a function that returns a torch.optim.lr_scheduler.LRScheduler of the optimizer that it is given"
        if make is not None and not isinstance(self.scheduler, LRScheduler):
            raise TypeError(f"scheduler: takes {takes}, got one that returned {describe(self.scheduler)}")
        its_own = self.scheduler is None or self.scheduler.optimizer is optimizer
        require(its_own, "scheduler", type(self.scheduler).__name__, f"{takes}, not of another one")

    @property
    def follows_validation(self) -> bool:
        """Whether the learning rate depends on the validation loss instead of the number of iterations."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def iterated(self) -> None:
        """Step the scheduler after an iteration."""
        if self.scheduler is not None and not self.follows_validation:
            self.scheduler.step()

    def evaluated(self, loss: float) -> None:
        """Step the scheduler after an evaluation."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)

    def replay(self, iterations: int, losses: Sequence[float]) -> None:
        """Restore the state after this number of iterations and these evaluations."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that the optimizer has not stepped yet
            for _ in range(0 if self.scheduler is None else iterations):
                self.iterated()
        for loss in losses:
            self.evaluated(loss)


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], limit: float, members: int | None) -> None:
    """Scale gradients to a norm of at most ``limit`` over all parameters, or over those of each member."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    rows = [g.reshape(members or 1, -1) for g in gradients]
    norms = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.reshape(-1, *(1,) * (gradient.ndim - 1)) if members else factors[0])


def plain_state(optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the state of an optimizer as values that JSON can hold, and its tensors by name."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}

    def keep(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, list | tuple):
            return [keep(f"{name}.{i}", each) for i, each in enumerate(value)]
        plain = value is None or isinstance(value, str | int | float | bool)
        require(
            plain, "optimizer", value, "one whose state holds only tensors, numbers and text if checkpoint is given"
        )
        return value

    return {
        "state": {
            str(i): {name: keep(f"{i}.{name}", each) for name, each in values.items()}
            for i, values in state["state"].items()
        },
        "groups": [
            {name: keep(f"group-{i}.{name}", each) for name, each in group.items()}
            for i, group in enumerate(state["param_groups"])
        ],
    }, tensors


def names_in_groups(optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer.

    Args:
        optimizer: The optimizer.
        names: The names of the model's parameters, by their ids.
    """
    takes = "one that moves only parameters of the model if checkpoint is given; add them to the model"
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    other = next((each for each in every if id(each) not in names), None)
    require(other is None, "optimizer", None if other is None else describe(other), takes)
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def add_groups(optimizer: Optimizer, groups: Sequence[Sequence[str]], named: Mapping[str, Tensor]) -> None:
    """Add the groups of parameters that callbacks had added to an optimizer before a checkpoint.

    Args:
        optimizer: The optimizer, as built.
        groups: The names of the parameters in all groups, see :func:`names_in_groups`.
        named: The model's parameters by their names.
    """
    for added in groups[len(optimizer.param_groups) :]:
        optimizer.add_param_group({"params": [named[name] for name in added]})


def restore_state(optimizer: Optimizer, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Restore the state of an optimizer that :func:`plain_state` returned."""

    def given(value: Any) -> Any:
        if isinstance(value, dict):
            return tensors[value["tensor"]]
        return [given(each) for each in value] if isinstance(value, list) else value

    state = {int(i): {name: given(each) for name, each in values.items()} for i, values in plain["state"].items()}
    groups = [{name: given(each) for name, each in group.items()} for group in plain["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in state.items():  # torch has cast the tensors to the dtype of the parameters
        for name, value in values.items():
            if isinstance(value, Tensor):
                optimizer.state[parameters[i]][name] = value.to(optimizer.state[parameters[i]][name].device)
