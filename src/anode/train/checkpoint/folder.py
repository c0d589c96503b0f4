"""A folder with the last checkpoints of a training run, of which at least one is always complete."""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anode.files import DamagedFileError, locked, make_folder, remove_unfinished, sync_folder, write_bytes
from anode.storage import notes_in, read_json, tensors_from_bytes, tensors_to_bytes, write_sealed
from anode.train.checkpoint.fingerprint import differences
from anode.train.checkpoint.state import Checkpoint
from anode.train.formats import from_arrays
from anode.train.history import History
from anode.train.record import Array
from anode.version import __version__

FORMAT = "anode training 3"
FIRST_FORMAT = "anode training 1"
NOTES = {"format": FORMAT}
"""The notes in the header of a checkpoint's tensors."""
KEPT = 2
"""Number of checkpoints to keep: the last one, and one more in case it is damaged."""


class Folder:
    """The checkpoints of a training run: ``state-<iteration>.safetensors``, and ``.json``, which is written last.

    Args:
        path: The folder.
        protocol: The fingerprint of the run, see :func:`anode.train.checkpoint.fingerprint.fingerprint`.
        every: Seconds between checkpoints.
    """

    def __init__(self, path: Path, protocol: dict[str, Any], every: float) -> None:
        self.path, self.protocol, self.every = path, protocol, every
        self.whole: list[int] = []  # the iterations of checkpoints that are known to be complete, in order
        self.last = time.perf_counter()

    @property
    def due(self) -> bool:
        """Whether the next checkpoint is due."""
        return time.perf_counter() - self.last >= self.every

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint that is not damaged; ``None`` if the folder has none.

        Raises:
            DamagedFileError: If all checkpoints are damaged.
            ValueError: If they belong to another training run, or files of the same name are not checkpoints.
        """
        damaged = []
        if not self._iterations("json"):
            self._refuse_others()
        for iteration in sorted(self._iterations("json"), reverse=True):
            try:
                state = self._read(iteration)
            except DamagedFileError as error:
                damaged.append(str(error))
                continue
            if damaged:
                warnings.warn(f"{damaged[0]}; training goes on from iteration {iteration}", stacklevel=2)
            self.whole = [iteration]
            return state
        if damaged:
            raise DamagedFileError(
                f"checkpoint: no checkpoint in {self.path} can be read ({'; '.join(damaged)}); remove the folder to "
                "start again"
            )
        return None

    def write(self, state: Checkpoint) -> None:
        """Write a checkpoint, unless it exists, and remove old ones."""
        if self.whole[-1:] == [state.iteration]:
            return
        described, tensors = self._paths(state.iteration)
        values = tensors_to_bytes(state.tensors, NOTES)
        content = {
            "format": FORMAT,
            "version": __version__,
            "iteration": state.iteration,
            "sha256": hashlib.sha256(values).hexdigest(),
            "protocol": self.protocol,
            "state": state.content,
        }
        write_bytes(tensors, values)
        try:
            write_sealed(described, content, indent=1)
        except BaseException:
            tensors.unlink(missing_ok=True)
            raise
        sync_folder(self.path)  # before older checkpoints are removed
        self.whole = [*self.whole, state.iteration][-KEPT:]
        for iteration in {*self._iterations("json"), *self._iterations("safetensors")} - {*self.whole}:
            if self._is_ours(iteration):
                for path in self._paths(iteration):
                    path.unlink(missing_ok=True)
        self.last = time.perf_counter()

    def _refuse_others(self) -> None:
        """Raise ``ValueError`` if the folder holds other files that checkpoints would overwrite."""
        for iteration in self._iterations("safetensors"):
            if not self._is_ours(iteration):
                path = self._paths(iteration)[1]
                raise ValueError(f"checkpoint: {path} is not a checkpoint of anode; choose another folder, or move it")

    def _is_ours(self, iteration: int) -> bool:
        """Whether the files of an iteration are a checkpoint, and not other files of the same name."""
        described, tensors = self._paths(iteration)
        with suppress(FileNotFoundError, DamagedFileError):
            content = read_json(described)
            if isinstance(content, dict) and content.get("format") == FORMAT:
                return True
        with suppress(FileNotFoundError):
            return notes_in(tensors) == NOTES
        return False

    def _paths(self, iteration: int) -> tuple[Path, Path]:
        return self.path / f"state-{iteration}.json", self.path / f"state-{iteration}.safetensors"

    def _iterations(self, suffix: str) -> list[int]:
        names = (re.fullmatch(rf"state-(\d+)\.{suffix}", path.name) for path in self.path.iterdir())
        return [int(name[1]) for name in names if name]

    def _read(self, iteration: int) -> Checkpoint:
        described, tensors = self._paths(iteration)
        content = read_json(described, sealed=True)
        if content["format"] != FORMAT:
            raise ValueError(f"checkpoint: takes a folder of format {FORMAT!r}, got {content['format']!r}")
        if other := differences(self.protocol, content["protocol"]):
            raise ValueError(
                f"checkpoint: {self.path} belongs to another training run: {'; '.join(other)}; pass the same arguments "
                "as before, or choose another folder"
            )
        try:
            values = tensors.read_bytes()
        except FileNotFoundError:
            raise DamagedFileError(f"{tensors}: is missing") from None
        if hashlib.sha256(values).hexdigest() != content["sha256"]:
            raise DamagedFileError(f"{tensors}: is damaged")
        return Checkpoint(content["iteration"], content["state"], tensors_from_bytes(values))


def last_history(path: Path) -> History | None:
    """Return the history of a run from its last checkpoint; ``None`` if the folder holds none that can be read.

    Nothing is verified: use it to see the progress of a run, not to resume it.
    """
    found = [re.fullmatch(r"state-(\d+)\.json", each.name) for each in (path.iterdir() if path.is_dir() else ())]
    iteration = max((int(name[1]) for name in found if name), default=0)
    try:
        content = read_json(path / f"state-{iteration}.json")
        tensors = tensors_from_bytes((path / f"state-{iteration}.safetensors").read_bytes())
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        if content["format"] == FIRST_FORMAT:
            return _history_of_first_format(content, arrays)
        return History(**from_arrays(content["state"]["history"], arrays))
    except (OSError, DamagedFileError, KeyError, TypeError, ValueError):
        return None


def _history_of_first_format(content: dict[str, Any], arrays: dict[str, Array]) -> History:
    """Return the history in a checkpoint of version 0.1, from which this version cannot resume."""
    series = {re.sub(r"^(record|evaluation)\.", "history.", name): array for name, array in arrays.items()}
    ((images, *_), *_), *_ = content["protocol"]["data"]
    facts = {
        "batches": -(-images // content["protocol"]["batch_size"]),
        "stopped": "",
        "failures": content["state"]["failures"],
        "snapshots": [],
    }
    return History(**from_arrays(facts, series))


@contextmanager
def opened(path: str | Path, protocol: dict[str, Any], every: float) -> Iterator[Folder]:
    """Lock a folder for this process, and remove what a killed process left behind in it."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise ValueError(f"checkpoint: takes a folder, which need not exist, got the file {str(path)!r}")
    make_folder(path)
    with locked(path, "checkpoint"):
        remove_unfinished(path, "state-")
        yield Folder(path, protocol, every)
