"""Adam with a learning rate for each member."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


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
