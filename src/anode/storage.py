"""JSON files, files of tensors, and pairs of both. Reading checks them, and does not execute code from them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from anode.files import DamagedFileError, completed, hold, naming, short, sync_folder, write_bytes, write_text

LONGEST_HEADER = 10**8
"""Maximum number of bytes of a safetensors file's header, as defined by the format."""
ARRIVING = ".anode-arriving-"
"""Prefix of the names of tensor files that are complete but have not been renamed to their final name."""


def write_json(path: Path, content: Any, indent: int | None = None) -> Path:
    """Write a JSON file. Raises ``ValueError`` for NaN and infinity, which JSON does not have."""
    return write_text(path, _as_json(content, indent))


def write_sealed(path: Path, content: dict[str, Any], indent: int | None = None) -> Path:
    """Write a JSON file with a digest of its content, so that :func:`read_json` notices if a value has changed."""
    return write_text(path, _as_json(_sealed(content), indent))


def digest(content: Any) -> str:
    """Return a hash of anything that JSON can hold."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sealed(content: dict[str, Any]) -> dict[str, Any]:
    content = json.loads(json.dumps(content))  # as it will be read: keys are texts, and sorted as texts
    return {**content, "digest": digest(content)}


def _as_json(content: Any, indent: int | None) -> str:
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"


def write_described(described: Path, content: dict[str, Any], path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors and the JSON file that describes them as one atomic operation, and return the JSON file.

    A process that calls :func:`read_described` at the same time gets both old files or both new files. The JSON file
    is sealed and holds the checksum of its tensors. The tensors are first written under a name that contains their
    checksum; then the JSON file is replaced, which is the atomic step; then the tensors get their final name. If the
    process is killed at any moment, it leaves a pair of files that can be read.
    """
    values = tensors_to_bytes(tensors)
    checksum = sha256(values).hexdigest()
    text = _as_json(_sealed({**content, "sha256": checksum}), indent=1)
    saves: dict[Path, Callable[[Path], object]] = {
        path: lambda unfinished: unfinished.write_bytes(values),
        described: lambda unfinished: unfinished.write_text(text, encoding="utf-8"),
    }
    arriving = _arriving(path, checksum)
    with completed(saves) as made, _only_writer(described, made[described]) as alone:
        try:
            with naming(path):
                made[path].replace(arriving)
                sync_folder(path.parent)
            with naming(described):
                made[described].replace(described)
        except BaseException:
            arriving.unlink(missing_ok=True)
            raise
        with naming(path):
            sync_folder(path.parent)
            with suppress(FileNotFoundError):  # without locks, another process may have written the same tensors
                arriving.replace(path)
        if alone:
            _remove_arriving(path)
    return described


