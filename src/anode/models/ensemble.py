"""Stacks of models: parameters are stacked along a member dimension, so that many models are computed together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from anode.checks import check_function, describe, require, whole_number
from anode.engine.mapped import Mapped, Member, first_of
from anode.engine.timeless import knows_no_time
from anode.models.alike import difference
from anode.models.augment import Augment
from anode.models.divergence import Divergence
from anode.models.flow import Flow
from anode.models.layers import Stackable
from anode.models.model import Model, members_in
from anode.models.randomness import with_seed
from anode.ode.field import Field

M = TypeVar("M", bound=nn.Module)


def stack(models: Sequence[M]) -> M:
    """Return one model that computes several models with the same architecture together.

    The stack has the class of its members. Its parameters have a leading member dimension, and it takes inputs
    ``[members, batch, ...]``. Each member has its own step size in the solver, so its results do not depend on the
    other members. Your own modules are mapped over the members with ``torch.vmap``.

    There is one exception to the independence of members: statistics that a field updates when it is evaluated, such as
    those of batch normalization. The field is evaluated for all members until the last member is done.

    Args:
        models: At least one model, flow, field or other module, all built with the same arguments.

    Returns:
        The stack. Use :func:`anode.unstack` to get its members back.

    Raises:
        TypeError: If ``models`` is not a list of modules.
        ValueError: If the modules differ, are stacks themselves, or share parameters.

    Example:
        >>> import torch, anode
        >>> models = [anode.NeuralODE(2, 1, augment=1) for _ in range(3)]
        >>> together, x = anode.stack(models), torch.rand(3, 64, 2)
        >>> torch.allclose(together(x)[1], models[1](x[1]), atol=1e-5)
        True
        >>> len(anode.unstack(together))
        3
    """
    takes = "a list of modules"
    if isinstance(models, nn.Module) or not isinstance(models, Iterable):
        raise TypeError(f"models: takes {takes}, got {describe(models)}")
    models = list(models)
    if not models:
        raise ValueError("models: takes at least one model, got none")
    for model in models:
        if not isinstance(model, nn.Module):
            raise TypeError(f"models: takes {takes}, got {describe(model)} in it")
    first = models[0]
    if members_of(first) is not None:
        raise ValueError("models: takes single models, got stacks; call anode.unstack on them first")
    for model in models[1:]:
        if why := difference(first, model):
            raise ValueError(
                f"models: takes models with the same architecture and frozen parameters, got two that differ in {why}"
            )
    stacked = _together(models)
    if len(list(stacked.parameters())) != len(list(first.parameters())):
        raise ValueError("models: takes models whose parts do not share parameters, got parts that share some")
    return stacked


def unstack(model: M) -> list[M]:
    """Return the members of a stacked model as single models, with copies of the parameters."""
    members = members_of(model) if isinstance(model, nn.Module) else None
    if members is None:
        raise ValueError(f"model: takes a stack made by anode.stack, got {describe(model)} that is not stacked")
    return [_member(model, i) for i in range(members)]


def seeded(build: Callable[[], M], seeds: Iterable[int]) -> M:
    """Return a stack of models, each built after calling ``torch.manual_seed`` with one of the seeds.

    Args:
        build: A function without arguments that returns a model.
        seeds: Random seeds, one per member.

    Example:
        >>> import anode
        >>> anode.seeded(lambda: anode.ResNet(2, 1), seeds=range(20)).members
        20
    """
    takes = "a function without arguments that returns a torch.nn.Module"
    if isinstance(build, nn.Module):
        raise TypeError(f"build: takes {takes}, got {describe(build)}; pass lambda: {type(build).__name__}(...)")
    check_function("build", build, takes, 0)
    found = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    whole = isinstance(seeds, Iterable) and all(whole_number(seed) is not None for seed in found)
    require(whole, "seeds", seeds, "whole numbers, one per member, such as range(5)")
    return stack([from_seed(build, seed) for seed in found])


def from_seed(build: Callable[[], M], seed: int) -> M:
    """Return a model built after ``torch.manual_seed(seed)``; torch's random state is restored afterwards."""
    with with_seed(seed):
        return build()


def members_of(module: nn.Module) -> int | None:
    """Return the number of members that are stacked in a module; ``None`` if it is not stacked."""
    return module.members if isinstance(module, Model | Field | Stackable) else members_in(module)


