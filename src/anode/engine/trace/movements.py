"""ATen's operations that move elements without computing. Torch moves their codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anode.engine.trace.calls import mapped
from anode.engine.trace.events import Event, Ref, leaves
from anode.engine.trace.operations import AtenOp
from anode.engine.trace.shadow import ZERO

# By name, the places of arguments that are indices.
MOVEMENTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        [
            "cat",
            "diag_embed",
            "alias_copy",
            "detach_copy",
            "stack",
            "flip",
            "roll",
            "repeat",
            "tril",
            "triu",
            "tril_",
            "triu_",
            "zero_",
            "constant_pad_nd",
            "select_backward",
            "slice_backward",
            "diagonal_backward",
            "select_scatter",
            "slice_scatter",
            "diagonal_scatter",
            "view_copy",
            "expand_copy",
            "permute_copy",
            "transpose_copy",
            "t_copy",
            "select_copy",
            "slice_copy",
            "squeeze_copy",
            "unsqueeze_copy",
            "unbind_copy",
            "split_copy",
            "split_with_sizes_copy",
            "pixel_shuffle",
            "rot90",
            "diagonal_copy",
            "unfold_copy",
            "as_strided_copy",
            "unsafe_split",
            "unsafe_split_with_sizes",
            "_reshape_copy",
        ],
        (),
    ),
    "index": (1,),
    "_unsafe_index": (1,),
    "index_select": (2,),
    "gather": (2,),
    "take": (1,),
    "index_put": (1,),
    "index_put_": (1,),
    "_index_put_impl_": (1,),
    "_unsafe_index_put": (1,),
    "scatter": (2,),
    "scatter_": (2,),
    "index_copy": (2,),
    "index_copy_": (2,),
}


def move(
    event: Event,
    codes: Callable[[Ref], Tensor],
    indices: Callable[[Ref], Tensor],
    view: Callable[[Ref], Tensor],
    op: AtenOp,
) -> None:
    """Apply to the codes what the operation did to the elements.

    Args:
        event: The operation.
        codes: Returns the codes of a tensor to read.
        indices: Returns the values of a tensor of indices.
        view: Returns the codes of a tensor to write.
        op: The operation, for messages.
    """
    _check(event, op)
    places = MOVEMENTS[event.name]
    in_place = event.function._schema.is_mutable
    args: list[Any] = []
    for place, argument in enumerate(event.args):
        read = indices if place in places else view if in_place and place == 0 else codes
        args.append(mapped(argument, Ref, read))
    kwargs = {name: value for name, value in event.kwargs.items() if name != "out"}
    if "index_put" in event.name and len(args) > 3 and args[3]:
        _check_distinct(args, op)
        args[3] = False
    try:
        result = event.function(*args, **kwargs)
    except RuntimeError:
        raise op.missing() from None
    if not in_place:
        for ref, moved in zip(event.outs, leaves(result), strict=True):
            if ref is not None:
                view(ref).copy_(moved)


def _check(event: Event, op: AtenOp) -> None:
    """Refuse operations that also compute: they accumulate, or pad with a number other than 0."""
    given = [*event.args, *event.kwargs.values()]
    overload = event.function._overloadname
    if event.name == "constant_pad_nd" and len(given) > 2 and given[2] != 0:
        raise op.missing()
    if overload in ("value", "reduce", "value_reduce", "out"):
        raise op.missing()


def _check_distinct(args: list[Any], op: AtenOp) -> None:
    """Refuse to accumulate, unless the target is 0 and every element is added to once."""
    target, places, added = args[:3]
    times = torch.zeros_like(target).index_put(places, torch.ones_like(added), accumulate=True)
    if (times > 1).any() or (target[times > 0] != ZERO).any():
        raise op.missing()
