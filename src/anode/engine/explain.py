"""``anode.explain``, which shows which engine would solve an ODE, and the compiled program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anode.checks import check_function
from anode.engine import obstacles
from anode.engine.compiled import Compiled
from anode.engine.compiling import compiled, components, known_of
from anode.engine.dispatch import described, number_obstacle
from anode.engine.extension import extension
from anode.engine.known import Known
from anode.engine.naming import Names
from anode.engine.program.layout import Layout, Space
from anode.engine.program.listing import listing
from anode.engine.timeless import as_function
from anode.ode import inputs
from anode.ode.field import Field
from anode.ode.packing import Packing
from anode.ode.problem import Problem
from anode.ode.solution import Engine, State
from anode.ode.solver import DEFAULT
from anode.words import counted


@dataclass(frozen=True, repr=False)
class Explanation:
    """The result of :func:`anode.explain`. Print it.

    Attributes:
        engine: The engine that would solve the ODE, an :class:`anode.ode.solution.Engine`. ``engine.obstacle`` is the
            first reason why the compiled engine cannot; if it is not empty, the other attributes are.
        state: Which dimensions of the state are points, and which are features.
        tensors: Name and shape of each tensor that the program reads.
        computed: The tensors that f computes from other tensors only, with the names of these. torch computes them once
            per solve.
        context: Name and shape of each tensor that the program reads and that has a row per point.
        fixed: Tensors of integers and booleans, whose values are part of the program.
        counters: The attributes of f that count evaluations, and their increment per evaluation.
        lines: The program, see :func:`anode.engine.program.listing.listing`.
        operations: Number of operations per evaluation.
        pullback: Number of operations of the backward pass per evaluation.
        kept: Number of values kept per point and evaluation for the backward pass.
    """

    engine: Engine
    state: str = ""
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    computed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    context: tuple[tuple[str, tuple[int, ...]], ...] = ()
    fixed: tuple[str, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    lines: tuple[str, ...] = ()
    operations: int = 0
    pullback: int = 0
    kept: int = 0

    def __str__(self) -> str:
        if self.engine.obstacle:
            return f"engine    torch, which calls f as it is: {self.engine.obstacle}"
        computed = {name: f", which torch computes from {', '.join(of)}" for name, of in self.computed}
        facts = [
            ("engine", "native"),
            ("state", self.state),
            *(("reads", f"{name} {list(shape)}{computed.get(name, '')}") for name, shape in self.tensors),
            *(("reads", f"{name} {list(shape)}, which has a row per point") for name, shape in self.context),
            *(("fixed", f"{name}, whose values are part of the program") for name in self.fixed),
            *(("counts", f"{name}, by {step} per evaluation") for name, step in self.counters),
            ("costs", f"{counted(self.operations, 'operation')} per evaluation, {self.pullback} more for its gradient"),
            ("keeps", f"{counted(self.kept, 'number')} per point and evaluation for the gradient"),
            *(("program", line) for line in self.lines),
        ]
        shown, before = [], ""
        for name, text in facts:
            shown.append(f"{'' if name == before else name:<10}{text}")
            before = name
        return "\n".join(shown)

    __repr__ = __str__


def explain(f: Callable[[Tensor, Any], Any], y0: State, t: float = 0.0) -> Explanation:
    """Explain which engine would solve dy/dt = f(t, y), and show the program that the compiled engine would run.

    Nothing is solved, but f is called a few times, as at the start of its first solve. Attributes in which f counts its
    calls are restored. The explanation is valid for :func:`anode.solve` with default settings and for
    :func:`anode.odeint`. Other settings, such as an event, can prevent compilation too; ``Solution.engine`` reports
    these.

    Args:
        f: The right-hand side, see :func:`anode.solve`.
        y0: An initial state.
        t: The start time.

    Returns:
        An :class:`Explanation`. Print it.

    Raises:
        TypeError: If ``f`` is not a function, or ``y0`` is not a tensor or a tuple of tensors.
        ValueError: If ``y0`` is empty or not finite.

    Example:
        >>> import torch, anode
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        >>> def f(t, y):
        ...     return net(torch.cat([y, t.expand(len(y), 1)], dim=1))
        >>> anode.explain(f, torch.rand(64, 2))
        engine    native
        state     points of 2 features, float32; dimension 0 of y0 counts the points
        reads     net.0.bias [16]
                  net.0.weight [16, 3]
                  net.2.bias [2]
                  net.2.weight [2, 16]
        costs     2 operations per evaluation, 2 more for its gradient
        keeps     16 numbers per point and evaluation for the gradient
        program   v1 (16) = tanh(net.0.weight @ cat(y, t) + net.0.bias)
                  dy (2) = net.2.weight @ v1 + net.2.bias
        >>> anode.explain(lambda t, y: y * torch.rand(()), torch.rand(64, 2))
        engine    torch, which calls f as it is: f draws random numbers (aten.rand)
    """
    check_function("f", f, "a function f(t, y)")
    problem = _problem(f, y0, t)
    obstacle = obstacles.obstacle(problem, DEFAULT.gradient_method)
    if obstacle:
        return Explanation(Engine(obstacle))
    field = described(problem)
    if field is not None:
        names = Names(f)
        return _explained(field, [names.of(x) for x in field.tensors], problem, batched=True)
    known = known_of(problem)
    if not known.guard.holds():  # this call of f has made something that others will use, such as a layer
        problem = _problem(f, y0, t)
        known = known_of(problem)
    if problem.slope is not None:  # f was called once more than tracing accounts for
        known.count(-1)
    obstacle = (
        known.obstacle or obstacles.unfit(compiled(known, problem), problem.y0) or number_obstacle(known, problem)
    )
    if obstacle:
        return Explanation(Engine(obstacle))
    return _of_traced(known, problem, Names(f))


def _problem(f: Callable[[Tensor, Any], Any], y0: State, t: float) -> Problem:
    """Return a problem with default settings."""
    y0 = inputs.state(y0)
    packing = Packing(y0, int(isinstance(f, Field) and f.members is not None))
    y = packing.pack(y0)
    plan = DEFAULT.plan(y, packing, [float(t), float(t) + 1.0], [1])
    return Problem(as_function(f), y, None, plan, packing, [0, 1], engine="auto")


def _of_traced(known: Known, problem: Problem, names: Names) -> Explanation:
    """Return the explanation of a traced function."""
    assert known.traced is not None
    field, derived = compiled(known, problem), known.traced.derived
    titles, sources = (
        [names.of(known.swapped.get(id(x), x)) for x in each] for each in (known.traced.tensors, known.traced.sources)
    )
    context = tuple((names.of(x), tuple(x.shape)) for x in field.context)
    computed = []
    for i, place in enumerate(derived.places if derived is not None else ()):
        titles.insert(place, f"computed{i + 1}")
        computed.append((titles[place], tuple(sources)))
    return _explained(
        field,
        titles,
        problem,
        batched=known.first is None,
        computed=tuple(computed),
        context=context,
        fixed=tuple(dict.fromkeys(names.of(x) for x, _ in known.traced.baked)),
        counters=tuple((counter.name, counter.step) for counter in known.counters),
    )


def _explained(
    field: Compiled,
    titles: list[str],
    problem: Problem,
    batched: bool,
    context: tuple[tuple[str, tuple[int, ...]], ...] = (),
    **facts: Any,
) -> Explanation:
    """Return the explanation of a field that the engine can run."""
    layout = Layout(field.program, extension.UNARY, extension.BINARY)
    tensors = tuple((title, tuple(x.shape)) for title, x in zip(titles, field.tensors, strict=True))
    alone = [
        (title, shape if shared or field.members is None else shape[1:])
        for (title, shape), shared in zip(tensors, field.shared, strict=True)
    ]
    parts = [(f"y[{i}]", size) for i, size in enumerate(field.components)]
    given = [(title, math.prod(shape[1:])) for title, shape in context]
    return Explanation(
        Engine(),
        _state(field, problem, batched),
        tensors,
        context=context,
        lines=tuple(listing(field.program, alone, parts or None, given)),
        operations=len(field.program.operations),
        pullback=len(layout.back.operations),
        kept=layout.sizes[Space.KEPT],
        **facts,
    )


def _state(field: Compiled, problem: Problem, batched: bool) -> str:
    """Describe which dimensions of the state are points, and which are features."""
    dtype = str(problem.y0.dtype).removeprefix("torch.")
    features = counted(field.dim, "feature")
    if field.components:
        features += f" in {counted(len(field.components), 'component')}"
    if not batched:
        return f"one point of {features}, {dtype}"
    front = components(problem)[0].ndim - 1
    if field.members is not None:
        return f"{field.members} members, each with points of {features}, {dtype}"
    if field.dim == problem.y0.shape[-1] and front > 1 and not field.components:
        return f"points of {features}, {dtype}; all dimensions of y0 but the last count the points"
    return f"points of {features}, {dtype}; dimension 0 of y0 counts the points"
