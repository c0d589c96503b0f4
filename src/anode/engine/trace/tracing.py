"""Trace a right-hand side once, so that it can run in compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anode.engine.program.operation import Rows
from anode.engine.program.program import Builder
from anode.engine.trace.calls import CIRCUMSTANCES, SIZES, Calls, elsewhere
from anode.engine.trace.compare import Collision, compare
from anode.engine.trace.events import Recording, Untraceable
from anode.engine.trace.lowering import Lowering
from anode.engine.trace.record import record
from anode.engine.trace.replay import Captured
from anode.engine.trace.verify import passes_gradients
from anode.ode.transforms import in_functorch

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
TIMES = (0.37, 0.61)


@dataclass(frozen=True)
class Numbers:
    """Whether f does the same with other numbers of points than in the trace.

    Attributes:
        calls: The calls of f in the trace.
        points: The number of points in the trace.
        known: The other numbers that were tried, and whether f did the same.
    """

    calls: Calls
    points: int
    known: dict[int, bool] = field(default_factory=dict)

    def obstacle(self, points: int, call: Callable[[], Calls | None]) -> str:
        """Return why the program may not replace f for this number of points; empty if it may.

        Args:
            points: The number of points.
            call: Calls f with this many points, and returns ``None`` if that shows that f did something else. It is
                called once per number.
        """
        if points not in self.known:
            calls = call()
            self.known[points] = calls is not None and self.calls.repeated_by(calls, (self.points, points))
        alike = self.known[points]
        return "" if alike else f"f does not do the same with {points} points as with {self.points}"


@dataclass(frozen=True)
class Traced(Captured):
    """A traced right-hand side: the tensors of its program, and the following.

    Attributes:
        slope: The ids of the derivative, flat, in the order of the state's features.
        shapes: The shapes of what f returns for one point.
        passes_gradients: Whether gradients of f are those of its values. If f stops gradients, with `detach` or
            ``no_grad``, the program's gradients are others than autograd's.
        differentiates: Whether f itself computes derivatives, and may need autograd to be recording.
        numbers: For which numbers of points f does the same; ``None`` if it does not ask how many there are.
        context: The tensors with a row per point that the program reads as further features of the state.
        asks: Whether f asks how tensors are stored or differentiated, so that none can replace another.
    """

    slope: Rows
    shapes: tuple[tuple[int, ...], ...]
    passes_gradients: bool
    differentiates: bool
    numbers: Numbers | None = None
    context: tuple[Tensor, ...] = ()
    asks: bool = False

    def inputs(self, swaps: dict[int, Tensor]) -> tuple[Tensor, ...]:
        """Return all tensors of the program, in the builder's order. Autograd follows how derived ones are computed.

        Args:
            swaps: The tensors that replace traced ones, by the ids of the latter.
        """
        tensors = tuple(swaps.get(id(x), x) for x in self.tensors)
        return tensors if self.derived is None else self.derived.filled(tensors, swaps)

    def existing(self) -> Iterator[Tensor]:
        """Yield the tensors that existed before f was called."""
        yield from self.tensors
        yield from self.sources
        yield from (x for x, _ in self.baked)

    def rows(self, swaps: dict[int, Tensor]) -> tuple[int, int]:
        """Return how many rows tensors with a row per point had in the trace, and have now; 0 if there are none."""
        first = self.context[0] if self.context else None
        return (0, 0) if first is None else (len(first), len(swaps.get(id(first), first)))

    def fixed(self) -> Iterator[Tensor]:
        """Yield the tensors that no other tensor can replace."""
        yield from (x for x, _ in self.baked)
        yield from (x for group in self.shared for x, _ in group.alive())

    def is_current(self, swaps: dict[int, Tensor]) -> bool:
        """Whether all else than the values of tensors is as it was in the trace.

        This concerns tensors whose values are part of the program, shared memory, and the layout of sources.
        """
        if not all(group.holds() for group in self.shared):
            return False
        if self.derived is not None and not self.derived.recipe.fits(swaps):
            return False
        return all(torch.equal(x, values) for x, values in self.baked)  # versions do not tell of x.data or x.numpy()


def trace(
    f: Callable[..., Any],
    states: tuple[Tensor, ...],
    is_tuple: bool,
    batch_dims: int,
    t: Tensor,
    builder: Builder,
    is_map: bool = False,
    context: tuple[Tensor, ...] = (),
) -> Traced:
    """Trace a right-hand side and build its program.

    This calls f twice, on a few points each time. f must do the same both times.

    Args:
        f: The right-hand side, called as ``f(t, y)``.
        states: Examples of the state's components, on the CPU, all of one dtype.
        is_tuple: Whether f takes and returns a tuple of them.
        batch_dims: Number of leading batch dimensions: 0 or 1.
        t: An example of the time; of one dimension for each of the state's if every point has its own.
        builder: The builder that receives the program.
        is_map: Whether f maps points to results of any size, instead of to slopes.
        context: Tensors that f reads and that may have a row per point of the solve.

    Returns:
        What the program needs to be run.

    Raises:
        Untraceable: If f cannot be compiled. The message is a fragment of a sentence.
    """
    _check_surroundings()
    recording, literal = _recorded(f, states, is_tuple, batch_dims, t, is_map, context)
    _check_circumstances(f, recording, is_tuple, context)
    passes = passes_gradients(recording)
    lowering = Lowering(recording, literal, builder)
    slope = lowering.run()
    captured = lowering.captured()
    read = tuple(x for x, is_read in zip(context, lowering.reads_context, strict=True) if is_read)
    numbers = Numbers(recording.calls, recording.batch) if recording.batch and recording.calls.asked & SIZES else None
    shapes = tuple(shape[batch_dims:] for shape in recording.shapes)
    asks = not recording.calls.asked.isdisjoint(CIRCUMSTANCES)
    return Traced(
        **vars(captured),
        slope=slope,
        shapes=shapes,
        passes_gradients=passes,
        differentiates=recording.calls.differentiates,
        numbers=numbers,
        context=read,
        asks=asks,
    )


def _check_circumstances(
    f: Callable[..., Any], recording: Recording, is_tuple: bool, context: tuple[Tensor, ...]
) -> None:
    """Check that f does the same if tensors have another layout or ``requires_grad``, if it queries these."""
    if recording.calls.asked.isdisjoint(CIRCUMSTANCES):
        return
    *states, t = recording.given[: len(recording.inputs)]
    rows = tuple(zip(context, recording.given[len(recording.inputs) :], strict=True))
    points, calls = (recording.batch, recording.batch), recording.calls
    try:
        others = elsewhere(f, states, is_tuple, t, rows, calls.differentiates)
        alike = all(calls.repeated_by(each, points, needed) for each, needed in others)
    except RuntimeError:
        alike = False
    if not alike:
        asked = ", ".join(sorted(recording.calls.asked & CIRCUMSTANCES))
        raise Untraceable(f"f computes something else if a tensor is stored or differentiated otherwise ({asked})")


def _check_surroundings() -> None:
    if in_functorch():
        raise Untraceable("a transform of torch.func follows the computation")
    if torch.is_autocast_enabled("cpu"):
        raise Untraceable("autocast is enabled")


def _recorded(
    f: Callable[..., Any],
    states: tuple[Tensor, ...],
    is_tuple: bool,
    batch_dims: int,
    t: Tensor,
    is_map: bool,
    context: tuple[Tensor, ...],
) -> tuple[Recording, set[int]]:
    """Record f twice. Return the first recording, and the storages that f makes anew on every call."""
    for batches in _batch_sizes(f, (*states, *context), batch_dims):
        # Recordings keep their memory alive: otherwise the second call may use the first one's addresses again.
        first, second = [
            record(
                f,
                _examples(states, batch, call),
                is_tuple,
                batch,
                _time(t, batch, TIMES[call]),
                is_map,
                [(x, _first_rows(x, batch)) for x in context],
            )
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
    """Yield pairs of batch sizes that divide no size of the state or of a parameter."""
    if batch_dims == 0:
        yield 0, 0
        return
    sizes = {n for x in states for n in (*x.shape[1:], x[:1].numel())}
    if isinstance(f, nn.Module):
        sizes |= {n for x in f.parameters() for n in x.shape}
    primes = [p for p in PRIMES if all(n % p for n in sizes if n)]
    yield from list(zip(primes[::2], primes[1::2], strict=False))[:4]


def _examples(states: tuple[Tensor, ...], batch: int, seed: int) -> tuple[Tensor, ...]:
    """Return small states near the given ones, without using torch's global random numbers."""
    draw = np.random.default_rng(seed)
    result = []
    for x in states:
        rows = _first_rows(x, batch).detach() if batch else x.detach()
        noise = torch.from_numpy(draw.uniform(0.01, 0.1, tuple(rows.shape))).to(rows.dtype)
        result.append((rows * (1 + noise) + noise * (rows == 0)).contiguous().requires_grad_())
    return tuple(result)


def _first_rows(x: Tensor, count: int) -> Tensor:
    """Return a copy of the first rows of a tensor, repeated if there are fewer."""
    rows = x.detach()
    rows = rows[torch.arange(count) % len(rows)] if len(rows) else rows.new_zeros(count, *rows.shape[1:])
    return rows.requires_grad_(x.requires_grad)


def _time(t: Tensor, batch: int, later: float) -> Tensor:
    """Return a time near the given one; one per point if every point has its own."""
    t = t.detach() + later
    return (t.expand(batch, *t.shape[1:]) if t.ndim else t).clone().requires_grad_()
