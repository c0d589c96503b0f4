"""Find the tensors that a right-hand side depends on besides its arguments, from its autograd graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anode.ode.field import Rate


@dataclass(frozen=True)
class Dependencies:
    """What to differentiate a solve with respect to, besides the initial state and the times.

    Attributes:
        params: Tensors that require a gradient.
        computed: Whether f also uses tensors computed from others that require a gradient. Autograd's graph does not
            give access to them.
        saved: Number of bytes that autograd keeps per evaluation; ``None`` if unknown.
    """

    params: tuple[Tensor, ...]
    computed: bool = False
    saved: int | None = None


def captured_tensors(
    f: Rate, t: Tensor, y: Tensor, known: Sequence[Tensor]
) -> tuple[list[Tensor], bool, Tensor, int | None]:
    """Evaluate f under autograd and find the tensors that it depends on besides its arguments.

    Args:
        f: The right-hand side.
        t, y: Where to evaluate it.
        known: Tensors that are already known.

    Returns:
        A tuple of the leaves (mostly parameters) that are not in ``known``; whether f also uses tensors computed from
        others that require a gradient; the value of f; and the number of bytes that autograd keeps for the backward
        pass, ``None`` if unknown.
    """
    with torch.enable_grad():
        birth = torch.ones((), requires_grad=True).clone().grad_fn._sequence_nr()  # type: ignore[union-attr]
        y = y.view_as(y)  # to distinguish the argument from other uses of the same tensor in f
        slope = f(t, y)
    leaves, computed = dependencies(slope, [t, y, *known], birth)
    return leaves, computed, slope, _bytes_kept(slope, birth)


def _bytes_kept(slope: Tensor, birth: int) -> int | None:
    """Return the number of bytes that autograd keeps of nodes created after ``birth``; ``None`` if unknown.

    Hooks for saved tensors would report it too, but torch.func does not work under them.
    """
    kept: dict[int, int] = {}
    visited, todo = set(), [slope.grad_fn]
    while todo:
        node: Any = todo.pop()
        if node is None or node in visited or type(node) is _LeafNode or node._sequence_nr() < birth:
            continue
        visited.add(node)
        todo.extend(parent for parent, _ in node.next_functions)
        for name in _saved_names(node.__class__):
            found = getattr(node, name)
            for saved in found if isinstance(found, tuple) else (found,):
                x = getattr(saved, "data", slope)  # a hook inside f may have packed an object of any type
                if x is slope:
                    return None
                if isinstance(x, Tensor) and not (x.is_leaf and x.requires_grad):  # parameters take no extra memory
                    try:
                        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
                    except RuntimeError:  # sparse tensors have no storage, and those of torch.func give no access
                        return None
    return sum(kept.values())


@lru_cache(maxsize=256)
def _saved_names(node: type) -> tuple[str, ...]:
    """Return the names of the attributes of an autograd node that hold its saved tensors."""
    return tuple(name for name in dir(node) if name.startswith("_raw_saved_"))


def refuse_others(f: Rate, params: Sequence[Tensor]) -> Rate:
    """Return f with a check that raises ``RuntimeError`` if it depends on a leaf that is not in ``params``."""

    def checked(t: Tensor, y: Tensor) -> Tensor:
        slope = f(t, y)
        if torch.is_grad_enabled() and dependencies(slope, (t, y, *params))[0]:
            raise RuntimeError(
                "params: f depends on a tensor that it did not use at the start of the solve, and its gradient would "
                'be lost; pass all tensors that f uses in params=, or use gradient="stored"'
            )
        return slope

    return checked


_LeafNode: Any = type(torch.ones((), requires_grad=True).clone().grad_fn.next_functions[0][0])  # type: ignore[union-attr]


def dependencies(slope: Tensor, known: Sequence[Tensor], birth: int = -1) -> tuple[list[Tensor], bool]:
    """Return the unknown leaves that a tensor depends on, and whether it depends on nodes older than ``birth``."""
    seen = {id(tensor) for tensor in known}
    if slope.grad_fn is None:
        return ([slope], False) if slope.requires_grad and id(slope) not in seen else ([], False)
    leaves: list[Tensor] = []
    computed = False
    visited = {tensor.grad_fn for tensor in known}
    todo: list[Any] = [slope.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if type(node) is _LeafNode:
            leaf = node.variable
            if id(leaf) not in seen:
                seen.add(id(leaf))
                leaves.append(leaf)
        elif birth >= 0 and node._sequence_nr() < birth:
            computed = True
        else:
            todo.extend(parent for parent, _ in node.next_functions)
    return leaves, computed
