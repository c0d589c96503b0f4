"""Translate a recording of f to a program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anode.engine.program.operation import Rows
from anode.engine.program.program import Builder
from anode.engine.trace.activations import ACTIVATIONS
from anode.engine.trace.calls import mapped
from anode.engine.trace.dependence import LITERAL, MOVING, PARAMETRIC, Dependence
from anode.engine.trace.events import Event, Recording, Ref, Untraceable, label
from anode.engine.trace.functions import FUNCTIONS
from anode.engine.trace.lookups import COUNTING, LOOKUPS, PICKS
from anode.engine.trace.movements import MOVEMENTS, move
from anode.engine.trace.operations import OPERATIONS, AtenOp
from anode.engine.trace.products import PRODUCTS
from anode.engine.trace.pullbacks import PULLBACKS
from anode.engine.trace.quantity import Quantity
from anode.engine.trace.reductions import REDUCTIONS
from anode.engine.trace.replay import Captured, Derived, Shared, needed
from anode.engine.trace.shadow import Decoded, Order, PointLayout, Shadow

HANDLERS = {**OPERATIONS, **ACTIVATIONS, **FUNCTIONS, **REDUCTIONS, **PRODUCTS, **PULLBACKS, **LOOKUPS}
# On masks they are logical operations.
MASKS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor", "add": "logical_or"}
MASKS |= {"bitwise_not": "logical_not", "__and__": "logical_and", "__or__": "logical_or", "__xor__": "logical_xor"}
MOST_NUMBERS = 2**15
"""Maximum of numbers per point in a program. With more, a block of points does not fit the cache, and the engine is no
faster than torch, but takes seconds to build the program."""
COPIES = frozenset(["_to_copy", "clone", "copy_", "copy", "lift_fresh_copy"])
LONGEST = 1 << 22  # elements; each has an id, so that tracing would take long
COUNTS = (torch.bool, torch.int32, torch.int64)


class Lowering:
    """Translates one recording.

    Args:
        recording: What f did.
        literal: Indices of the storages that f makes anew on every call with the same values.
        builder: Where the program goes.
    """

    def __init__(self, recording: Recording, literal: set[int], builder: Builder) -> None:
        self.recording, self.builder = recording, builder
        self.dtype = recording.inputs[0].dtype
        self.shadow = Shadow(recording.batch)
        self.program: list[Tensor | Ref] = []  # its tensors; of derived ones, the name
        self.baked: list[tuple[Tensor, Tensor]] = []
        self._values: dict[int, Tensor] = {}
        self._numbers: dict[float, int] = {}
        self.dependence = Dependence(recording, self._keep_literals(literal))
        self._levels = self.dependence.at_first()

    def _keep_literals(self, literal: set[int]) -> set[int]:
        """Store the values that are part of the program, and return their storages."""
        kept = set()
        for i, known in enumerate(self.recording.storages):
            integers = any(not ref.dtype.is_floating_point for ref in known.seen)
            if i in literal or integers:
                kept.add(i)
                for ref, tensor in known.seen.items():
                    self._set_values(ref, tensor.detach())
                    self.baked += [] if i in literal else [(tensor, tensor.detach().clone())]
        return kept

    def run(self) -> Rows:
        """Translate the recording and return the ids of the slope of all features, also of those from context."""
        results = {x.storage for x in self.recording.results}
        events = needed(self.recording.events, results)
        read = results.union(x.storage for event in events for x in event.reads)
        self.reads_context = tuple(x.storage in read for x in self.recording.context)
        self._place_inputs()
        for event in events:
            self._event(event)
            if self.builder.rows > MOST_NUMBERS:
                raise Untraceable(f"f computes more than {MOST_NUMBERS} numbers per point")
        constant = np.broadcast_to(self.builder.numbers(0.0), (self._constant,))
        return np.concatenate([*(rows.reshape(-1) for rows in self._results()), constant])

    def captured(self) -> Captured:
        """Return the tensors of the program."""
        tensors = tuple(x for x in self.program if isinstance(x, Tensor))
        places = tuple(i for i, x in enumerate(self.program) if not isinstance(x, Tensor))
        outside = (storage for storage in self.recording.storages if storage.origin == "outside")
        groups = ((*storage.seen.values(), *storage.twins) for storage in outside)
        shared = tuple(Shared(group) for group in groups if len(group) > 1)
        if not places:
            return Captured(tensors, None, (), tuple(self.baked), shared)
        recipe = self.dependence.recipe(tuple(x for x in self.program if not isinstance(x, Tensor)))
        sources = tuple(x for _, x in recipe.sources)
        return Captured(tensors, Derived(recipe, places), sources, tuple(self.baked), shared)

    def _place_inputs(self) -> None:
        """Give ids to the state, to the rows of context that f reads, which are further features of it, and to time."""
        *states, time = self.recording.inputs
        layout = PointLayout(self.recording.batch)
        pairs = zip(self.recording.context, self.reads_context, strict=True)
        context = [ref for ref, is_read in pairs if is_read]
        counts = [int(np.prod(layout.folded(ref.size), dtype=np.int64)) for ref in (*states, *context)]
        self._constant = sum(counts[len(states) :])
        if context:
            self.builder.extend(self._constant)
        ids = np.split(self.builder.state(sum(counts)), np.cumsum(counts)[:-1])
        for ref, part in zip((*states, *context), ids, strict=True):
            self._make(ref.storage)
            self._write(ref, part.reshape(layout.folded(ref.size)), layout, self.recording.batch > 0, "f")
        self._make(time.storage)
        rows = np.broadcast_to(self.builder.time(), layout.folded(time.size))
        self._write(time, rows, layout, len(time.size) > 0, "f")

    def _event(self, event: Event) -> None:
        if all(x.is_empty for x in event.writes):
            return
        level = self.dependence.level(event, self._levels)
        if level == MOVING:
            for x in event.writes:
                self._own(x)
        self.dependence.mark(event, level, self._levels)
        if level == LITERAL and event.values is not None:
            for ref, value in zip(event.writes, event.values, strict=True):
                self._set_values(ref, value)
        elif level == PARAMETRIC:
            if any(x.storage in self.shadow for x in event.writes):
                raise Untraceable("f writes into a tensor that it has used before")
        else:
            self._translate(event)

    def _own(self, ref: Ref) -> None:
        """Give a storage its own codes from now on."""
        if ref.storage in self.shadow:
            return
        if self._levels[ref.storage] == PARAMETRIC:
            self.codes(ref)
        else:
            self._make(ref.storage)
            if ref.storage in self._values:
                values = self._values.pop(ref.storage)
                whole = Ref(ref.storage, tuple(values.shape), (1,), 0, ref.dtype)
                self.shadow.view(whole).copy_(self.shadow.encode(self._number_rows(values)))

    def _make(self, storage: int) -> None:
        length = self.recording.storages[storage].length
        if length > LONGEST:
            raise Untraceable(f"f uses a tensor with {length} elements in memory, more than {LONGEST}")
        self.shadow.make(storage, length)

    def _check_type(self, x: Ref, event: Event) -> None:
        counted = x.dtype in COUNTS and (x.dtype == torch.bool or all(y.dtype in COUNTS for y in event.reads))
        if x.dtype != self.dtype and not counted:
            raise Untraceable(f"f computes in {x.dtype}, the state is {self.dtype} (aten.{event.name})")

    def _translate(self, event: Event) -> None:
        op = AtenOp(self.builder, label(event.function))
        name = event.name
        if name in COPIES:
            source = event.reads[1] if name in ("copy_", "copy") else event.reads[0]
            self._check_type(event.writes[0], event)
            if event.writes[0].dtype == torch.bool and source.dtype != torch.bool:
                raise op.missing()
            self.shadow.view(event.writes[0]).copy_(self.codes(source).clone())
        elif name in MOVEMENTS and not (name in PICKS and self._is_picked(event)):
            move(event, self.codes, self._indices, self.shadow.view, op)
        else:
            self._compute(event, op)

    def _is_picked(self, event: Event) -> bool:
        """Whether an operation picks elements by an index that depends on the state or time."""
        return any(self._known(x) is None for x in event.reads if x.dtype in COUNTS)

    def _known(self, ref: Ref) -> npt.NDArray[np.float64] | None:
        """Return the values of a tensor, if they depend neither on the state nor on time or parameters."""
        return self.builder.value(self._with_zeros(self.shadow.decode(self._readable(ref))[0]))

    def _compute(self, event: Event, op: AtenOp) -> None:
        name = event.name[:-1] if event.function._schema.is_mutable and event.name.endswith("_") else event.name
        booleans = all(x.dtype == torch.bool for x in (*event.writes, *event.reads))
        name = MASKS.get(name, name) if booleans else name
        handler = HANDLERS.get(name)
        if handler is None:
            raise op.missing()
        read = {ref: self.shadow.decode(self._readable(ref)) for ref in event.reads}
        layout = self._layout(list(read.values()), op)
        per_point = any((points >= 0).any() for _, points in read.values())
        kwargs = {k: v for k, v in event.kwargs.items() if k not in ("out", "memory_format")}
        args, named = mapped((event.args, list(kwargs.values())), Ref, lambda x: self._quantity(x, read[x], layout, op))
        result = handler(op, *args, **dict(zip(kwargs, named, strict=True)))
        results = result if isinstance(result, tuple) else (result,)
        for ref, x in zip(event.outs, results, strict=False):
            if ref is not None and x is not None:
                if name not in COUNTING:
                    self._check_type(ref, event)
                self._write(ref, x.rows, layout, per_point, op.label)

    def _layout(self, read: list[Decoded], op: AtenOp) -> PointLayout:
        """Return the layout of the points in what an operation reads."""
        try:
            for order in Order:
                layout = PointLayout(self.recording.batch, order)
                if all(layout.fold(*each) is not None for each in read):
                    return layout
        except ValueError:
            pass
        raise op.mixes()

    def _quantity(self, ref: Ref, decoded: Decoded, layout: PointLayout, op: AtenOp) -> Quantity:
        rows = layout.fold(*decoded)
        if rows is None:
            raise op.mixes()
        return Quantity(self.builder, self._with_zeros(rows), layout.axis(ref.size), ref.dtype)

    def _with_zeros(self, rows: Rows) -> Rows:
        return np.where(rows < 0, self._number(0.0), rows) if (rows < 0).any() else rows

    def _write(self, ref: Ref, rows: Rows, layout: PointLayout, per_point: bool, label: str) -> None:
        mixed = Untraceable(f"f mixes the points of a batch ({label})")
        try:
            spread = layout.unfold(np.broadcast_to(rows, layout.folded(ref.size)), ref.size, per_point)
        except ValueError:
            raise mixed from None
        if spread is None:
            raise mixed
        if ref.storage not in self.shadow:
            self._make(ref.storage)
        self.shadow.view(ref).copy_(self.shadow.encode(*spread))

    def _readable(self, ref: Ref) -> Tensor:
        codes = self.codes(ref)
        if (codes < 0).any():
            raise Untraceable("f uses an output that the engine does not compute")
        return codes

    def codes(self, ref: Ref) -> Tensor:
        """Return the codes of a tensor that is read."""
        if ref.storage in self._values and self._levels[ref.storage] == LITERAL:
            values = self._values[ref.storage].as_strided(ref.size, ref.stride, ref.offset)
            return self.shadow.encode(self._number_rows(values))
        if ref.storage not in self.shadow:
            self._make(ref.storage)
        if self.recording.storages[ref.storage].origin == "outside":
            self._capture(ref)
        elif self._levels[ref.storage] == PARAMETRIC or (self.shadow.view(ref) < 0).any():
            self._derive(ref)
        return self.shadow.view(ref)

    def _capture(self, wanted: Ref) -> None:
        """Give ids to an existing tensor, or to the tensors that it shares memory with."""
        seen = self.recording.storages[wanted.storage].seen
        for ref in (wanted, *seen):
            view = self.shadow.view(ref)
            if (self.shadow.view(wanted) < 0).any() and ref in seen and (view < 0).any():
                self._add_tensor(seen[ref], ref)

    def _add_tensor(self, tensor: Tensor | Ref, ref: Ref) -> None:
        if ref.dtype != self.dtype:
            raise Untraceable(f"f uses a tensor of {ref.dtype}, the state is {self.dtype}")
        if ref.overlaps:  # then the gradients of its elements cannot be told apart
            raise Untraceable("f uses a tensor whose elements share memory, as after expand")
        ids = self.builder.tensor(ref.size)
        self.program.append(tensor)
        view = self.shadow.view(ref)
        view.copy_(torch.where(view < 0, self.shadow.encode(ids), view))

    def _derive(self, wanted: Ref) -> None:
        """Give ids to a tensor that f computes from existing ones."""
        known = any(not isinstance(x, Tensor) and x.storage == wanted.storage for x in self.program)
        if known or self._levels[wanted.storage] != PARAMETRIC:
            return
        made = next(x for e in self.recording.events for x in e.writes if x.storage == wanted.storage)
        self._add_tensor(made, made)

    def _set_values(self, ref: Ref, value: Tensor) -> None:
        if ref.storage not in self._values:
            length = self.recording.storages[ref.storage].length
            self._values[ref.storage] = torch.zeros(length, dtype=torch.float64)
        places = torch.arange(len(self._values[ref.storage])).as_strided(ref.size, ref.stride, ref.offset)
        self._values[ref.storage][places] = value.to(torch.float64)  # elements may share memory, as after `expand`

    def _number(self, value: float) -> int:
        if value not in self._numbers:
            self._numbers[value] = int(self.builder.numbers(value))
        return self._numbers[value]

    def _number_rows(self, values: Tensor) -> Rows:
        distinct, places = np.unique(values.numpy(), return_inverse=True)
        ids = np.array([self._number(float(x)) if x else -1 for x in distinct], dtype=np.int64)
        return ids[places].reshape(tuple(values.shape))

    def _indices(self, ref: Ref) -> Tensor:
        """Return the values of a tensor of indices."""
        values = self._known(ref)
        if values is None:
            raise Untraceable("f takes indices from what depends on the state or on parameters")
        return torch.from_numpy(np.array(values)).reshape(ref.size).to(ref.dtype)

    def _results(self) -> Iterator[Rows]:
        layout = PointLayout(self.recording.batch)
        op = AtenOp(self.builder, "its result")
        for ref, shape in zip(self.recording.results, self.recording.shapes, strict=True):
            try:
                rows = self._quantity(ref, self.shadow.decode(self._readable(ref)), layout, op).rows
            except ValueError:
                raise op.mixes() from None
            yield np.broadcast_to(rows, layout.folded(shape))
