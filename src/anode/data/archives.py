"""Safe unpacking of archives: nothing is written outside the folder, and a folder is complete or absent."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from anode.data.reading import damaged
from anode.files import naming, temporary

Tell = Callable[[str, int, int], object]
"""Called with the progress: what is being done, how much is done, and the total."""

MOST_BYTES = 4 * 2**30
"""The official archives are smaller. A larger one is refused before it is unpacked."""


def unpack(archive: Path, wanted: str, tell: Tell) -> Path:
    """Unpack a folder of an archive next to the archive, and replace an existing folder of that name.

    Args:
        archive: A .zip or .tar.gz file. Everything in it is checked first.
        wanted: The folder in it to unpack.
        tell: Called with the progress.

    Returns:
        The unpacked folder.

    Raises:
        DamagedFileError: If the archive cannot be read, holds links or paths that lead elsewhere, or not that folder.
    """
    unfinished = temporary(archive.with_name("unpacking"))
    try:
        with naming(archive.with_name(wanted), unfinished), _readable(archive):
            steps = _unzip(archive, unfinished) if archive.suffix == ".zip" else _untar(archive, unfinished)
            for done, total in steps:
                tell(f"unpacking {archive.name}", done, total)
        if not (unfinished / wanted).is_dir():
            raise damaged(archive, f"an archive of {wanted}", "one without it")
        place, old = archive.with_name(wanted), unfinished / "old"
        if place.exists():
            place.replace(old)  # which goes with the rest
        return (unfinished / wanted).replace(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _unzip(archive: Path, folder: Path) -> Iterator[tuple[int, int]]:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        # The upper half of these attributes is the Unix mode, 0 if the archive was made elsewhere.
        modes = [member.external_attr >> 16 for member in members]
        plain = [stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR) for mode in modes]
        sizes = [member.file_size for member in members]
        _check_members(archive, zip([member.filename for member in members], sizes, plain, strict=True))
        for done, member in enumerate(members, 1):
            file.extract(member, folder)
            yield done, len(members)


def _untar(archive: Path, folder: Path) -> Iterator[tuple[int, int]]:
    _check_gzip(archive)
    with tarfile.open(archive, "r:gz") as file:
        members = file.getmembers()
        _check_members(archive, ((one.name, one.size, one.isreg() or one.isdir()) for one in members))
        for done, member in enumerate(members, 1):
            file.extract(member, folder, filter="data")
            yield done, len(members)


def _check_gzip(archive: Path) -> None:
    """Read a compressed file to its end, because tarfile does not notice that one is truncated."""
    total = 0
    with gzip.open(archive) as file:
        while part := file.read(2**20):
            total += len(part)
            _check_size(archive, total)


def _check_members(archive: Path, members: Iterable[tuple[str, int, bool]]) -> None:
    """Check the names, sizes and kinds of all members before unpacking any."""
    total = 0
    for name, size, plain in members:
        path = PurePosixPath(name)
        leads_away = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
        if leads_away or not plain:
            kind = "a path that leads elsewhere" if leads_away else "a link or a device"
            raise damaged(archive, "an archive of plain files and folders", f"{kind}, {name[:80]!r}")
        total += size
    _check_size(archive, total)


def _check_size(archive: Path, size: int) -> None:
    """Check the size of an archive's content."""
    if size > MOST_BYTES:
        raise damaged(archive, f"an archive of at most {MOST_BYTES:,} bytes", "one that unpacks to more")


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    """Turn the standard library's errors about damaged archives into one."""
    # RuntimeError is about encryption and methods of compression that are not known.
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise damaged(archive, "a whole archive", f"a damaged one ({error})") from None
