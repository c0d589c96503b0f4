"""Many models as one: parameters stacked along a member dimension, computed together, independent of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from anode.models.augment import Augment
from anode.models.description import configuration
from anode.models.flow import Flow
from anode.models.layers import Stackable
from anode.models.model import Model, members_in
from anode.models.randomness import apart
from anode.ode.field import Field

M = TypeVar("M", bound=nn.Module)


def stack(models: Sequence[M]) -> M:
    """One model that computes what several of the same shape do, side by side.

    It has the class and the parts of its members. Its parameters have a member dimension in front, and it takes inputs
    ``[members, batch, ...]``. Each member has its own step size in the solver, so what it computes does not depend on
    the others. Modules of your own are mapped over the members with ``torch.vmap``.

    Args:
        models: At least one model, flow, field or other module; all built with the same arguments.

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
    if members_of(first) is not None:
        raise ValueError("models: takes models by themselves, got stacks; unstack them first")
    alike, kinds = configuration(first), _kinds(first)
    for model in models[1:]:
        if configuration(model) != alike or _kinds(model) != kinds:
            raise ValueError(f"models: takes models built and frozen alike, got\n{first!r}\nand\n{model!r}")
        for one, other in zip(first.modules(), model.modules(), strict=True):
            if name := _differing(one, other):
                was = f"{type(one).__name__}.{name}"
                raise ValueError(f"models: takes models built alike, got two that differ in {was}")
    stacked = _together(models)
    if len(list(stacked.parameters())) != len(list(first.parameters())):
        raise ValueError("models: takes models whose parts share no parameters with each other, got some that do")
    return stacked


def unstack(model: M) -> list[M]:
    """The members of a stacked model, each a model by itself, with copies of its parameters."""
    members = members_of(model)
    if members is None:
        raise ValueError("model: takes a model made by anode.stack, got one by itself")
    return [_member(model, i) for i in range(members)]


def seeded(build: Callable[[], M], seeds: Iterable[int]) -> M:
    """A stack of models, each built right after ``torch.manual_seed`` with one of the seeds.

    Args:
        build: Makes a model, with torch's global random numbers.
        seeds: One per member.

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


def members_of(module: nn.Module) -> int | None:
    """How many members are stacked in a module; ``None`` for one by itself."""
    return module.members if isinstance(module, Model | Field | Stacked) else members_in(module)


class Stacked(nn.Module):
    """Modules that know of no members, mapped over with ``torch.vmap``.

    Args:
        modules: The modules, one per member.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.module = _with_tensors(modules[0], [dict(_tensors(module)) for module in modules])
        self._members = len(modules)

    @property
    def members(self) -> int:
        """How many modules are stacked."""
        return self._members

    def forward(self, *inputs: Any) -> Any:
        """What each member makes of its part of the inputs, whose first dimension is that of members."""
        return self.call("forward", *inputs)

    def call(self, method: str, *inputs: Any) -> Any:
        """A method of each member on its part of the inputs; numbers are the same for all members."""
        named = _Method(self.module, method)
        tensors = {f"module.{name}": tensor for name, tensor in _tensors(self.module)}
        dims = tree_map(lambda x: 0 if x.ndim else None, inputs)
        mapped = torch.vmap(lambda own, given: functional_call(named, own, given), (0, dims), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):  # torch cannot map over the fused kernels of attention
            return mapped(tensors, inputs)


class _Method(nn.Module):
    """A method of a module as a module of its own, which ``functional_call`` can call."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.module, self.method)(*inputs)


class StackedField(Stacked, Field):
    """Fields of one shape; each sees a time of its own, as it would alone."""

    def forward(self, t: Tensor, h: Any) -> Any:
        """The derivative of h, [members, ...], at time t, which is one number, or one per member."""
        return self.call("forward", t.reshape(-1) if t.numel() == self.members else t, h)


class StackedAugment(Stacked, Augment):
    """Augmentations of one shape."""

    def forward(self, x: Tensor) -> Any:
        return self.call("forward", x)

    def remove(self, h: Any) -> Tensor:
        found: Tensor = self.call("remove", h)
        return found


def _together(parts: Sequence[M], *, is_field: bool = False) -> M:
    """Parts of several models, built alike, as one."""
    first = parts[0]
    if isinstance(first, Stackable):
        return _with_tensors(first, [dict(_tensors(part)) for part in parts])
    if isinstance(first, Model | nn.ModuleList | nn.ModuleDict):
        if first._parameters or first._buffers:
            takes = "a Model whose parameters are those of its parts, to be stacked"
            raise ValueError(f"models: takes {takes}, got {type(first).__name__}, which has {min(first._parameters)!r}")
        stacked = deepcopy(first)
        for name, _ in first.named_children():
            children = [part.get_submodule(name) for part in parts]
            stacked._modules[name] = _together(children, is_field=isinstance(first, Flow) and name == "field")
        return stacked
    kind = StackedField if is_field or isinstance(first, Field) else Stacked
    kind = StackedAugment if isinstance(first, Augment) else kind
    return kind(parts)  # type: ignore[return-value]


def _member(module: nn.Module, i: int) -> Any:
    """One member of a stacked module."""
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


def _differing(one: nn.Module, other: nn.Module) -> str:
    """The name of a plain attribute, or of a tensor that is no buffer, in which two modules differ; or nothing."""
    ours, theirs = one.__dict__, other.__dict__
    for name in ours.keys() & theirs.keys():
        mine, its = ours[name], theirs[name]
        if name.startswith("_") or not isinstance(mine, str | int | float | tuple | Tensor):
            continue
        same = torch.equal(mine, its) if isinstance(mine, Tensor) and isinstance(its, Tensor) else mine == its
        if not same:
            return name
    return ""


def _kinds(model: nn.Module) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in _tensors(model)}


@torch.no_grad()
def _with_tensors(module: M, tensors: list[dict[str, Tensor]], stacked: bool = True) -> M:
    """A copy of a module with other parameters and buffers: those of all members, stacked, or those of the only one."""
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
            value = new[names[id(old)]]  # tied ones stay tied, as both have one name
            if isinstance(old, nn.Parameter) and not isinstance(value, nn.Parameter):
                value = new[names[id(old)]] = nn.Parameter(value, old.requires_grad)
            setattr(part, leaf, value)
    return copy
