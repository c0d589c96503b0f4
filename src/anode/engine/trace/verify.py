"""Check whether a recording reproduces the values and gradients of f."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from anode.engine.trace.events import Recording, Untraceable
from anode.engine.trace.replay import Recipe, needed


def passes_gradients(recording: Recording) -> bool:
    """Run a recording again and compare with what f returned.

    A recording does not show where f stops gradients (`detach`, ``no_grad``, ``autograd.grad`` without a graph). Its
    program then has other gradients than f.

    Returns:
        Whether the gradients of f are those of its values.

    Raises:
        Untraceable: If the values differ, because f does not compute with torch operations alone.
    """
    events = needed(recording.events, {x.storage for x in recording.results})
    given = tuple(zip((*recording.inputs, *recording.context), recording.given, strict=True))
    outside = tuple(pair for storage in recording.storages for pair in storage.seen.items())
    recipe = Recipe((*given, *outside), (), tuple((e, not e.reads) for e in events), recording.results)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            again = recipe.compute({})
    except RuntimeError as error:
        raise Untraceable("f cannot be repeated from its recording") from error
    if not _close(again, recording.returned):
        raise Untraceable("f computes with other means than torch's operations")
    if recording.stops_gradients:  # which may not show here: a straight-through estimator's do only where it clamps
        return False
    leaves = [x for _, x in (*given, *outside) if x.requires_grad]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            ours, theirs = _pulled_back(again, leaves), _pulled_back(recording.returned, leaves)
    except RuntimeError:  # f has freed its graph
        return False
    return _close(ours, theirs)


def _close(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Whether tensors are equal up to rounding, because sums may have another order."""
    for x, y in zip(ours, theirs, strict=True):
        scale = float(torch.nan_to_num(y.detach(), 0.0, 0.0, 0.0).abs().max()) if y.numel() else 0.0
        if not torch.allclose(x, y, rtol=1e-4, atol=1e-6 * scale, equal_nan=True):
            return False
    return True


def _pulled_back(results: Sequence[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a weighted sum. The weights differ, so that nothing cancels."""
    followed = [x for x in results if x.requires_grad]
    zeros = [torch.zeros_like(x) for x in leaves]
    if not followed or not leaves:
        return zeros
    weights = [torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape) for x in followed]
    # Given as `grad_outputs`, the weights would make torch import its compiler.
    total = torch.stack([(x * w).sum() for x, w in zip(followed, weights, strict=True)]).sum()
    with _unnoticed(leaves):
        found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
    return [zero if x is None else x for x, zero in zip(found, zeros, strict=True)]


@contextmanager
def _unnoticed(leaves: list[Tensor]) -> Iterator[None]:
    """Run no hooks of the tensors, and store no gradient in those with ``retain_grad``."""
    hooked = [(x._backward_hooks, dict(x._backward_hooks)) for x in leaves if x._backward_hooks]
    retained = [(x, x.grad) for x in leaves if x.retains_grad]
    for hooks, _ in hooked:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in hooked:
            hooks.update(before)
        for x, gradient in retained:
            x.grad = gradient
