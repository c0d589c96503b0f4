"""Adam with a learning rate for each member."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Adam:
    """The optimiser of Kingma and Ba, where every member of a stack has a learning rate of its own and can be frozen.

    ``torch.optim.Adam`` has one learning rate for a tensor, and a stack is one tensor for all members. Otherwise they
    compute the same.

    Args:
        parameters: What to train; with a member dimension in front if ``lr`` is a tensor.
        lr: The learning rate, or one a member.
        weight_decay: Times the parameter, added to the gradient.

    References:
        Kingma and Ba, *Adam: a method for stochastic optimization*, ICLR 2015.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.lr = torch.as_tensor(lr, dtype=torch.float64)
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps
        self.steps = 0
        self.frozen: Tensor | None = None
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]

    def gradients(self) -> list[Tensor]:
        """The gradients that there are."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        self.steps += 1
        beta1, beta2 = self.betas
        rate = self.lr / (1 - beta1**self.steps)
        unbias = (1 - beta2**self.steps) ** -0.5
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            if self.weight_decay:
                gradient = gradient.add(parameter, alpha=self.weight_decay)
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            move = mean / (square.sqrt().mul_(unbias).add_(self.eps))
            move.mul_(rate.to(move).reshape(rate.shape + (1,) * (move.ndim - rate.ndim)))
            if self.frozen is not None:
                move[self.frozen] = 0.0  # a product with a rate of 0 would let NaN through
            parameter.sub_(move)

    @torch.no_grad()
    def freeze(self, members: Tensor) -> None:
        """Let some members, given by a truth value each, stay where they are from now on."""
        self.frozen = members if self.frozen is None else self.frozen | members
