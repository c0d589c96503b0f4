"""Writing files: the only place where it is done, so that a file is whole or not there, whatever happens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

try:
    import fcntl
except ImportError:  # a system without it
    fcntl = None  # type: ignore[assignment]


UNFINISHED = ".anode-unfinished-"
"""How the names of files and folders begin that are being made."""
LONGEST_HEADER = 10**8
"""Bytes of a safetensors file's header, as the format has it."""
ARRIVING = ".anode-arriving-"
"""How the names of tensors begin that their description names already, and that have not taken their name yet."""


class DamagedFileError(ValueError):
    """A file that does not hold what its name promises."""


@contextmanager
def locked(folder: Path, argument: str) -> Iterator[None]:
    """Keep a folder for this process; ``BlockingIOError`` if another one has it.

    The lock is the system's, so it ends with the process however that ends, and nothing is left behind. Where a system
    or a file system has no such locks, nobody looks after that.

    Args:
        folder: Exists.
        argument: What the caller calls it.
    """
    descriptor = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(
            f"{argument}: {folder} is in use by another process; wait for it, or give another folder"
        ) from None
    except OSError:
        pass  # the file system has no locks
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write(path: Path, save: Callable[[Path], object]) -> Path:
    """Create a file by way of a temporary one beside it, which takes its name once it is complete.

    Args:
        path: The file; its folder is made if need be.
        save: Writes to the path it is given, which has the same suffix.

    Raises:
        OSError: It could not be written, because the disk is full for example; the error names it.
    """
    with _complete({path: save}) as made, naming(path):
        made[path].replace(path)
    return path


@contextmanager
def _complete(saves: Mapping[Path, Callable[[Path], object]]) -> Iterator[dict[Path, Path]]:
    """Write files under temporary names and yield these, by the names that they are to take.

    Whatever still has its temporary name in the end is removed.
    """
    made = {path: temporary(path) for path in saves}
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
            with suppress(OSError):  # a disk that became read-only refuses this even if there is no such file
                unfinished.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, unfinished: Path | None = None) -> Iterator[None]:
    """Let errors of the system name the file that was asked for, and not the temporary one that they are about.

    Args:
        path: The file.
        unfinished: If given, only errors about this temporary folder and what is in it are changed.
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
    """Make a folder, and those that it lies in, as far as they are not there.

    ``Path.mkdir`` calls itself once per level, and ends in a ``RecursionError`` on a path of a thousand levels.
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
    """A new name beside a file or folder, to make it under; :func:`remove_unfinished` knows such names.

    Nobody else makes such names: a prefix of this program's own, and 32 random digits.
    """
    return path.with_name(f"{UNFINISHED}{_short(path.stem)}-{uuid4().hex}{_short(path.suffix)}")


def remove_unfinished(folder: Path, stem: str = "") -> None:
    """Remove what has a temporary name because the process that was making it was killed.

    Args:
        folder: Where; nobody may be writing there. It need not exist.
        stem: How the names begin that were to be taken.
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
    """As much of a name as leaves room for more: systems take names of 255 bytes."""
    return os.fsencode(name)[:64].decode("utf-8", "ignore")


def sync_folder(folder: Path) -> None:
    """Let the names of a folder's files be on the disk, where a system can say so."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file of bytes."""
    return write(path, lambda unfinished: unfinished.write_bytes(content))


def write_text(path: Path, text: str) -> Path:
    """Write a text file."""
    return write(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any, indent: int | None = None) -> Path:
    """Write a JSON file; NaN and infinities, which JSON does not have, are refused."""
    return write_text(path, _as_json(content, indent))


def _as_json(content: Any, indent: int | None) -> str:
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"


