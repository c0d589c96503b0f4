"""Resume a training run from its last checkpoint."""

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
"""Default number of seconds between checkpoints."""


@contextmanager
def resumed(training: Training, path: str | Path | None, every: float | None) -> Iterator[Folder | None]:
    """Restore a run from the last checkpoint in a folder, if there is one, and yield the folder for new checkpoints.

    Args:
        training: The run, which has not started.
        path: The folder; ``None`` for no checkpoints.
        every: Seconds between checkpoints; ``None`` for :data:`SECONDS`.

    Yields:
        The folder, or ``None``. Of several processes, only the first has it and sends its content to the others.
    """
    every = number("checkpoint_every", every, zero=True, optional=True)
    if path is None:
        require(every is None, "checkpoint_every", every, "None without a folder (pass checkpoint=...)")
        yield None
        return
    if not isinstance(path, str | Path):
        raise TypeError(f"checkpoint: takes the path of a folder, got {path!r}")
    data = training.protocol.data
    if isinstance(data, Stream) and not data.is_function:
        warnings.warn(
            f"data: with the batches of a {data.kind}, a resumed run does not give exactly the same result; pass a "
            "function that takes a seed and returns the batches of an epoch",
            stacklevel=7,
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
            made = f"because {path} holds {state.iteration} iterations, {batches} per epoch"
            least = -(-state.iteration // batches)
            require(state.iteration <= training.total, "epochs", training.epochs, f"at least {least}, {made}")
            restore(training, state)
        yield folders[0] if folders else None
