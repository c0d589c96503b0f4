"""Record which ATen operations a right-hand side runs, and on which memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anode.engine.trace.calls import Calls, Replacements, mapped
from anode.engine.trace.events import Event, Recording, Ref, Storage, Untraceable, label, leaves, operation_name
from anode.engine.trace.modes import under
from anode.ode.packing import broadcasts_to

SHAPE_ONLY = frozenset(
    [
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
    ]
)
"""Operations that read the shapes of their arguments, not the values."""
UNFILLED = frozenset(["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"])
"""Operations whose results have no values yet."""
READS_VALUES = frozenset(["_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item", "masked_select", "_unique2"])
"""Operations that pass values to Python, where they cannot be recorded."""
EXACT_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""An operation that torch marks as random because of dropout, which it does not support on the CPU."""
RESHAPES = frozenset(["squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "detach_"])
"""Operations that change the shape of a tensor, not its memory."""


class Recorder(TorchDispatchMode):
    """Records the operations that run while it is active.

    Args:
        inputs: The state's components, the time, and tensors with a row per point.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.storages: list[Storage] = []
        self.obstacle: str | None = None
        self._numbers: dict[int, int] = {}
        self.stops_gradients = False
        self._views: set[Ref] = set()  # of tensors from outside, made by f
        self.alive: list[Any] = []  # so that no address is used twice
        self.inputs = tuple(self.ref(x, "input") for x in inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def ref(self, x: Tensor, origin: str = "outside") -> Ref:
        """Return the name of a tensor. Register its memory if it is new."""
        if x.layout != torch.strided or x.device.type != "cpu" or x.is_complex() or x.is_quantized:
            self.refuse(f"f uses a tensor that is not a plain one on the CPU ({x.layout}, {x.device}, {x.dtype})")
        storage = x.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self.storages)
            length = storage.nbytes() // x.element_size()
            follows = origin == "outside" and x.is_floating_point()
            self.storages.append(Storage(origin, storage._cdata, length, origin == "input", follows))
            self.alive.append(x)
        ref = Ref(number, tuple(x.shape), x.stride(), int(x.storage_offset()), x.dtype)
        known = self.storages[number]
        if known.origin == "outside" and origin == "made":
            self._views.add(ref)
        elif known.origin == "outside" and (ref in self._views or known.seen.setdefault(ref, x) is not x):
            known.twins.append(x)
        return ref

    def refuse(self, why: str) -> None:
        """Raise ``Untraceable``, and keep the reason, because f might catch the exception."""
        self.obstacle = self.obstacle or why
        raise Untraceable(why)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # what is done here is not f's
            return self._record(func, types, args, kwargs or {})

    def _record(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = operation_name(func)
        self._check(func, types, (args, list(kwargs.values())))
        fresh = "made" if name == "lift_fresh" else "outside"
        refs = mapped((args, list(kwargs.values())), Tensor, lambda x: self.ref(x, fresh))
        named = tuple(refs[0]), dict(zip(kwargs, refs[1], strict=True))
        reads = () if name in SHAPE_ONLY else tuple(x for x in leaves(refs) if isinstance(x, Ref))
        self._check_values(func, reads)
        if not torch.is_grad_enabled() and any(x.dtype.is_floating_point for x in reads):
            self.stops_gradients = True
        writes = self._targets(func, *named)
        known = len(self.storages)
        result = func(*args, **kwargs)
        outs = tuple(self.ref(x, "made") if isinstance(x, Tensor) else None for x in leaves(result))
        if not func._schema.is_mutable:
            writes = tuple(x for x in outs if x is not None and x.storage >= known)
        if name in RESHAPES:
            writes = ()
        if name == "lift_fresh":
            writes, reads = tuple(x for x in outs if x is not None), ()
        self._add(func, named, reads, outs, writes, result)
        return result

    def _check(self, func: Any, types: Any, given: Any) -> None:
        """Refuse operations that do something else in another call, or on other things than plain tensors."""
        if any(kind not in (Tensor, torch.nn.Parameter) for kind in types):
            self.refuse(f"f uses a tensor subclass ({types[0].__name__})")
        if torch.Tag.nondeterministic_seeded in func.tags and operation_name(func) != EXACT_ATTENTION:
            self.refuse(f"f draws random numbers ({label(func)})")
        if any(isinstance(x, torch.ScriptObject) for x in leaves(given)):
            self.refuse(f"f uses parameters that are not tensors ({label(func)})")  # such as those of quantized layers

    def _check_values(self, func: Any, reads: tuple[Ref, ...]) -> None:
        """Refuse operations through which Python, or the size of a tensor, depends on values that may change."""
        name = operation_name(func)
        if name in READS_VALUES and any(self._changes(x) for x in reads):
            self.refuse(f"f reads values into Python ({label(func)})")
        if name == "index" and any(x.dtype == torch.bool and self._moves(x) for x in reads):
            self.refuse(
                f"f picks elements by a mask that depends on the state or time ({label(func)}): use torch.where"
            )

    def _moves(self, x: Ref) -> bool:
        return self.storages[x.storage].moves

    def _changes(self, x: Ref) -> bool:
        """Whether a tensor may have other values in another call or solve."""
        storage = self.storages[x.storage]
        return storage.origin != "made" or storage.moves or storage.follows

    def _targets(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Ref, ...]:
        """Return the existing tensors that an operation writes to. Refuse if f does not own them."""
        statistics = ("running_mean", "running_var") if operation_name(func) == "native_batch_norm" and args[5] else ()
        if not func._schema.is_mutable and not statistics:
            return ()
        targets = []
        for place, argument in enumerate(func._schema.arguments):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written or argument.name in statistics:  # which its schema does not tell
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                targets += [x for x in leaves(given) if isinstance(x, Ref)]
        for x in targets:
            if self.storages[x.storage].origin != "made":
                own = "its argument" if self.storages[x.storage].origin == "input" else "a tensor that it did not make"
                self.refuse(f"f writes into {own} ({label(func)})")
        return tuple(targets)

    def _add(self, func: Any, named: Any, reads: Any, outs: Any, writes: tuple[Ref, ...], result: Any) -> None:
        read = [self.storages[x.storage] for x in reads if not x.is_empty]
        moves, follows = any(storage.moves for storage in read), any(storage.follows for storage in read)
        for x in writes:
            self.storages[x.storage].moves |= moves
            self.storages[x.storage].follows |= follows
        values = None
        if writes and not moves:
            tensors = [x for x in leaves(result) if isinstance(x, Tensor)]
            by_ref = {self.ref(x): x for x in tensors}
            values = tuple(by_ref[x].detach().clone() for x in writes if x in by_ref)
            if len(values) != len(writes):
                self.refuse(f"{label(func)} is not among the operations that the engine has")
            if operation_name(func) in UNFILLED:
                values = tuple(torch.zeros_like(x) for x in values)
        self.alive.append(result)
        self.events.append(Event(func, named[0], named[1], reads, outs, writes, values))


def record(
    f: Callable[..., Any],
    states: Sequence[Tensor],
    is_tuple: bool,
    batch: int,
    t: Tensor,
    is_map: bool = False,
    context: Replacements = (),
) -> Recording:
    """Call f once and record what it does.

    Args:
        f: The right-hand side, called as ``f(t, y)``.
        states: The state's components.
        is_tuple: Whether f takes and returns a tuple.
        batch: Number of points in `states`; 0 without a batch dimension.
        t: The time.
        is_map: Whether f maps points to results of any size, instead of to slopes.
        context: Tensors with a row per point of the solve, each with what f is to see in its place.

    Raises:
        Untraceable: If f does what a recording cannot follow.
    """
    given = (*states, t, *(rows for _, rows in context))
    recorder, calls = Recorder(given), Calls(context)
    try:
        result = under((recorder, calls), lambda: f(t, tuple(states) if is_tuple else states[0]))
    except Exception as error:
        which = f" with {batch} points" if batch else ""
        said = str(error).splitlines()[0] if str(error) else ""
        why = f"f raises {type(error).__name__} when it is recorded{which}: {said}"
        raise Untraceable(recorder.obstacle or why) from error
    if recorder.obstacle is not None:
        raise Untraceable(recorder.obstacle)
    results = tuple(result) if is_tuple and isinstance(result, (tuple, list)) else (result,)
    calls.note(results)
    _check_results(results, states, batch, is_map)
    refs, first = tuple(recorder.ref(x) for x in results), len(states) + 1
    return Recording(
        batch,
        recorder.events,
        recorder.storages,
        recorder.inputs[:first],
        recorder.inputs[first:],
        refs,
        tuple(tuple(x.shape) for x in (results if is_map else states)),
        given,
        results,
        recorder.alive,
        recorder.stops_gradients or calls.detached,
        calls,
    )


def _check_results(results: tuple[Any, ...], states: Sequence[Tensor], batch: int, is_map: bool) -> None:
    """Check that f returns what belongs to a state."""
    if len(results) != len(states) or not all(isinstance(x, Tensor) for x in results):
        raise Untraceable("f returns something else than the state is")
    for x, y in zip(results, states, strict=True):
        if x.dtype != y.dtype:
            raise Untraceable(f"f returns {x.dtype}, the state is {y.dtype}")
        if is_map and (x.dim() < 2 or x.shape[0] != batch):
            raise Untraceable("f does not return features for each point")
        if not is_map and not broadcasts_to(x.shape, y.shape):
            raise Untraceable("f returns another shape than the state")
