"""The compiled derivative of a field, for solves whose steps are taken in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from anode.engine import native, obstacles
from anode.engine.compiled import Compiled
from anode.engine.replayed import Replayed
from anode.engine.solving import while_worthwhile
from anode.engine.watch.purity import Counter
from anode.ode.field import BYTES_KEPT, Derivative, Rate, partial_gradients
from anode.ode.integrate import Trace
from anode.ode.problem import Problem


class CompiledDerivative(Derivative):
    """The derivative of a field by the compiled engine.

    Args:
        problem: The problem, on whose packed states the field is evaluated.
        field: The compiled field.
        counters: The counters of f, which every evaluation advances until they are removed from this list.
        params: Tensors to differentiate with respect to; ``None`` for all that f depends on.
    """

    def __init__(
        self,
        problem: Problem,
        field: Compiled,
        counters: list[Counter] | None = None,
        params: Sequence[Tensor] | None = None,
    ) -> None:
        self._problem, self._field = problem, field
        self.counters = [] if counters is None else counters
        known = (*field.given, *field.sources, *field.unused, *field.context)
        # One tensor may have replaced two that f was traced with.
        own = {id(x): x for x in known if x.requires_grad}.values()
        self.parameters = tuple(own if params is None else params)
        wanted = {id(p) for p in self.parameters}
        tensors = (*field.tensors, *field.context)
        computed = {id(x): x for x in tensors if x.grad_fn is not None and id(x) not in wanted}
        self._computed = list(computed.values())
        y = problem.y0
        self._engine: Any = native.field_of(field, y)
        self._at_context: Tensor | None = None  # the sum of the cotangents of context, since they were last taken
        self._places: tuple[Tensor, Tensor] | None = None
        if field.components:  # the permutation from a packed state to rows of features, and its inverse
            packed = torch.arange(y.numel()).reshape(y.shape)
            places = field.joined(tuple(problem.packing.unpack(packed))).flatten()
            self._places = places, torch.argsort(places)

    def wanted(self, params: Sequence[Tensor], time: bool) -> Derivative | None:
        if time and self._field.program.uses_time:
            return None  # the pullback does not compute the cotangent of time
        if list(map(id, params)) == list(map(id, self.parameters)):
            return self
        return CompiledDerivative(self._problem, self._field, self.counters, params)

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        kept = self._engine.kept_size(math.prod(self._problem.plan.groups)) * y.element_size()
        return BYTES_KEPT // (stages * (kept + y.nbytes))

    def agrees(self, t: Tensor, y: Tensor, slope: Tensor) -> bool:
        """Whether the compiled slope equals the slope of f, up to rounding. Not counted as an evaluation."""
        return native.agree(self._evaluate(t, y, None), slope)

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        self.count(1)
        return self._evaluate(t, y, None)

    def recorded(self) -> Rate:
        return Replayed(self._field, self._field.tensors, self._problem.packing)

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        self.count(1)
        times = t.numel()
        kept = y.new_empty(self._engine.kept_size(times))
        slope = self._evaluate(t, y, kept)
        slope.tape = times, kept  # type: ignore[attr-defined]
        return slope

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        times, kept = slope.tape  # type: ignore[attr-defined]
        g = self._rows(cotangent, [torch.zeros_like(x) for x in self._field.context])
        at_y = torch.empty_like(g)
        self._engine.pull(times, kept.data_ptr(), g.data_ptr(), at_y.data_ptr(), torch.get_num_threads())
        if self._field.context:
            at_context = at_y[:, self._field.dim :]
            self._at_context = at_context.clone() if self._at_context is None else self._at_context + at_context
        return self._packed(at_y, cotangent), None

    def take_gradients(self) -> Sequence[Tensor]:
        tensors = self._field.tensors
        gradients = [x.new_zeros(x.shape) if x.requires_grad else None for x in tensors]
        self._engine.take([0 if g is None else g.data_ptr() for g in gradients])
        found: dict[int, Tensor] = {}
        for x, g in zip(tensors, gradients, strict=True):
            _add(found, x, g)
        for x, g in self._take_context():
            _add(found, x, g)
        if self._computed:
            self._pass_on(found)
        return [found[id(p)] if id(p) in found else torch.zeros_like(p) for p in self.parameters]

    def _take_context(self) -> Sequence[tuple[Tensor, Tensor | None]]:
        """Return the tensors of context, each with its gradient, ``None`` for zero, since it was last taken."""
        context, total, self._at_context = self._field.context, self._at_context, None
        if total is None:
            return [(x, None) for x in context]
        parts = total.split([x[:1].numel() for x in context], dim=1)
        return [(x, part.reshape(x.shape)) for x, part in zip(context, parts, strict=True)]

    def adjoint(self, sizes: Sequence[int]) -> Rate | None:
        if self._places is not None or self._computed or self._field.context:
            return None
        engine, (*_, first), size = self._engine, accumulate(sizes[:3]), self._problem.y0.element_size()
        starts = dict(zip(map(id, self.parameters), accumulate(sizes[3:], initial=first), strict=False))
        places = [starts.get(id(x)) for x in self._field.tensors]
        kept = self._problem.y0.new_empty(engine.kept_size(1))
        y, at_y = size * sizes[0], size * (sizes[0] + sizes[1])

        def rate(t: Tensor, state: Tensor) -> Tensor:
            self.count(1)
            time, cotangent, slope = t.to(state.dtype), state[first - sizes[2] : first].neg(), torch.zeros_like(state)
            here, there, threads = state.data_ptr(), slope.data_ptr(), torch.get_num_threads()
            engine.evaluate(time.data_ptr(), 1, here + y, there + y, kept.data_ptr(), threads)
            engine.pull(1, kept.data_ptr(), cotangent.data_ptr(), there + at_y, threads)
            engine.take([0 if place is None else there + size * place for place in places])
            return slope

        return rate

    def adjoint_loop(self, problem: Problem, seminorm: bool) -> Callable[[Tensor], Trace] | None:
        own, field = self._problem, self._field
        if obstacles.of_loop(problem) or self._computed or field.context or (field.components and own.plan.group_dims):
            return None
        of_y = own.packing.sizes if field.components else [own.y0.numel()]
        _, _, _, *gradients = problem.packing.sizes
        sizes = [*of_y, *of_y, *gradients]
        first = 2 * len(of_y)
        places = {id(p): first + i for i, p in enumerate(self.parameters)}
        parts = {
            "sizes": sizes,
            "normed": first if seminorm else len(sizes),
            "gradients": [places.get(id(x), 0) for x in field.tensors],
        }

        def loop(state: Tensor) -> Trace:
            def attempt(most: int) -> tuple[Trace, None]:
                end, task = state.clone(), native.task_of(problem.plan, field, own.y0, False, most)
                place = end.data_ptr() + end.element_size()  # after the cotangent of time, which is 0
                return native.trace_of(self._engine.solve_adjoint(task, **parts, state=place), end), None

            trace, _ = while_worthwhile(problem, attempt, lambda trace: trace.y)
            times = problem.plan.times
            trace.outputs = [state if times[i] == times[0] else trace.y for i in problem.plan.wanted]
            self.count(trace.stats.calls)
            return trace

        return loop

    def _pass_on(self, found: dict[int, Tensor]) -> None:
        """Add the gradients that reach parameters through tensors computed from them."""
        live = [p for p in self.parameters if p.requires_grad]
        at = [found[id(x)] if id(x) in found else torch.zeros_like(x) for x in self._computed]
        through = partial_gradients(self._computed, live, at, retain_graph=True) if live else ()
        for p, more in zip(live, through, strict=True):
            _add(found, p, more)

    def count(self, evaluations: int) -> None:
        """Advance the counters of f by this number of evaluations."""
        for counter in self.counters:
            counter.advance(evaluations)

    def _evaluate(self, t: Tensor, y: Tensor, kept: Tensor | None) -> Tensor:
        times, rows = t.to(y.dtype).contiguous(), self._rows(y)
        slope = torch.empty_like(rows, requires_grad=False)
        self._engine.evaluate(
            times.data_ptr(),
            times.numel(),
            rows.data_ptr(),
            slope.data_ptr(),
            0 if kept is None else kept.data_ptr(),
            torch.get_num_threads(),
        )
        return self._packed(slope, y)

    def _rows(self, packed: Tensor, context: Sequence[Tensor] | None = None) -> Tensor:
        """Return a packed state as rows of features, one per point, with the given context or the field's own."""
        if self._places is not None:
            packed = packed.detach().reshape(-1).index_select(0, self._places[0])
        return native.laid_out(self._field.rows(packed, context).detach())

    def _packed(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return rows of features as a packed state."""
        rows = self._field.features(rows, like.shape)
        return rows if self._places is None else rows.reshape(-1).index_select(0, self._places[1]).view(like.shape)


def _add(sums: dict[int, Tensor], x: Tensor, gradient: Tensor | None) -> None:
    """Add to the gradient of a tensor; ``None`` is zero."""
    if gradient is not None:
        sums[id(x)] = sums[id(x)] + gradient if id(x) in sums else gradient
