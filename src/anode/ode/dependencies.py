"""What a right-hand side depends on besides its arguments, from the graph that autograd records of it."""

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
    """What a solve is differentiated for, besides its start and times.

    Attributes:
        params: Tensors that need a gradient.
        computed: Whether f also uses results computed from something that needs one, which cannot be named.
        saved: How many bytes autograd keeps of an evaluation, if that was found out.
    """

    params: tuple[Tensor, ...]
    computed: bool = False
    saved: int | None = None


def captured_tensors(
    f: Rate, t: Tensor, y: Tensor, known: Sequence[Tensor]
) -> tuple[list[Tensor], bool, Tensor, int | None]:
    """Find what f depends on besides its arguments, from the graph that autograd records of one evaluation.

    Args:
        f: The right-hand side.
        t, y: Where to evaluate it.
        known: Tensors already known.

    Returns:
        The leaves (parameters, mostly) that are not among ``known``, and whether f also uses results computed from
        something that needs a gradient, which cannot be named from the outside; the value of f; and how many bytes
        autograd has kept to differentiate it, ``None`` if it does not tell.
    """
    with torch.enable_grad():
        birth = torch.ones((), requires_grad=True).clone().grad_fn._sequence_nr()  # type: ignore[union-attr]
        y = y.view_as(y)  # so that f's own use of this very tensor, if any, is told from its use of the argument
        slope = f(t, y)
    leaves, computed = dependencies(slope, [t, y, *known], birth)
    return leaves, computed, slope, _bytes_kept(slope, birth)


def _bytes_kept(slope: Tensor, birth: int) -> int | None:
    """How many bytes autograd keeps of what was computed after ``birth``; ``None`` if this torch does not tell.

    Hooks for saved tensors would tell too, but torch.func refuses to work under them.
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
                x = getattr(saved, "data", slope)  # what a hook inside f has packed may be anything
                if x is slope:
                    return None
                if isinstance(x, Tensor) and not (x.is_leaf and x.requires_grad):  # parameters are there anyway
                    kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return sum(kept.values())


@lru_cache(maxsize=256)
def _saved_names(node: type) -> tuple[str, ...]:
    """The attributes by which a node of autograd's graph shows what it has saved."""
    return tuple(name for name in dir(node) if name.startswith("_raw_saved_"))


def refuse_others(f: Rate, params: Sequence[Tensor]) -> Rate:
    """f, with an error where autograd records that it depends on a leaf that is not among ``params``."""

    def checked(t: Tensor, y: Tensor) -> Tensor:
        slope = f(t, y)
        if torch.is_grad_enabled() and dependencies(slope, (t, y, *params))[0]:
            raise RuntimeError(
                "params: during the solve f came to depend on a tensor that it did not use at the start, and its "
                'gradient would be lost; pass all such tensors in params=, or use gradient="stored"'
            )
        return slope

    return checked


_LeafNode: Any = type(torch.ones((), requires_grad=True).clone().grad_fn.next_functions[0][0])  # type: ignore[union-attr]


def dependencies(slope: Tensor, known: Sequence[Tensor], birth: int = -1) -> tuple[list[Tensor], bool]:
    """The leaves a result depends on that are not known, and whether it depends on results older than ``birth``."""
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
