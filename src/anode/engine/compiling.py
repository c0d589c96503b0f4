"""Trace a user's function and compile it for the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from anode.engine.compiled import Compiled
from anode.engine.derivative import CompiledDerivative
from anode.engine.known import Kind, Known, Rate, first_sizes, forms
from anode.engine.mapped import Member, is_mapped, member_of
from anode.engine.memory import kin_of, memory_of
from anode.engine.program.program import Builder
from anode.engine.trace.calls import Calls, calls_of
from anode.engine.trace.events import Untraceable
from anode.engine.trace.tracing import Traced, trace
from anode.engine.watch.purity import observe, words
from anode.ode.field import parameters_of
from anode.ode.problem import Problem
from anode.ode.solution import as_tuple

MOST_FEATURES = 512
"""Maximum number of elements of a state without a batch dimension, which is treated as one point."""
TRACING = RLock()
LONGEST_WAIT = 10.0
"""Seconds to wait for another thread that traces."""


@dataclass(frozen=True)
class Example:
    """The state and time at which a function is traced.

    Attributes:
        states: The components of the state, of all members.
        is_tuple: Whether the state is a tuple.
        t: The time.
        group_dims: Number of leading dimensions of the state that have their own step sizes.
        is_map: Whether the function maps points to results of any size, instead of to slopes.
    """

    states: tuple[Tensor, ...]
    is_tuple: bool
    t: float
    group_dims: int = 0
    is_map: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of the states."""
        return Kind.of(self.states, self.is_tuple, self.group_dims, self.is_map)

    def of_member(self, f: Rate) -> Example:
        """Return the example for one member if f is mapped over members, otherwise itself."""
        if not is_mapped(f):
            return self
        states = tuple(x[0] if x.ndim and len(x) else x for x in self.states)
        return replace(self, states=states, group_dims=max(self.group_dims - 1, 0))


def known_of(problem: Problem) -> Known:
    """Return what is known of a problem's f, from memory or by tracing it.

    Before tracing, f is evaluated at the start of the solve. The solve uses this evaluation, whichever engine runs it.
    """

    def prepare() -> None:
        # Compute cached properties now, so that they are not mistaken for side effects of f.
        _ = problem.now, problem.module_parameters, problem.own_derivative

    f = problem.f
    known = recalled(problem)
    if known is not None:
        return known
    kin, example = kin_of(f), example_of(problem)
    known = None if kin is None else kin.tired(f, example.of_member(f).kind)
    if known is None:
        known = known_for(f, example, problem.start, prepare)
        if kin is not None:
            kin.keep(known)
    return known


def recalled(problem: Problem) -> Known | None:
    """Return what is known of a problem's f; ``None`` if nothing is, or if f has changed."""
    f = problem.f

    def kind() -> tuple[Kind, tuple[int, ...]]:
        example = example_of(problem).of_member(f)
        return example.kind, first_sizes(example.states)

    mode = is_mapped(f), torch.is_grad_enabled(), torch.get_default_dtype()
    found = problem.plan.prepared.get(mode, kind)  # cached because it is slow to compute
    known = memory_of(f).find(f, *found)
    if known is None and (kin := kin_of(f)) is not None:
        known = kin.find(f, *found)
    return known


def example_of(problem: Problem) -> Example:
    """Return the state and time at which a problem starts."""
    return Example(components(problem), problem.packing.is_tuple, problem.plan.times[0], problem.plan.group_dims)