class Stacked(Stackable):
    """A stack of modules of any class, mapped over with ``torch.vmap``.

    Args:
        modules: The modules, one per member.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.module = _with_tensors(modules[0], [dict(_tensors(module)) for module in modules])
        self._members = len(modules)

    @property
    def members(self) -> int:
        """The number of stacked modules."""
        return self._members

    def forward(self, *inputs: Any) -> Any:
        """Call each member with its part of the inputs, whose first dimension is that of members."""
        return self.call("forward", *inputs)

    def call(self, method: str, *inputs: Any) -> Any:
        """Call a method of each member with its part of the inputs; scalars are shared by all members."""
        for x in tree_leaves(inputs[-1:]):
            takes = f"shape [members, ...] = [{self.members}, ...] for a stack of {self.members}"
            require(x.ndim == 0 or len(x) == self.members, "x", describe(x), takes)
        named = _Method(self.module, method)
        tensors = {f"module.{name}": tensor for name, tensor in _tensors(self.module)}
        dims = tree_map(lambda x: 0 if x.ndim else None, inputs)
        mapped = torch.vmap(lambda own, given: functional_call(named, own, given), (0, dims), randomness="different")
        with sdpa_kernel(SDPBackend.MATH), _slow_mapping():  # torch cannot map over the fused kernels of attention
            result, assigned = mapped(tensors, inputs)
        for name, value in assigned.items():
            self.module.get_buffer(name).data.copy_(value.detach())
        return result


@contextmanager
def _slow_mapping() -> Iterator[None]:
    """Silence torch's warning about operations that ``vmap`` runs in a loop, which users of stacks cannot avoid."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the")
        yield


class _Method(nn.Module):
    """A module that calls a method of another module, for ``functional_call``.

    It returns the method's result and the buffers to which the method assigned new tensors, because
    ``functional_call`` restores the original buffers.
    """

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *inputs: Any) -> Any:
        before = dict(self.module.named_buffers())
        result = getattr(self.module, self.method)(*inputs)
        now = dict(self.module.named_buffers()) if before else {}
        return result, {name: value for name, value in now.items() if value is not before.get(name)}


class StackedField(Stacked, Field, Mapped):
    """A stack of fields, each of which is given its own time."""

    def forward(self, t: Tensor, h: Any) -> Any:
        """Return the derivative of h, [members, ...], at time t, which is one number or one per member."""
        t = t.reshape(-1) if t.numel() == self.members else t
        return self.call("forward", *((h,) if knows_no_time(self.module) else (t, h)))

    def noisy(self, y: Any) -> Any:
        return self.call("noisy", y) if isinstance(self.module, Field) else super().noisy(y)

    def member(self) -> Member:
        return first_of(self.module)


class StackedAugment(Stacked, Augment):
    """A stack of augmentations."""

    def forward(self, x: Tensor) -> Any:
        return self.call("forward", x)

    def remove(self, h: Any) -> Tensor:
        found: Tensor = self.call("remove", h)
        return found


def _together(parts: Sequence[M], *, is_field: bool = False) -> M:
    """Stack the same part of several models."""
    first = parts[0]
    if isinstance(first, Stackable):
        return _with_tensors(first, [dict(_tensors(part)) for part in parts])
    if isinstance(first, Model | Divergence | nn.ModuleList | nn.ModuleDict):
        if first._parameters or first._buffers:
            takes = "models all of whose parameters belong to their parts"
            raise ValueError(f"models: takes {takes}, got {type(first).__name__}, which has {min(first._parameters)!r}")
        stacked = deepcopy(first)
        for name, _ in first.named_children():
            children = [part.get_submodule(name) for part in parts]
            serves = isinstance(first, Flow | Divergence) and name == "field"
            stacked._modules[name] = _together(children, is_field=serves)
        return stacked
    kind = StackedField if is_field or isinstance(first, Field) else Stacked
    kind = StackedAugment if isinstance(first, Augment) else kind
    return kind(parts)  # type: ignore[return-value]


def _member(module: nn.Module, i: int) -> Any:
    """Return one member of a stacked module."""
    if isinstance(module, Stacked):
        return _with_tensors(module.module, [{name: each[i] for name, each in _tensors(module.module)}], stacked=False)
    if isinstance(module, Stackable):
        return _with_tensors(module, [{name: each[i] for name, each in _tensors(module)}], stacked=False)
    copy = deepcopy(module)
    for name, child in module.named_children():
        copy._modules[name] = _member(child, i)
    return copy


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


@torch.no_grad()
def _with_tensors(module: M, tensors: list[dict[str, Tensor]], stacked: bool = True) -> M:
    """Copy a module with the parameters and buffers of all members, stacked, or with those of a single member."""
    copy = deepcopy(module)
    new = {
        name: torch.stack([each[name] for each in tensors]) if stacked else tensors[0][name].clone()
        for name in tensors[0]
    }
    names = {id(old): name for name, old in _tensors(copy)}
    for part in copy.modules():
        for leaf, old in [*part._parameters.items(), *part._buffers.items()]:
            if old is None:
                continue
            value = new[names[id(old)]]  # tied parameters have one name, so they stay tied
            if isinstance(old, nn.Parameter) and not isinstance(value, nn.Parameter):
                value = new[names[id(old)]] = nn.Parameter(value, old.requires_grad)
            setattr(part, leaf, value)
    return copy
