"""Find what the tensors of a recording depend on: nothing, parameters, or state and time."""

from __future__ import annotations

from anode.engine.trace.events import Event, Recording, Ref
from anode.engine.trace.replay import Recipe, needed

LITERAL, PARAMETRIC, MOVING = 0, 1, 2


class Dependence:
    """Finds what events depend on.

    Writing to a storage may raise its level, so visit the events in order.

    Args:
        recording: What f did.
        literal: The storages from outside whose values are part of the program.
    """

    def __init__(self, recording: Recording, literal: set[int]) -> None:
        self.recording, self.literal = recording, literal

    def at_first(self) -> list[int]:
        """Return the levels of the storages before f ran."""
        outside = [LITERAL if i in self.literal else PARAMETRIC for i in range(len(self.recording.storages))]
        origins = [storage.origin for storage in self.recording.storages]
        return [{"input": MOVING, "made": LITERAL}.get(o, level) for o, level in zip(origins, outside, strict=True)]

    def level(self, event: Event, levels: list[int]) -> int:
        """Return what an event depends on."""
        level = max((levels[x.storage] for x in event.reads if not x.is_empty), default=LITERAL)
        if level == PARAMETRIC and any(self._has_batch(x) for x in event.writes):
            return MOVING  # parameters that are repeated for each point: as rows, they are the same for all
        return level

    def mark(self, event: Event, level: int, levels: list[int]) -> None:
        """Raise the levels of the storages that an event writes to."""
        for x in event.writes:
            levels[x.storage] = max(levels[x.storage], level)

    def recipe(self, results: tuple[Ref, ...]) -> Recipe:
        """Return how to compute tensors that depend on parameters."""
        levels = self.at_first()
        found = {}
        for event in self.recording.events:
            found[id(event)] = self.level(event, levels)
            self.mark(event, found[id(event)], levels)
        steps = [event for event in self.recording.events if found[id(event)] < MOVING]
        kept = needed(steps, {x.storage for x in results})
        touched = sorted({x.storage for event in kept for x in event.reads})
        seen = [(i, pair) for i in touched for pair in self.recording.storages[i].seen.items()]
        sources = tuple(pair for i, pair in seen if i not in self.literal)
        literals = tuple((ref, x.detach().clone()) for i, (ref, x) in seen if i in self.literal)
        return Recipe(sources, literals, tuple((event, found[id(event)] == LITERAL) for event in kept), results)

    def _has_batch(self, ref: Ref) -> bool:
        batch = self.recording.batch
        return batch > 0 and any(n > 0 and n % batch == 0 for n in ref.size)
