"""The image datasets on this machine: downloading and checking them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anode.checks import lookup
from anode.data.archives import Tell
from anode.data.files import data_root, md5, obtain
from anode.data.images import IMAGES, ImageData, load
from anode.data.sources import SPLITS
from anode.files import locked, make_folder, remove_unfinished


@dataclass(frozen=True)
class Inspection:
    """Result of checking a file or a split.

    Attributes:
        what: Name of the file or the split.
        usable: Whether it can be read.
        note: The finding in a few words.
    """

    what: str
    usable: bool
    note: str


def presence(name: str, root: str | Path | None = None) -> str:
    """Return whether a dataset is on this machine: ``yes``, ``partly``, ``no`` or ``built in``.

    Example:
        >>> from anode.data.stock import presence
        >>> presence("digits")
        'built in'
    """
    source, folder = lookup("name", name, IMAGES), data_root(root) / name
    if not source.downloads:
        return "built in"
    needed = [name for split in SPLITS for name in source.names[split]]
    missing = [name for split in SPLITS for name in source.missing(folder, split)]
    if not missing:
        return "yes"
    return "no" if len(missing) == len(needed) else "partly"


def fetch(name: str, root: str | Path | None = None, tell: Tell = lambda *_: None) -> Path:
    """Download a dataset from its official address. Existing files are checked and kept.

    An unpacked folder is kept if it is complete, and replaced otherwise.

    Args:
        name: One of ``IMAGES``.
        root: Folder of the datasets, see :func:`anode.data.images.load`.
        tell: Called with the progress.

    Returns:
        The dataset's folder.

    Raises:
        BlockingIOError: If another process is downloading it.
        DownloadError: If there is no network, or the server does not have a file. The message says which file to put
            where by other means.
        DamagedFileError: If an existing or a downloaded file is not the official one.
    """
    source, folder = lookup("name", name, IMAGES), data_root(root) / name
    if not source.downloads:
        return folder
    make_folder(folder)
    with locked(folder, "root"):
        remove_unfinished(folder)
        incomplete = any(source.missing(folder, split) for split in SPLITS)
        for download in source.downloads:
            obtain(download, folder, tell, again=incomplete)
    return folder


def check(name: str, root: str | Path | None = None) -> list[Inspection]:
    """Compare the files of a dataset with the official ones, and read them.

    Args:
        name: One of ``IMAGES``.
        root: Folder of the datasets, see :func:`anode.data.images.load`.

    Returns:
        One finding per file that has a checksum, then one per split.

    Example:
        >>> from anode.data.stock import check
        >>> for finding in check("digits"):
        ...     print(finding.what, finding.usable, finding.note)
        train True 1,442 images of 1x8x8, 10 classes
        test True 355 images of 1x8x8, 10 classes
    """
    source, folder = lookup("name", name, IMAGES), data_root(root) / name
    files = [_compare(folder, file, official) for file, official in source.checksums.items()]
    return files + [_read(name, split, root) for split in SPLITS]


def _compare(folder: Path, name: str, official: str) -> Inspection:
    """Compare a file's checksum with the official one."""
    if (folder / name).is_file():
        found = md5(folder / name)
        other = f"not the official file: its MD5 is {found}, the official one's {official}"
        return Inspection(name, True, "the official file" if found == official else other)
    if (folder / name.removesuffix(".gz")).is_file():
        return Inspection(name, True, "decompressed, which has no official checksum")
    return Inspection(name, False, "missing")


def _read(name: str, split: str, root: str | Path | None) -> Inspection:
    """Read a split."""
    try:
        data = load(name, split, root)
    except (ValueError, OSError) as error:
        return Inspection(split, False, f"cannot be read: {error}")
    return Inspection(split, True, _split_note(data, IMAGES[name].counts[split]))


def _split_note(data: ImageData, official: int) -> str:
    """Return a split in a few words."""
    text = f"{len(data):,} images of {'x'.join(map(str, data.shape))}, {data.classes} classes"
    return text if len(data) == official else f"{text}; not the official split, which has {official:,}"
