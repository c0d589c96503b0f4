"""Check whether a right-hand side has side effects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from cProfile import Profile
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from anode.engine.watch.bytecode import Path, Store, nested, strings, summarize
from anode.engine.watch.guard import ABSENT, Change, Guard
from anode.engine.watch.names import UnwatchableError
from anode.engine.watch.reach import Reach
from anode.engine.watch.rules import HIDDEN_WRITES, is_clean, is_standard, method_obstacle, numpy_obstacle, use_obstacle

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Counter:
    """A number, in an attribute, to which every call of f adds a whole number, such as ``self.nfe``.

    Two counters are equal if they advance the same attribute of the same object by the same step.

    Attributes:
        owner: The object.
        name: The attribute.
        step: The number that one call of f adds.
    """

    owner: Any
    name: str
    step: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def moved(self, objects: dict[int, Any]) -> Counter:
        """Return the counter of the object that takes the owner's place, by the owner's id."""
        return Counter(objects.get(id(self.owner), self.owner), self.name, self.step)

    def advance(self, calls: int) -> None:
        """Advance the attribute by this number of calls of f."""
        self.reset(self.count() + calls * self.step)

    def count(self) -> float:
        """Return the attribute."""
        count: float = getattr(self.owner, self.name)
        return count

    def reset(self, count: float) -> None:
        """Set the attribute."""
        setattr(self.owner, self.name, count)

    def _key(self) -> tuple[int, str, int]:
        return id(self.owner), self.name, self.step


@dataclass(frozen=True)
class Observation(Generic[T]):
    """What was observed in one call of f.

    Attributes:
        result: What the call returned.
        obstacle: Why a recording may not replace f, such as "f calls print"; empty if it may.
        counters: The counters that f advanced. Compare those of two calls: f may not advance them every time.
        guard: Holds for as long as nothing has changed that f reads from Python, except its counters. If there is an
            obstacle, it watches what was found before: another call may have none once this has changed.
    """

    result: T
    obstacle: str
    counters: tuple[Counter, ...]
    guard: Guard


def observe(f: Callable[..., Any], call: Callable[[], T]) -> Observation[T]:
    """Run a call of f and report its side effects.

    Tensor operations are ignored, including in-place changes of tensors.

    Args:
        f: The right-hand side.
        call: A function that calls f once.
    """
    watcher = _Watcher(f, call)
    previous, collecting = sys.getprofile(), gc.isenabled()
    try:  # all of it: Ctrl-C may come between any two lines
        gc.disable()  # what the collector calls would be taken for part of f
        sys.setprofile(watcher)
        result = call()
    finally:
        try:
            _profile(previous)
        finally:
            if collecting:
                gc.enable()
    obstacle, counters = watcher.conclude()
    return Observation(result, obstacle, counters, watcher.guard)


def _profile(previous: Any) -> None:
    """Restore a profile function. cProfile has none that Python can call."""
    if isinstance(previous, Profile):
        previous.enable()
    else:
        sys.setprofile(previous)


class _Watcher:
    """A profile function that inspects every function before it runs."""

    def __init__(self, f: Callable[..., Any], call: Callable[[], Any]) -> None:
        self._obstacle = ""
        self._caller = call.__code__ if isinstance(call, FunctionType) and call is not f else None
        self._standard: set[CodeType] = set()
        self._importing: FrameType | None = None
        self._parents: dict[CodeType, CodeType] = {}
        self._candidates: dict[tuple[int, str], Any] = {}
        self._reach = Reach()
        self.guard = self._reach.guard
        self._entered = self.guard.codes
        try:
            self._reach.surroundings()
            self._reach.add(f)
        except UnwatchableError as error:
            self._obstacle = str(error)

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        if frame is self._importing and event == "return":
            self._importing = None
        if self._obstacle or self._importing is not None or frame.f_code is self._caller:
            return
        try:
            if event == "call":
                self._enter(frame)
            elif event == "c_call" and not is_clean(_home(frame)):
                self._refuse(method_obstacle(function, function.__self__ in self._reach))
        except UnwatchableError as error:
            self._obstacle = str(error)

    def _refuse(self, obstacle: str) -> None:
        if obstacle:
            raise UnwatchableError(obstacle)

    def _enter(self, frame: FrameType) -> None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if is_clean(_home(frame)):
            if (module or "").startswith("importlib"):  # torch imports parts of itself, and others, on first use
                self._importing = frame
            if is_clean(module) and frame.f_back is not None and not is_clean(_home(frame.f_back)):
                self._refuse(use_obstacle(module, code.co_name))
            return
        self._refuse(use_obstacle(module, code.co_qualname) or numpy_obstacle(module, code.co_qualname))
        if is_standard(module):
            self._standard.add(code)
        try:
            if code not in self._entered:
                self._entered.add(code)
                self._parents.update(dict.fromkeys(nested(code), code))
                self._reach.enter(code, frame.f_globals)
                self._inspect(code, frame.f_globals)
        finally:  # of code with an obstacle too, whose counters the guard is to ignore
            for store in summarize(code).stores if module != "contextlib" else ():  # it sets those of new objects only
                self._store(store, frame)

    def _inspect(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Refuse code that changes anything that outlives the call, and watch the global variables that it may set."""
        summary = summarize(code)
        for name in summary.changes:
            self._reach.watch(variables, name, variables)
        for name in sorted(summary.outer):
            self._refuse(f"f changes {name}, a variable outside of it" if self._outlives(code, name) else "")
        for name in sorted(summary.loads & HIDDEN_WRITES):
            self._refuse(f"f uses {name}")
        for module in summary.imports:
            self._refuse(use_obstacle(module) if module in sys.modules else f"f imports {module}")
            self._reach.imports(module)

    def _outlives(self, code: CodeType, name: str) -> bool:
        """Whether a variable of an enclosing function existed before the call."""
        if code in self._reach.codes or code not in self._parents:
            return True
        parent = self._parents[code]
        return name not in parent.co_cellvars and self._outlives(parent, name)

    def _store(self, store: Store, frame: FrameType) -> None:
        """Watch an attribute that the code may set, unless the object is new. Refuse if it cannot be watched.

        Code may contain an assignment that does not run, such as that of a layer which the first call makes.
        """
        owner = _resolve(store.path, frame)
        if owner is ABSENT or isinstance(owner, Tensor | type | ModuleType | FunctionType):
            whose = f" of {type(owner).__name__}" if owner is not ABSENT else ""
            raise UnwatchableError(f"f sets the attribute {store.name!r}{whose}")
        if owner in self._reach and type(owner).__dictoffset__:
            self._reach.watch(owner.__dict__, store.name, owner)
            if store.counts and type(owner.__dict__.get(store.name)) in (int, float):
                self._candidates[id(owner), store.name] = owner

    def conclude(self) -> tuple[str, tuple[Counter, ...]]:
        """Compare everything with its value before the call, and return the obstacle and the counters."""
        counters, others = [], []
        for change in self.guard.changes():
            if (id(change.owner), change.name) in self._candidates and type(change.after) in (int, float):
                counters.append(Counter(change.owner, change.name, int(change.after - change.before)))
            else:
                others.append(change)
        obstacle = self._obstacle or next(map(words, others), "") or self._unknown() or self._reads(counters)
        for counter in counters:
            self.guard.ignore(counter.owner.__dict__, counter.name)
        return obstacle, () if obstacle else tuple(counters)

    def _unknown(self) -> str:
        """Return the obstacle if a function ran whose changes would go unnoticed; empty if none did."""
        unknown = self._entered - self._standard - self._reach.codes - self._parents.keys()
        return next((f"f calls {code.co_qualname}, which cannot be found from f" for code in unknown), "")

    def _reads(self, counters: list[Counter]) -> str:
        """Return the obstacle if f may compute with one of its counters; empty if not."""
        for counter in counters:
            read = any(counter.name in summarize(code).loads.union(strings(code)) for code in self._entered)
            if read or self._reach.any_name:
                return f"f may read the attribute {counter.name!r}, which it changes"
        return ""


