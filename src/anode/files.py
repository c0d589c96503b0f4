"""Writing files: the only place where it is done, so that a file is whole or not there, whatever happens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

try:
    import fcntl
except ImportError:  # a system without it
    fcntl = None  # type: ignore[assignment]


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
    write_all({path: save})
    return path


def write_all(saves: Mapping[Path, Callable[[Path], object]]) -> None:
    """Create files that belong together: all are complete before the first takes its name."""
    made = {path: temporary(path) for path in saves}
    path = next(iter(saves))
    try:
        for path, save in saves.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            save(made[path])
            with made[path].open("rb+") as file:
                os.fsync(file.fileno())
        for path, unfinished in made.items():
            unfinished.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name of the temporary file
    finally:
        for unfinished in made.values():
            unfinished.unlink(missing_ok=True)


def temporary(path: Path) -> Path:
    """A new name beside a file or folder, to make it under; :func:`remove_unfinished` knows such names."""
    return path.with_name(f".{path.stem}-{uuid4().hex[:8]}{path.suffix}")


def remove_unfinished(folder: Path, stem: str = "") -> None:
    """Remove what has a temporary name because the process that was making it was killed.

    Args:
        folder: Where; nobody may be writing there. It need not exist.
        stem: How the names begin.
    """
    left = re.compile(rf"\.{re.escape(stem)}.*-[0-9a-f]{{8}}(\.\w+)?")
    for path in folder.iterdir() if folder.is_dir() else ():
        if left.fullmatch(path.name) and path.is_dir():
            rmtree(path, ignore_errors=True)
        elif left.fullmatch(path.name):
            path.unlink(missing_ok=True)


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
    """Write tensors and the JSON file that describes them, and says which they are; returns the latter."""
    values = tensors_to_bytes(tensors)
    text = _as_json({**content, "sha256": sha256(values).hexdigest()}, indent=1)
    write_all(
        {
            path: lambda unfinished: unfinished.write_bytes(values),
            described: lambda unfinished: unfinished.write_text(text, encoding="utf-8"),
        }
    )
    return described


def read_described(content: Any, path: Path) -> dict[str, Tensor]:
    """Read tensors, which have to be those that the content of a JSON file describes, if it says which."""
    tensors = read_tensors(path)
    known = content.get("sha256") if isinstance(content, dict) else None
    if known is not None and sha256(path.read_bytes()).hexdigest() != known:
        raise DamagedFileError(
            f"{path}: is damaged, or does not belong to the .json file beside it, as if a process was killed while "
            "saving; restore both or remove both"
        )
    return tensors


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
    """Read a safetensors file, or raise :class:`DamagedFileError`."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DamagedFileError(f"{path}: is not a safetensors file ({error}); remove it or restore it") from None


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file."""
    return save(_contiguous(tensors))


def tensors_from_bytes(content: bytes) -> dict[str, Tensor]:
    """Tensors from the content of a safetensors file, or :class:`DamagedFileError`."""
    try:
        return load(content)
    except SafetensorError as error:
        raise DamagedFileError(f"these bytes are not a safetensors file ({error})") from None


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
