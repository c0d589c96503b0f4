"""What moves the parameters: optimisers by name or of one's own, schedules of learning rates, clipping."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anode.checks import describe, lookup, require


class Adam(torch.optim.Optimizer):
    """The optimiser of Kingma and Ba, where every member of a stack may have a learning rate of its own.

    ``torch.optim.Adam`` has one learning rate for a tensor, and a stack is one tensor for all members. Otherwise they
    compute the same.

    Args:
        parameters: What to train; with a member dimension in front if ``lr`` has several values.
        lr: The learning rate, or a tensor with one per member.
        betas: How slowly the means of gradients and of their squares forget.
        eps: Added to the root of the mean square.
        weight_decay: Times the parameter, added to the gradient.

    References:
        Kingma and Ba, *Adam: a method for stochastic optimization*, ICLR 2015.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "steps": 0})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, (beta1, beta2) = parameter.grad, group["betas"]
        assert gradient is not None
        mean, square = self.state[parameter]["mean"], self.state[parameter]["square"]
        rate = torch.as_tensor(group["lr"], dtype=torch.float64) / (1 - beta1 ** group["steps"])
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        move = mean / (square.sqrt().mul_((1 - beta2 ** group["steps"]) ** -0.5).add_(group["eps"]))
        parameter.sub_(move.mul_(rate.to(move).reshape(rate.shape + (1,) * (move.ndim - rate.ndim))))


MakeOptimizer = Callable[[list[Tensor]], Optimizer]
"""Makes an optimiser of parameters."""
MakeScheduler = Callable[[Any], LRScheduler]
"""Makes a schedule of an optimiser's learning rates."""

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
"""Optimisers by name. All take a learning rate and a weight decay."""
LR = 1e-3
"""The learning rate, if none is given."""


def optimizer_of(
    make: str | MakeOptimizer, parameters: list[Tensor], lr: Sequence[float], weight_decay: float
) -> Optimizer:
    """An optimiser by its name, or what a function makes of the parameters.

    Args:
        make: The name or the function.
        parameters: What to train.
        lr: The learning rate, or one per member.
        weight_decay: As the optimiser takes it.
    """
    if isinstance(make, str):
        rates: Any = lr[0] if len(set(lr)) == 1 else torch.tensor(lr, dtype=torch.float64, device=parameters[0].device)
        return lookup("optimizer", make, OPTIMIZERS)(parameters, lr=rates, weight_decay=weight_decay)  # type: ignore[call-arg]
    made = make(parameters)
    if not isinstance(made, Optimizer):
        takes = "a function that returns a torch.optim.Optimizer"
        raise TypeError(f"optimizer: takes {takes}, got one that returned {describe(made)}")
    closure = inspect.signature(made.step).parameters.get("closure")
    needed = closure is not None and closure.default is inspect.Parameter.empty
    require(not needed, "optimizer", type(made).__name__, "one whose step() needs no closure")
    held = {id(p) for group in made.param_groups for p in group["params"]}
    known = {id(p) for p in parameters}
    require(held <= known, "optimizer", type(made).__name__, "an optimiser of no other parameters than it is given")
    return made


class Schedule:
    """A schedule of learning rates under way.

    Args:
        make: Makes a scheduler of torch; ``None`` for constant rates.
        optimizer: Whose rates.
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
        """Whether the rates depend on the validation loss instead of on the number of iterations."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def iterated(self) -> None:
        """Take note of an iteration."""
        if self.scheduler is not None and not self.follows_validation:
            self.scheduler.step()

    def evaluated(self, loss: float) -> None:
        """Take note of an evaluation."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)

    def replay(self, iterations: int, losses: Sequence[float]) -> None:
        """Go to where it was after so many iterations and these evaluations."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, that the optimiser has not moved yet
            for _ in range(0 if self.scheduler is None else iterations):
                self.iterated()
        for loss in losses:
            self.evaluated(loss)


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], limit: float, members: int | None) -> None:
    """Scale gradients down to a norm of at most ``limit``, taken over all parameters, or over those of each member."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    rows = [g.reshape(members or 1, -1) for g in gradients]
    norms = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.reshape(-1, *(1,) * (gradient.ndim - 1)) if members else factors[0])


def plain_state(optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of an optimiser: what JSON can hold, and its tensors by name."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}

    def keep(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, list | tuple):
            return [keep(f"{name}.{i}", each) for i, each in enumerate(value)]
        plain = value is None or isinstance(value, str | int | float | bool)
        require(plain, "optimizer", value, "one whose state is made of tensors, numbers and text, beside checkpoint")
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


def restore_state(optimizer: Optimizer, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give an optimiser the state that :func:`plain_state` took."""

    def given(value: Any) -> Any:
        if isinstance(value, dict):
            return tensors[value["tensor"]]
        return [given(each) for each in value] if isinstance(value, list) else value

    state = {int(i): {name: given(each) for name, each in values.items()} for i, values in plain["state"].items()}
    groups = [{name: given(each) for name, each in group.items()} for group in plain["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in state.items():  # torch has cast what is not of the parameters' dtype
        for name, value in values.items():
            if isinstance(value, Tensor):
                optimizer.state[parameters[i]][name] = value.to(optimizer.state[parameters[i]][name].device)
