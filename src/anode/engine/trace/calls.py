"""Record which torch functions a right-hand side calls, and what it asks of tensors.

A recording of ATen operations does not show this. f may ask for the number of points, or whether a tensor is
contiguous, and compute something else if the answer differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, GetSetDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anode.engine.trace.modes import under
from anode.engine.watch.rules import is_clean

DETACHING = (Tensor.detach, Tensor.detach_, torch.detach, torch.detach_, Tensor.data.__get__)  # type: ignore[attr-defined]
"""Functions whose results pass no gradients."""
SIZES = frozenset(["shape", "size", "__len__", "numel", "nbytes"])
CIRCUMSTANCES = frozenset(
    [
        *("is_contiguous", "stride", "storage_offset", "_is_view", "_base", "_version"),
        *("requires_grad", "is_leaf", "grad_fn", "retains_grad", "output_nr"),
    ]
)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
STEPWISE = frozenset(["bucketize", "searchsorted", *COMPARISONS, *(f"__{name}__" for name in COMPARISONS)])
"""Functions that pass no gradients, whether or not their arguments were detached."""
QUESTIONS = SIZES | CIRCUMSTANCES
SWITCHES = frozenset(["requires_grad_", "_set_grad_enabled"])
"""Functions that f may call or not depending on the circumstances, for example to restore a state."""


Replacements = Sequence[tuple[Tensor, Tensor]]
"""Tensors that f reads, each with what it is to see in its place."""


def mapped(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply a function to everything of a type in nested lists and tuples, also named ones, which become plain."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return (list if isinstance(tree, list) else tuple)(mapped(branch, kind, change) for branch in tree)
    return tree


class Calls(TorchFunctionMode):
    """Records which functions are called while it is active.

    Args:
        replacements: Tensors to replace in all these calls.

    Attributes:
        made: The functions, each with the numbers and words that it was given. Questions are not among them.
        asked: The questions that f itself asked, by name: what torch's own code asks does not matter.
        detached: Whether f itself detached a tensor.
    """

    def __init__(self, replacements: Replacements = ()) -> None:
        super().__init__()
        self._replacements = {id(x): other for x, other in replacements}
        self.made: list[tuple[Any, tuple[Any, ...]]] = []
        self.asked: set[str] = set()
        self.detached = False
        self._cut: dict[int, Tensor] = {}  # what f has detached, by id; it matters if f computes with it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._replacements:
            given = args, list((kwargs or {}).values())
            args, values = mapped(given, Tensor, lambda x: self._replacements.get(id(x), x))
            kwargs = dict(zip(kwargs or {}, values, strict=True))
        name = _name(func)
        if name not in STEPWISE and name not in QUESTIONS:
            self.note(args, kwargs)
        if name not in QUESTIONS:
            if name not in SWITCHES:
                self.made.append((func, tuple(_plain((args, *(kwargs or {}).items())))))
        elif not isinstance(args[0], torch.nn.Parameter) and not _asked_by_torch(sys._getframe(1)):
            self.asked.add(name)
        if func is Tensor.__getitem__:
            return _item(*args)
        result = func(*args, **(kwargs or {}))
        if func in DETACHING:
            self._cut[id(result)] = result
        return result

    @property
    def differentiates(self) -> bool:
        """Whether f itself computes derivatives, for which it may need autograd to be recording."""
        return any(func is torch.autograd.grad for func, _ in self.made)

    def note(self, *used: Any) -> None:
        """Note that f computes with these, or returns them."""
        if self._cut and not self.detached:
            self.detached = any(id(x) in self._cut for x in _tensors(used))

    def repeated_by(self, other: Calls, points: tuple[int, int], detaching: bool = True) -> bool:
        """Whether a call with another number of points called the same; only numbers of points may differ.

        Args:
            other: The calls.
            points: The two numbers of points.
            detaching: Whether it matters what was detached. Where nothing needs a gradient, it does not.
        """
        m, n = points
        ours, theirs = ([each for each in x.made if detaching or each[0] not in DETACHING] for x in (self, other))
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(
            f == g and len(a) == len(b) and all(_same(p, q, m, n) for p, q in zip(a, b, strict=True))
            for (f, a), (g, b) in pairs
        )


def _name(func: Any) -> str:
    owner = getattr(func, "__self__", None)
    name: str = owner.__name__ if isinstance(owner, GetSetDescriptorType) else getattr(func, "__name__", "")
    return name


def _asked_by_torch(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") in ("torch.overrides", "torch._tensor"):
        frame = frame.f_back  # methods of tensors that are written in Python
    return frame is not None and is_clean(frame.f_globals.get("__name__"))


def _plain(tree: Any) -> Iterator[Any]:
    """Yield the numbers and words in nested arguments."""
    if isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from _plain(branch)
    elif isinstance(tree, (bool, int, float, str)):
        yield tree


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested arguments."""
    if isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from _tensors(branch)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, Tensor):
        yield tree


def _item(x: Tensor, index: Any) -> Tensor:
    """Return ``x[index]``. If an index is a tensor of one whole number, its value does not pass through Python."""
    given = index if isinstance(index, tuple) else (index,)
    places = [i for i, each in enumerate(given) if _is_whole_number(each)]
    others = (type(each) for i, each in enumerate(given) if i not in places)
    if len(places) != 1 or not all(kind in (int, slice, type(...), type(None)) for kind in others):
        return x[index]
    (place,) = places
    used = sum(each is not None and each is not ... for each in given)
    lengths = [x.ndim - used if each is ... else int(not isinstance(each, int)) for each in given[:place]]
    return x[(*given[:place], given[place].reshape(1), *given[place + 1 :])].squeeze(sum(lengths))


def _is_whole_number(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 0 and x.dtype in (torch.int64, torch.int32)


def _same(p: Any, q: Any, m: int, n: int) -> bool:
    counts = type(p) is int and type(q) is int and p * n == q * m
    return type(p) is type(q) and (counts or p == q or p != p)


def elsewhere(
    f: Callable[..., Any],
    states: Sequence[Tensor],
    is_tuple: bool,
    t: Tensor,
    context: Replacements = (),
    differentiates: bool = False,
) -> Iterator[tuple[Calls, bool]]:
    """Call f with the same values in tensors of another layout, and in tensors that require gradients.

    Yields what f calls, and whether anything needs a gradient.
    """

    def stored(x: Tensor) -> Tensor:
        turned = x.transpose(0, -1) if x.ndim else x
        apart = torch.stack([turned, turned], -1)[..., 1]
        return apart.transpose(0, -1) if x.ndim else apart

    def computed(x: Tensor) -> Tensor:
        return (x.requires_grad_() * 1).add_(0)

    for change, recording in ((stored, differentiates), (computed, True)):
        with torch.inference_mode(False), torch.set_grad_enabled(recording):
            y, time = tuple(change(x.detach()) for x in states), change(t.detach())
            changed = [(x, change(rows.detach())) for x, rows in context]
            calls = calls_of(f, time, y if is_tuple else y[0], recording, changed)
        yield calls, change is computed


def calls_of(
    f: Callable[..., Any], t: Tensor, y: Any, recording: bool | None = None, context: Replacements = ()
) -> Calls:
    """Call f, with autograd or without, and record what it calls. The default is as the solve was called."""
    calls, recording = Calls(context), torch.is_grad_enabled() if recording is None else recording

    def call() -> None:
        with torch.set_grad_enabled(recording):
            f(t, y)

    under((calls,), call)
    return calls