def write_described(described: Path, content: dict[str, Any], path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors and the JSON file that describes them, and says which they are; returns the latter.

    Another process that reads them meanwhile, with :func:`read_described`, gets both as they were or both as they will
    be. The moment in between is when the JSON file takes its name: it holds the checksum of its tensors, which are on
    the disk by then, under a name that consists of that checksum. They take the name that people know afterwards. A
    process that is killed leaves a pair that can be read, at whatever moment.
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
            with suppress(FileNotFoundError):  # another process wrote the same, where there are no locks
                arriving.replace(path)
        if alone:
            _remove_arriving(path)
    return described


def read_described(described: Path, path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Read a JSON file and the tensors that it describes, which have to be those it says they are, if it does.

    Args:
        described: The JSON file.
        path: The tensors.

    Raises:
        FileNotFoundError: One of them is not there.
        DamagedFileError: They do not belong together, or one of them is not such a file.
    """
    content, misses = read_json(described), 0
    while True:
        checksum = content.get("sha256") if isinstance(content, dict) else None
        if checksum is not None and not (isinstance(checksum, str) and re.fullmatch("[0-9a-f]{64}", checksum)):
            raise DamagedFileError(f"{described}: is damaged: its sha256 is no checksum")
        tensors = _read_matching(path, checksum)
        if tensors is not None:
            return content, tensors
        again = read_json(described)
        # While one description is in place, its tensors may change their name once, and be missed by that.
        misses = misses + 1 if again == content else 0
        if misses == 3:
            break
        content = again
    read_tensors(path)
    raise DamagedFileError(
        f"{path}: is damaged, or does not belong to the .json file beside it, as if a process was killed while "
        "saving; restore both or remove both"
    )


def _read_matching(path: Path, checksum: str | None) -> dict[str, Tensor] | None:
    """Tensors of a checksum, wherever they are; ``None`` if there are only others, or none."""
    if checksum is None:
        return read_tensors(path)
    for place in (path, _arriving(path, checksum)):
        with suppress(FileNotFoundError):
            values = place.read_bytes()
            if sha256(values).hexdigest() == checksum:
                return tensors_from_bytes(values)
    return None


def _arriving(path: Path, checksum: str) -> Path:
    """Where tensors of a checksum are before they take their name."""
    return path.with_name(f"{ARRIVING}{_short(path.stem)}-{checksum}{path.suffix}")


def _remove_arriving(path: Path) -> None:
    """Remove tensors that a process did not come to describe because it was killed."""
    names = re.compile(rf"{re.escape(ARRIVING + _short(path.stem))}-([0-9a-f]{{64}}){re.escape(path.suffix)}")
    for each in path.parent.iterdir():
        found = names.fullmatch(each.name)
        if found and each.is_file() and sha256(each.read_bytes()).hexdigest() == found[1]:
            each.unlink(missing_ok=True)


@contextmanager
def _only_writer(described: Path, coming: Path) -> Iterator[bool]:
    """Wait until no other process is replacing a JSON file and its tensors, and keep others waiting.

    The lock is on the JSON file itself, on the one in place and on the one that comes, so that no further file is
    needed. Nobody is kept from reading.

    Yields:
        Whether there was a file to lock; where there was none, or the system has no locks, others may be writing.
    """
    with ExitStack() as stack:
        in_place = False
        with suppress(OSError):  # there is no file yet, or the file system has no locks
            while fcntl is not None and not in_place:
                file = stack.enter_context(described.open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX)
                in_place = os.path.samestat(os.fstat(file.fileno()), described.stat())  # or it was just replaced
        with suppress(OSError):
            if fcntl is not None:
                fcntl.flock(stack.enter_context(coming.open("rb")), fcntl.LOCK_EX)
        yield in_place


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise :class:`DamagedFileError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFileError(f"{path}: is not a JSON file ({error}); remove it or restore it") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write a safetensors file."""
    return write_bytes(path, tensors_to_bytes(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, or raise :class:`DamagedFileError`.

    The file is read, not mapped into memory: whoever overwrites a mapped file ends the processes that look at it.
    """
    try:
        return _in_order(load(path.read_bytes()))
    except SafetensorError as error:
        raise DamagedFileError(f"{path}: is not a safetensors file ({error}); remove it or restore it") from None


def tensors_to_bytes(tensors: Mapping[str, Tensor], notes: dict[str, str] | None = None) -> bytes:
    """The content of a safetensors file, with notes for :func:`notes_in`."""
    return save(_contiguous(tensors), notes)


def notes_in(path: Path) -> dict[str, str]:
    """The notes in the header of a safetensors file, which is all that is read of it; none if it is no such file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            notes = json.loads(file.read(min(size, LONGEST_HEADER)))["__metadata__"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
    return notes if isinstance(notes, dict) else {}


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """Tensors from the content of a safetensors file, or :class:`DamagedFileError`."""
    try:
        return _in_order(load(content))
    except SafetensorError as error:
        raise DamagedFileError(f"these bytes are not a safetensors file ({error})") from None


def _in_order(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By name: their order is another in every process."""
    return dict(sorted(tensors.items()))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
