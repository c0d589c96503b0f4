"""Trace a right-hand side once, so that it can run in compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.engine.program.operation import Rows
from anode.engine.program.program import Builder
from anode.engine.trace.compare import Collision, compare
from anode.engine.trace.lowering import Lowering
from anode.engine.trace.record import Recording, Untraceable, record
from anode.engine.trace.replay import Derived
from anode.engine.trace.verify import passes_gradients
from anode.ode.tools import in_functorch

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
TIMES = (0.37, 0.61)


@dataclass(frozen=True)
class Traced:
    """A traced right-hand side.

    Attributes:
        tensors: The existing tensors that the program reads (parameters, buffers, closures).
        derived: The tensors among the program's that f computes from existing ones alone; ``None`` if there are none.
        sources: The existing tensors that those are computed from.
        baked: Existing integer and boolean tensors whose values are part of the program, with these values.
        slope: The ids of the derivative, flat, in the order of the state's features.
        passes_gradients: Whether gradients of f are those of its values. If f stops gradients, with `detach` or
            ``no_grad``, the program's gradients are others than autograd's.
    """

    tensors: tuple[Tensor, ...]
    derived: Derived | None
    sources: tuple[Tensor, ...]
    baked: tuple[tuple[Tensor, Tensor], ...]
    slope: Rows
    passes_gradients: bool

    def inputs(self) -> tuple[Tensor, ...]:
        """All tensors of the program, in the builder's order. Autograd follows how derived ones are computed."""
        return self.tensors if self.derived is None else self.derived.filled(self.tensors)

    def is_current(self) -> bool:
        """Whether no tensor has changed whose values are part of the program."""
        return all(torch.equal(x, values) for x, values in self.baked)  # versions do not tell of x.data or x.numpy()


def trace(
    f: Callable[..., Any], states: tuple[Tensor, ...], is_tuple: bool, batch_dims: int, t: Tensor, builder: Builder
) -> Traced:
    """Trace a right-hand side and build its program.

    f is called twice, on a few points each time, and has to do the same both times.

    Args:
        f: The right-hand side, called as ``f(t, y)``.
        states: Examples of the state's components, on the CPU, all of one dtype.
        is_tuple: Whether f takes and returns a tuple of them.
        batch_dims: How many leading dimensions are a batch: 0 or 1.
        t: An example of the time; of one dimension for each of the state's if every point has its own.
        builder: Where the program goes.

    Returns:
        What the program needs to be run.

    Raises:
        Untraceable: If f cannot be compiled. The message is a fragment of a sentence.
    """
    _check_surroundings()
    recording, literal = _recorded(f, states, is_tuple, batch_dims, t)
    passes = passes_gradients(recording)
    lowering = Lowering(recording, literal, builder)
    slope = lowering.run()
    captured = lowering.captured()
    return Traced(captured.tensors, captured.derived, captured.sources, captured.baked, slope, passes)


def _check_surroundings() -> None:
    if in_functorch():
        raise Untraceable("a transform of torch.func follows the computation")
    if torch.is_autocast_enabled("cpu"):
        raise Untraceable("autocast is enabled")


def _recorded(
    f: Callable[..., Any], states: tuple[Tensor, ...], is_tuple: bool, batch_dims: int, t: Tensor
) -> tuple[Recording, set[int]]:
    """Record f twice: the first recording, and the storages that f makes anew on each call."""
    for batches in _batch_sizes(f, states, batch_dims):
        # Recordings keep their memory alive: otherwise the second call may use the first one's addresses again.
        first, second = [
            record(f, _examples(states, batch, call), is_tuple, batch, _time(t, batch, TIMES[call]))
            for call, batch in enumerate(batches)
        ]
        try:
            compare(first, second)
        except Collision:
            continue
        pairs = enumerate(zip(first.storages, second.storages, strict=True))
        return first, {i for i, (a, b) in pairs if a.origin == "outside" and a.identity != b.identity}
    raise Untraceable("the dimensions of f cannot be told from the batch")


def _batch_sizes(f: Callable[..., Any], states: tuple[Tensor, ...], batch_dims: int) -> Iterator[tuple[int, int]]:
    """Pairs of batch sizes that differ from the sizes around."""
    if batch_dims == 0:
        yield 0, 0
        return
    sizes = {n for x in states for n in (*x.shape[1:], x[:1].numel())}
    if isinstance(f, nn.Module):
        sizes |= {n for x in f.parameters() for n in x.shape}
    primes = [p for p in PRIMES if all(n % p for n in sizes if n)]
    yield from list(zip(primes[::2], primes[1::2], strict=False))[:4]


def _examples(states: tuple[Tensor, ...], batch: int, seed: int) -> tuple[Tensor, ...]:
    """Small states near the given ones. torch's random numbers are left alone."""
    draw = np.random.default_rng(seed)
    result = []
    for x in states:
        rows = x.detach()
        if batch:
            rows = rows[torch.arange(batch) % len(rows)] if len(rows) else rows.new_zeros(batch, *rows.shape[1:])
        noise = torch.from_numpy(draw.uniform(0.01, 0.1, tuple(rows.shape))).to(rows.dtype)
        result.append((rows * (1 + noise) + noise * (rows == 0)).contiguous().requires_grad_())
    return tuple(result)


def _time(t: Tensor, batch: int, later: float) -> Tensor:
    """A time near the given one; one for each point if every point has its own."""
    t = t.detach() + later
    return (t.expand(batch, *t.shape[1:]) if t.ndim else t).clone().requires_grad_()
