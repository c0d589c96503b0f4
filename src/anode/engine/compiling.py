"""From a function of the user's to a field that the compiled engine takes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from anode.engine import native
from anode.engine.compiled import Compiled
from anode.engine.known import CHANGES, Kind, Known, first_of, memory_of
from anode.engine.program.program import Builder
from anode.engine.trace.record import Untraceable
from anode.engine.trace.tracing import trace
from anode.engine.watch.purity import observe
from anode.ode.problem import Problem

MOST_FEATURES = 512
"""The largest state without a batch that is taken as the features of one point."""


def known_of(problem: Problem) -> Known:
    """What is known of a problem's f, which may have to be found out first.

    To find out, f is evaluated at the start, and this evaluation is used whoever solves; then it is traced.
    """
    f, states = problem.f, components(problem)
    kind, memory = Kind.of(states, problem.packing.is_tuple, problem.plan.group_dims), memory_of(f)
    known = memory.find(f, kind, states)
    if known is not None:
        return known
    if memory.is_tired(kind):
        return Known(f, kind, CHANGES)
    known = Known(f, kind)
    # What is computed once and for all must not be taken for something that f does.
    _ = problem.now, problem.module_parameters, problem.own_derivative
    seen = observe(f, problem.start)
    if seen.obstacle:
        known.obstacle = seen.obstacle
    else:
        known.guard, known.counters = seen.guard, seen.counters
        _trace(known, problem, states)
    memory.keep(known)
    return known


def _trace(known: Known, problem: Problem, states: tuple[Tensor, ...]) -> None:
    """Find the program of a function, or why it has none."""
    counts = [counter.count() for counter in known.counters]
    for batch_dims in (1, 0):
        if why := unbatched(states, batch_dims, problem.plan.group_dims):
            known.obstacle = known.obstacle or why
            continue
        builder = Builder(sum(x.numel() if batch_dims == 0 else x[:1].numel() for x in states))
        t = problem.now.detach()[:1] if problem.plan.group_dims else problem.now.detach()
        try:
            known.traced = trace(known.f, states, problem.packing.is_tuple, batch_dims, t, builder)
        except Untraceable as error:
            known.obstacle = known.obstacle or str(error)
            continue
        if known.kind.recording and not known.traced.passes_gradients:
            known.obstacle = "f stops gradients, with detach or otherwise"
            break
        known.program = builder.finish(known.traced.slope)
        known.shapes = [x.shape for x in known.traced.tensors]
        known.obstacle, known.first = "", first_of(states) if batch_dims == 0 else None
        break
    for counter, count in zip(known.counters, counts, strict=True):
        counter.reset(count)  # a call that could not be recorded may have ended before it counted


def unbatched(states: tuple[Tensor, ...], batch_dims: int, group_dims: int) -> str:
    """Why some states cannot be taken as so many points with features of their own; nothing if they can."""
    if group_dims > batch_dims:
        return "features of one point have step sizes of their own"
    if batch_dims == 0 and sum(x.numel() for x in states) > MOST_FEATURES:
        return f"the state has no batch and more than {MOST_FEATURES} numbers"
    if batch_dims == 1 and (not all(x.ndim for x in states) or len({x.shape[0] for x in states}) > 1):
        return "the components of the state have no batch in common"
    if any(x.numel() == 0 for x in states):
        return "the state is empty"
    return ""


def components(problem: Problem) -> tuple[Tensor, ...]:
    """The components of the initial state."""
    state = problem.packing.unpack(problem.y0)
    return state if isinstance(state, tuple) else (state,)


def compiled(known: Known, problem: Problem) -> Compiled:
    """A known function as the engine takes it."""
    assert known.traced is not None
    assert known.program is not None
    tensors = known.traced.inputs()
    sizes: tuple[int, ...] = ()
    if known.kind.is_tuple:
        sizes = tuple(x.numel() if known.first is not None else x[:1].numel() for x in components(problem))
    given = {id(x) for x in tensors}
    sources = tuple(x for x in known.traced.sources if x.requires_grad and id(x) not in given)
    return Compiled(known.program, tensors, [True] * len(tensors), None, sizes, sources)


def is_tried(known: Known, problem: Problem, field: Compiled) -> bool:
    """Whether the program agrees with f at another time and state too, once for each number of points.

    f was traced with a few points, and may ask how many there are. What it does then may not show at the start.
    """
    points = 1 if known.first is not None else components(problem)[0].shape[0]
    if points in known.tried:
        return True
    times = problem.plan.times
    middle = times[0] + 0.37 * (times[-1] - times[0])
    y, plan = problem.y0.detach() * 0.98 + 0.01, replace(problem.plan, times=[middle, *times[1:]])
    there = replace(problem, y0=y, plan=plan, times=None)
    with torch.no_grad():
        slope = there.rate(problem.now.detach() + (middle - times[0]), y)
    for counter in known.counters:
        counter.advance(-1)
    if native.agrees(there, field, slope):
        known.tried.add(points)
        return True
    return False
