"""Write files atomically: a file is either complete or not there. Only archives are unpacked elsewhere."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import BinaryIO
from uuid import uuid4

try:
    import fcntl
except ImportError:  # not available on Windows
    fcntl = None  # type: ignore[assignment]


UNFINISHED = ".anode-unfinished-"
"""Prefix of the names of files and folders that are being written."""


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


def hold(file: BinaryIO) -> None:
    """Lock an open file until it is closed; wait for other processes. Raise ``OSError`` if there are no locks."""
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "this system has no locks")
    fcntl.flock(file, fcntl.LOCK_EX)


def write(path: Path, save: Callable[[Path], object]) -> Path:
    """Write a file under a temporary name in the same folder, and rename it once it is complete.

    Args:
        path: The file. Its folder is created if necessary.
        save: A function that writes to the path it is given, which has the same suffix.

    Raises:
        OSError: If the file could not be written, for example because the disk is full. The error names ``path``.
    """
    with completed({path: save}) as made, naming(path):
        made[path].replace(path)
    return path


@contextmanager
def completed(saves: Mapping[Path, Callable[[Path], object]]) -> Iterator[dict[Path, Path]]:
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


def holds_files(folder: Path) -> bool:
    """Whether a folder exists and holds any files but hidden ones."""
    return folder.is_dir() and not all(path.name.startswith(".") for path in folder.iterdir())


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
    return path.with_name(f"{UNFINISHED}{short(path.stem)}-{uuid4().hex}{short(path.suffix)}")


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


def short(name: str) -> str:
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