def _home(frame: FrameType) -> str | None:
    """Return the module on whose behalf a frame runs: its own, or the one that called the standard library."""
    current: FrameType | None = frame
    while current is not None and is_standard(current.f_globals.get("__name__")):
        current = current.f_back
    return None if current is None else current.f_globals.get("__name__")


def _resolve(path: Path, frame: FrameType) -> Any:
    """Return the object that a chain of names refers to at the start of a call; ``ABSENT`` if this is uncertain."""
    if not path:
        return ABSENT
    value = frame.f_locals.get(path[0], frame.f_globals.get(path[0], ABSENT))
    for name in path[1:]:
        space = value.__dict__ if type(value).__dictoffset__ else {}
        inner = space["_modules"] if isinstance(value, nn.Module) else {}
        value = space.get(name, inner.get(name, ABSENT))
    return value


def words(change: Change) -> str:
    """Return the obstacle that f has changed something."""
    owner, name = change.owner, change.name
    if isinstance(owner, dict) and "__name__" in owner and "__builtins__" in owner:
        return f"f changes the global {name}"
    if name is None or isinstance(owner, dict):
        return f"f changes a {type(owner).__name__}"
    if name == "cell_contents":
        return "f changes a variable outside of it"
    return f"f sets the attribute {name!r} of {type(owner).__name__}"
