"""Read and write files. All files are written here, atomically: a file is either complete or not there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from math import isfinite
from pathlib import Path
from shutil import rmtree
from typing import Any, NoReturn
from uuid import uuid4

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

try:
    import fcntl
except ImportError:  # not available on Windows
    fcntl = None  # type: ignore[assignment]


UNFINISHED = ".anode-unfinished-"
"""Prefix of the names of files and folders that are being written."""
LONGEST_HEADER = 10**8
"""Maximum number of bytes of a safetensors file's header, as defined by the format."""
ARRIVING = ".anode-arriving-"
"""Prefix of the names of tensor files that are complete but have not been renamed to their final name."""


class DamagedFileError(ValueError):
    """A file is damaged, or not in the format that its name says."""


@contextmanager
def locked(folder: Path, argument: str) -> Iterator[None]:
    """Lock a folder for this process, or raise ``BlockingIOError`` if another process has locked it.

    The operating system releases the lock when the process ends, even if it is killed. Does nothing if the system or
    the file system does not support locks.

    Args:
        folder: The folder, which must exist.
        argument: The caller's name for it, for the error message.
    """
    descriptor = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(
            f"{argument}: {folder} is in use by another process; wait until it ends, or choose another folder"
        ) from None
    except OSError:
        pass  # the file system does not support locks
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write(path: Path, save: Callable[[Path], object]) -> Path:
    """Write a file under a temporary name in the same folder, and rename it once it is complete.

    Args:
        path: The file. Its folder is created if necessary.
        save: A function that writes to the path it is given, which has the same suffix.

    Raises:
        OSError: If the file could not be written, for example because the disk is full. The error names ``path``.
    """
    with _complete({path: save}) as made, naming(path):
        made[path].replace(path)
    return path


@contextmanager
def _complete(saves: Mapping[Path, Callable[[Path], object]]) -> Iterator[dict[Path, Path]]:
    """Write files under temporary names and yield these names, by the final name of each file.

    Files that still have their temporary name afterwards are removed.
    """
    made = {path: temporary(path) for path in saves}
    for path in saves:
        if path.exists() and not (path.is_file() or path.is_dir()):  # replacing a device would remove it
            raise ValueError(f"{path}: takes a file, got a device or a pipe; choose another name")
    try:
        for path, save in saves.items():
            with naming(path):
                make_folder(path.parent)
                save(made[path])
                with made[path].open("rb+") as file:
                    os.fsync(file.fileno())
        yield made
    finally:
        for unfinished in made.values():
            with suppress(OSError):  # a read-only disk raises an error even if the file does not exist
                unfinished.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, unfinished: Path | None = None) -> Iterator[None]:
    """Make operating system errors name the requested file instead of the temporary one.

    Args:
        path: The requested file.
        unfinished: If given, only errors about this temporary folder and its contents are changed.
    """
    try:
        yield
    except OSError as error:
        about = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        elsewhere = unfinished is not None and (about is None or unfinished not in (about, *about.parents))
        if error.errno is None or elsewhere:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def make_folder(folder: Path) -> Path:
    """Create a folder and its missing parents, and return it.

    ``Path.mkdir`` is recursive and raises a ``RecursionError`` for a path with a thousand levels.
    """
    missing: list[Path] = []
    for each in (folder, *folder.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
    return folder


def temporary(path: Path) -> Path:
    """Return a new temporary name in the same folder, which :func:`remove_unfinished` recognizes.

    The name has a prefix that only anode uses, and 32 random digits.
    """
    return path.with_name(f"{UNFINISHED}{_short(path.stem)}-{uuid4().hex}{_short(path.suffix)}")


def remove_unfinished(folder: Path, stem: str = "") -> None:
    """Remove temporary files and folders that killed processes left behind.

    Args:
        folder: The folder to search. No other process may be writing there. It need not exist.
        stem: Prefix of the final names whose temporary files are removed. Defaults to all.
    """
    left = re.compile(rf"{re.escape(UNFINISHED + stem)}.*-[0-9a-f]{{32}}(\.[^.]*)?")
    for path in folder.iterdir() if folder.is_dir() else ():
        if not left.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _short(name: str) -> str:
    """Return the first 64 bytes of a name, because systems limit file names to 255 bytes."""
    return os.fsencode(name)[:64].decode("utf-8", "ignore")


def sync_folder(folder: Path) -> None:
    """Flush the names of a folder's files to disk, on systems that support it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a binary file."""
    return write(path, lambda unfinished: unfinished.write_bytes(content))


def write_text(path: Path, text: str) -> Path:
    """Write a text file."""
    return write(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any, indent: int | None = None) -> Path:
    """Write a JSON file. Raises ``ValueError`` for NaN and infinity, which JSON does not have."""
    return write_text(path, _as_json(content, indent))


def _as_json(content: Any, indent: int | None) -> str:
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"


def write_described(described: Path, content: dict[str, Any], path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors and the JSON file that describes them as one atomic operation, and return the JSON file.

    A process that calls :func:`read_described` at the same time gets both old files or both new files. The JSON file
    holds the checksum of its tensors. The tensors are first written under a name that contains their checksum; then the
    JSON file is replaced, which is the atomic step; then the tensors get their final name. If the process is killed at
    any moment, it leaves a pair of files that can be read.
    """
    values = tensors_to_bytes(tensors)
    checksum = sha256(values).hexdigest()
    text = _as_json({**content, "sha256": checksum}, indent=1)
    saves: dict[Path, Callable[[Path], object]] = {
        path: lambda unfinished: unfinished.write_bytes(values),
        described: lambda unfinished: unfinished.write_text(text, encoding="utf-8"),
    }
    arriving = _arriving(path, checksum)
    with _complete(saves) as made, _only_writer(described, made[described]) as alone:
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
    return path.with_name(f"{ARRIVING}{_short(path.stem)}-{checksum}{path.suffix}")


def _remove_arriving(path: Path) -> None:
    """Remove tensors whose JSON file was not written because the process was killed."""
    names = re.compile(rf"{re.escape(ARRIVING + _short(path.stem))}-([0-9a-f]{{64}}){re.escape(path.suffix)}")
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
            while fcntl is not None and not in_place:
                file = stack.enter_context(described.open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX)
                in_place = os.path.samestat(os.fstat(file.fileno()), described.stat())  # False if it was just replaced
        with suppress(OSError):
            if fcntl is not None:
                fcntl.flock(stack.enter_context(coming.open("rb")), fcntl.LOCK_EX)
        yield in_place


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise :class:`DamagedFileError`, also for NaN and infinity, which JSON does not have."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFileError(f"{path}: is not a JSON file ({error}); remove it or restore it") from None


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"it holds {text}")


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _refuse(text)


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