def read_described(described: Path, path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Read a JSON file and the tensors that it describes.

    Args:
        described: The JSON file.
        path: The file of the tensors.

    Raises:
        FileNotFoundError: If one of the files does not exist.
        DamagedFileError: If a file is damaged, or the JSON file holds the checksum of other tensors.
    """
    content, misses = read_json(described), 0
    while True:
        checksum = content.get("sha256") if isinstance(content, dict) else None
        if checksum is not None and not (isinstance(checksum, str) and re.fullmatch("[0-9a-f]{64}", checksum)):
            raise DamagedFileError(f"{described}: is damaged: its sha256 is not a checksum")
        tensors = _read_matching(path, checksum)
        if tensors is not None:
            return content, tensors
        again = read_json(described)
        # The tensors of one JSON file may be renamed once while they are read, and be missed because of that.
        misses = misses + 1 if again == content else 0
        if misses == 3:
            break
        content = again
    read_tensors(path)
    raise DamagedFileError(
        f"{path}: is damaged, or does not belong to the .json file of the same name, as if a process was killed "
        "while saving; restore both or remove both"
    )


def _read_matching(path: Path, checksum: str | None) -> dict[str, Tensor] | None:
    """Return the tensors with a checksum, from their final or their temporary file; ``None`` if neither matches."""
    if checksum is None:
        return read_tensors(path)
    for place in (path, _arriving(path, checksum)):
        with suppress(FileNotFoundError):
            values = place.read_bytes()
            if sha256(values).hexdigest() == checksum:
                return tensors_from_bytes(values)
    return None


def _arriving(path: Path, checksum: str) -> Path:
    """Return the name of the tensors with a checksum before they get their final name."""
    return path.with_name(f"{ARRIVING}{short(path.stem)}-{checksum}{path.suffix}")


def _remove_arriving(path: Path) -> None:
    """Remove tensors whose JSON file was not written because the process was killed."""
    names = re.compile(rf"{re.escape(ARRIVING + short(path.stem))}-([0-9a-f]{{64}}){re.escape(path.suffix)}")
    for each in path.parent.iterdir():
        found = names.fullmatch(each.name)
        if found and each.is_file() and sha256(each.read_bytes()).hexdigest() == found[1]:
            each.unlink(missing_ok=True)


@contextmanager
def _only_writer(described: Path, coming: Path) -> Iterator[bool]:
    """Wait until no other process is replacing a JSON file and its tensors, and make others wait.

    Both the current and the new JSON file are locked, so no separate lock file is needed. Readers do not wait.

    Yields:
        Whether the current file was locked. If there is none, or the system does not support locks, other processes may
        be writing.
    """
    with ExitStack() as stack:
        in_place = False
        with suppress(OSError):  # there is no file yet, or the file system does not support locks
            while not in_place:
                file = stack.enter_context(described.open("rb"))
                hold(file)
                in_place = os.path.samestat(os.fstat(file.fileno()), described.stat())  # False if it was just replaced
        with suppress(OSError):
            hold(stack.enter_context(coming.open("rb")))
        yield in_place


def read_json(path: Path, sealed: bool = False) -> Any:
    """Read a JSON file, or raise :class:`DamagedFileError`, also for NaN and infinity, which JSON does not have.

    Args:
        path: The file. If it has a digest, its content must match it; the digest is not returned.
        sealed: Whether it must have a digest. Files of earlier versions have none, except checkpoints.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFileError(f"{path}: is not a JSON file ({error}); remove it or restore it") from None
    has_digest = isinstance(content, dict) and isinstance(content.get("digest"), str)
    if sealed and not has_digest:
        raise DamagedFileError(f"{path}: is damaged: it has no digest")
    if has_digest and content.pop("digest") != digest(content):
        raise DamagedFileError(f"{path}: is damaged or was edited: its digest is of another content; restore it")
    return content


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"it holds {text}")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse(text)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write a safetensors file."""
    return write_bytes(path, tensors_to_bytes(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, or raise :class:`DamagedFileError`.

    The file is read instead of mapped into memory, because overwriting a mapped file crashes the processes that use it.
    """
    try:
        return _in_order(load(path.read_bytes()))
    except SafetensorError as error:
        raise DamagedFileError(f"{path}: is not a safetensors file ({error}); remove it or restore it") from None


def tensors_to_bytes(tensors: Mapping[str, Tensor], notes: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file, with notes that :func:`notes_in` reads."""
    return save(_contiguous(tensors), notes)


def notes_in(path: Path) -> dict[str, str]:
    """Read the notes in the header of a safetensors file, without its tensors; empty if it is not such a file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            notes = json.loads(file.read(min(size, LONGEST_HEADER)))["__metadata__"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
    return notes if isinstance(notes, dict) else {}


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """Return the tensors in the content of a safetensors file, or raise :class:`DamagedFileError`."""
    try:
        return _in_order(load(content))
    except SafetensorError as error:
        raise DamagedFileError(f"these bytes are not a safetensors file ({error})") from None


def _in_order(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sort the tensors by name, because safetensors returns them in a different order in every process."""
    return dict(sorted(tensors.items()))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
