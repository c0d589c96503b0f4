"""Taking up a training run where it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anode.checks import number, require
from anode.train.checkpoint.fingerprint import fingerprint
from anode.train.checkpoint.folder import Folder, opened
from anode.train.checkpoint.state import Checkpoint, restore
from anode.train.streams import Stream

if TYPE_CHECKING:
    from anode.train.training import Training


SECONDS = 60.0
"""How long to wait from one state to the next, if nothing is said."""


@contextmanager
def resumed(training: Training, path: str | Path | None, every: float | None) -> Iterator[Folder | None]:
    """Let a run go on from the last state in a folder, if there is one, and keep those to come there.

    Args:
        training: The run, which has not begun.
        path: The folder; ``None`` if nothing is to be kept.
        every: How many seconds to wait from one state to the next; :data:`SECONDS` if that is ``None``.

    Yields:
        The folder. Only the first of several processes has it; the others are told what is in it.
    """
    every = number("checkpoint_every", every, zero=True, optional=True)
    if path is None:
        require(every is None, "checkpoint_every", every, "nothing without a folder (pass checkpoint=...)")
        yield None
        return
    if not isinstance(path, str | Path):
        raise TypeError(f"checkpoint: takes the path of a folder, got {path!r}")
    data = training.protocol.data
    if isinstance(data, Stream) and not data.is_function:
        warnings.warn(
            f"data: the batches of a {data.kind} cannot be resumed to the same bits; pass a function that makes the "
            "batches of an epoch from a seed",
            stacklevel=5,
        )
    with ExitStack() as stack:
        folders = []

        def read() -> list[bytes]:
            protocol = fingerprint(training.network, training.protocol)
            folders.append(stack.enter_context(opened(path, protocol, SECONDS if every is None else every)))
            state = folders[0].read()
            return [] if state is None else state.to_bytes()

        parts = training.ranks.from_first(read)
        if parts:
            state, batches = Checkpoint.from_bytes(parts), training.protocol.batches
            made = f"as in {path} {state.iteration} iterations have been made, {batches} an epoch"
            least = -(-state.iteration // batches)
            require(state.iteration <= training.total, "epochs", training.epochs, f"at least {least}, {made}")
            restore(training, state)
        yield folders[0] if folders else None
