"""Many models as one: parameters stacked along a member dimension, computed together, independent of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from anode.models.model import Model
from anode.models.randomness import apart
from anode.ode.field import Field

M = TypeVar("M", bound=Model | Field)


def stack(models: Sequence[M]) -> M:
    """One model that computes what several of the same shape do, side by side.

    It is of the same class, its parameters have a member dimension in front, and it takes inputs
    ``[members, batch, ...]``. Each member has its own step size in the solver, so what it computes does not depend on
    the others.

    Args:
        models: At least one; all built with the same arguments.

    Example:
        >>> import torch, anode
        >>> models = [anode.NeuralODE(2, 1, augment=1) for _ in range(3)]
        >>> together, x = anode.stack(models), torch.rand(3, 64, 2)
        >>> torch.allclose(together(x)[1], models[1](x[1]), atol=1e-5)
        True
        >>> len(anode.unstack(together))
        3
    """
    models = list(models)
    if not models:
        raise ValueError("models: takes at least one model, got none")
    first = models[0]
    if first.members is not None:
        raise ValueError("models: takes models by themselves, got stacks; unstack them first")
    for model in models[1:]:
        if repr(model) != repr(first) or _trained(model) != _trained(first):
            raise ValueError(f"models: takes models built and frozen alike, got\n{first!r}\nand\n{model!r}")
    tensors = [dict(model.named_parameters()) for model in models]
    stacked = _with_parameters(first, {name: torch.stack([each[name] for each in tensors]) for name in tensors[0]})
    if stacked.members != len(models):
        raise ValueError(
            "models: takes models that can be stacked, as NeuralODE, ResNet, MLPField and flows of it can, got\n"
            f"{first!r}"
        )
    return stacked


def unstack(model: M) -> list[M]:
    """The members of a stacked model, each a model by itself, with copies of its parameters."""
    if model.members is None:
        raise ValueError("model: takes a model made by anode.stack, got one by itself")
    stacked = dict(model.named_parameters())
    return [_with_parameters(model, {name: p[i] for name, p in stacked.items()}) for i in range(model.members)]


def seeded(build: Callable[[], M], seeds: Iterable[int]) -> M:
    """A stack of models, each built right after ``torch.manual_seed`` with one of the seeds.

    Args:
        build: Makes a model, with torch's global random numbers.
        seeds: One a member.

    Example:
        >>> import anode
        >>> anode.seeded(lambda: anode.ResNet(2, 1), seeds=range(20)).members
        20
    """
    return stack([from_seed(build, seed) for seed in seeds])


def from_seed(build: Callable[[], M], seed: int) -> M:
    """A model, built right after ``torch.manual_seed`` with a seed; torch's random numbers are left as they were."""
    with apart():
        torch.manual_seed(seed)
        return build()


def _trained(model: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in model.parameters()]


def _with_parameters(model: M, parameters: dict[str, Tensor]) -> M:
    copy = deepcopy(model)
    for name, parameter in parameters.items():
        path, _, leaf = name.rpartition(".")
        old = model.get_parameter(name)
        setattr(copy.get_submodule(path), leaf, nn.Parameter(parameter.detach().clone(), old.requires_grad))
    return copy