def known_for(f: Rate, example: Example, start: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> Known:
    """Return what is known of a function, from memory or by tracing it.

    Args:
        f: The function.
        example: Where to trace it.
        start: Evaluates f once, to observe its side effects. Called only if nothing is known.
        prepare: Called before ``start``.
    """
    with _alone():
        example = example.of_member(f)
        kind, memory = example.kind, memory_of(f)
        known = memory.find(f, kind, first_sizes(example.states)) or memory.tired(f, kind)
        if known is not None:
            return known
        prepare()
        seen = observe(f, start)
        known = Known(f, kind, seen.obstacle, seen.guard, seen.counters)
        if not seen.obstacle:
            _trace(known, example)
        memory.keep(known)
        return known


@contextmanager
def _alone() -> Iterator[None]:
    """Let one thread trace at a time: if another called f meanwhile, its calls would count as side effects of this one.

    The wait is bounded, because an f could itself wait for the solve of another thread.
    """
    held = TRACING.acquire(timeout=LONGEST_WAIT)
    try:
        yield
    finally:
        if held:
            TRACING.release()


def _trace(known: Known, example: Example) -> None:
    """Trace a function and store its program, or the obstacle, in ``known``."""
    member = member_of(known.f)
    f, states = known.f if member is None else member.f, example.states
    counts = [counter.count() for counter in known.counters]
    context = () if member is not None or example.is_map else may_be_context(known, states)
    for batch_dims, rows in ((1, ()), *([(1, context)] if context else []), (0, ())):
        if why := unbatched(states, batch_dims, example.group_dims):
            known.obstacle = known.obstacle or why
            continue
        builder = Builder(sum(x.numel() if batch_dims == 0 else x[:1].numel() for x in states))
        t = torch.tensor(example.t, dtype=states[0].dtype)
        if example.group_dims:  # every point has its own time, which broadcasts against its features
            t = t.reshape((1,) * (2 if example.is_tuple else states[0].ndim))
        try:
            known.traced = trace(f, states, example.is_tuple, batch_dims, t, builder, example.is_map, rows)
            if member is not None:
                known.traced, known.shared = _of_all(known.traced, member)
            if changes := known.guard.undo():  # which f did not do for the number of points that was observed
                raise Untraceable(words(changes[0]))
        except Exception as error:  # Python can solve even if the engine has a defect
            known.guard.undo()
            failed = f"the engine failed to trace f: {type(error).__name__}: {error}"
            why = str(error) if isinstance(error, Untraceable) else failed
            known.obstacle = why if rows else known.obstacle or why
            continue
        if known.kind.recording and not known.traced.passes_gradients:
            known.obstacle = "f stops gradients, with detach or otherwise"
            break
        reached = known.guard.tensors
        if {id(x) for x in known.traced.existing()} - {id(x) for x in reached}:
            known.obstacle = (
                "f uses a tensor that was not found from it, so that another could take its place unnoticed"
            )
            break
        known.program = builder.finish(known.traced.slope)
        known.tensors = tuple(reached)
        known.forms = forms(known.tensors)
        known.members = known.f.members if member is not None else None  # type: ignore[attr-defined]
        used = {id(x) for x in (*known.traced.tensors, *known.traced.sources)}
        own = parameters_of(known.f) if isinstance(known.f, nn.Module) else ()
        known.unused = tuple(p for p in own if p.requires_grad and id(p) not in used)
        known.obstacle, known.first = "", first_sizes(states) if batch_dims == 0 else None
        break
    for counter, count in zip(known.counters, counts, strict=True):
        counter.reset(count)  # a call that could not be traced may have ended before it counted


def may_be_context(known: Known, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors that f can reach and that have as many rows as there are points.

    A function is traced on few points. If f combines such a tensor with the state, it has to be cut to as many rows.
    """
    if not states[0].ndim:
        return ()
    points, dtype = len(states[0]), states[0].dtype
    found = {id(x): x for x in known.guard.tensors if not isinstance(x, nn.Parameter) and x.dtype == dtype}
    return tuple(x for x in found.values() if x.ndim and len(x) == points and x.layout == torch.strided)


def _of_all(traced: Traced, member: Member) -> tuple[Traced, tuple[bool, ...]]:
    """Return the traced function of one member with the stacked tensors, and which of these all members share.

    Raises:
        Untraceable: If the members use something that is not stacked.
    """
    if traced.derived is not None:
        raise Untraceable("f computes tensors from its parameters alone, and its members are stacked")
    stacked = {id(own): all_of for own, all_of in member.pairs}
    memory = {all_of.untyped_storage()._cdata for _, all_of in member.pairs}
    for x, _ in traced.baked:
        if id(x) in stacked and bool((stacked[id(x)] != stacked[id(x)][:1]).any()):
            raise Untraceable("the members have different whole numbers or booleans in their buffers")
    used = (*traced.tensors, *(x for x, _ in traced.baked))
    if any(id(x) not in stacked and x.untyped_storage()._cdata in memory for x in used):
        raise Untraceable("f takes its parameters from elsewhere than from its module")
    tensors = tuple(stacked.get(id(x), x) for x in traced.tensors)
    of_all = [stacked.get(id(x), x) for x, _ in traced.baked]
    baked = tuple((x, x.detach().clone()) for x in of_all)  # of every member, since those of any may change
    return replace(traced, tensors=tensors, baked=baked), tuple(id(x) not in stacked for x in traced.tensors)


def unbatched(states: tuple[Tensor, ...], batch_dims: int, group_dims: int) -> str:
    """Return why states cannot be treated as points with features; empty if they can."""
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
    """Return the components of the initial state."""
    return as_tuple(problem.packing.unpack(problem.y0))


def compiled(known: Known, problem: Problem) -> Compiled:
    """Return the compiled field of a known function."""
    if known.compiled is not None and not known.swapped:
        return known.compiled
    return field_of(known, components(problem))


def field_of(known: Known, states: tuple[Tensor, ...]) -> Compiled:
    """Return the compiled field of a known function on such states."""
    assert known.traced is not None
    assert known.program is not None
    tensors = known.traced.inputs(known.swapped)
    shared = known.shared if known.members is not None else (True,) * len(tensors)
    sizes: tuple[int, ...] = ()
    if known.kind.is_tuple:
        states = Example(states, True, 0.0).of_member(known.f).states
        sizes = tuple(x.numel() if known.first is not None else x[:1].numel() for x in states)
    given = {id(x) for x in tensors}
    existing = (known.swapped.get(id(x), x) for x in known.traced.sources)
    sources = tuple(x for x in existing if x.requires_grad and id(x) not in given)
    derived = () if known.traced.derived is None else tuple(known.traced.derived.places)
    context = tuple(known.swapped.get(id(x), x) for x in known.traced.context)
    return Compiled(known.program, tensors, shared, known.members, sizes, known.unused, sources, derived, context)


def unlike(known: Known, f: Rate, example: Example) -> str:
    """Return an obstacle if f computes something else for the number of points in an example; empty if it does not."""
    traced = known.traced
    if traced is None or traced.numbers is None:
        return ""
    example, member = example.of_member(f), member_of(f)
    states = tuple(x.detach() for x in example.states)
    points = len(states[0])

    def call() -> Calls | None:
        t = torch.tensor(example.t, dtype=states[0].dtype)
        if example.group_dims:
            t = t.expand(points, *[1] * (1 if example.is_tuple else states[0].ndim - 1))
        counts = [counter.count() for counter in known.counters]
        one, y = f if member is None else member.f, states if example.is_tuple else states[0]
        with _alone():
            seen = observe(f, lambda: calls_of(one, t, y))
        for counter, count in zip(known.counters, counts, strict=True):
            counter.reset(count)
        return None if seen.obstacle or seen.guard.codes - known.guard.codes else seen.result

    return traced.numbers.obstacle(points, call)


def is_tried(known: Known, problem: Problem, field: Compiled) -> bool:
    """Whether the program agrees with f at another time and state too; checked once per shape of states.

    f was traced with a few points and may depend on their number in a way that is not visible at the start. For the
    same reason, this checks that f has changed nothing.
    """
    if problem.y0.shape in known.tried:
        return True
    plan = problem.plan
    span = plan.times[-1] - plan.times[0]  # infinite where an event ends the solve
    t = problem.now.detach() + 0.37 * (span if math.isfinite(span) else plan.direction)
    y = problem.y0.detach() * 0.98 + 0.01
    with torch.no_grad():
        slope = problem.rate(t, y)
    known.count(-1)
    again = recalled(problem)
    if again is None or again.guard is not known.guard or not CompiledDerivative(problem, field).agrees(t, y, slope):
        return False
    known.tried.add(problem.y0.shape)
    return True
