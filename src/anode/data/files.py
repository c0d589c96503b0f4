"""Where datasets are stored, how they are downloaded, and their checksums."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from anode.data.archives import Tell, unpack
from anode.data.reading import damaged
from anode.extras import needs
from anode.files import write

if TYPE_CHECKING:
    import requests

VARIABLE = "ANODE_DATA"
"""Environment variable that holds the folder of the datasets."""
CHUNK = 2**16
"""Number of bytes downloaded at once."""
TIMEOUT = 30
"""Seconds without an answer after which a download fails."""


class MissingDataError(FileNotFoundError, ValueError):
    """The files of a dataset are missing."""


class DownloadError(OSError):
    """A download failed: there is no network, or the server does not have the file."""


@dataclass(frozen=True)
class Download:
    """An official file.

    Attributes:
        url: Its address.
        md5, size: Its MD5 checksum, and its size in bytes.
        unpacks: The folder that it unpacks to, if it is an archive.
    """

    url: str
    md5: str
    size: int
    unpacks: str | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return PurePosixPath(self.url).name


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that contains one folder per dataset.

    Args:
        root: The folder; ``None`` for the environment variable ``ANODE_DATA``, or else ``anode`` in the user's cache
            folder: ``XDG_CACHE_HOME``, by default ``~/.cache``, as for torch.
    """
    if root is None:
        root = os.environ.get(VARIABLE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "anode")
    if not isinstance(root, str | Path):
        raise TypeError(f"root: takes a path, got {root!r}")
    folder = Path(root).expanduser()
    if folder.is_file():
        raise ValueError(f"root: takes a folder, got the file {folder}")
    return folder


def md5(path: Path) -> str:
    """Return the MD5 checksum of a file; the authors of the datasets publish these."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def obtain(download: Download, folder: Path, tell: Tell, again: bool = False) -> None:
    """Download and unpack a file, unless the folder already contains it.

    Args:
        download: The file.
        folder: Where it goes.
        tell: Called with the progress.
        again: Whether to unpack it again, because unpacked files are missing.

    Raises:
        DownloadError: If it cannot be downloaded.
        DamagedFileError: If the existing or the downloaded file is not the official one.
    """
    if download.unpacks and (folder / download.unpacks).exists() and not again:
        return
    path = folder / download.name
    was_there = path.exists()
    if was_there:
        verify(path, download, path, "remove it and fetch again for the official one, or use it as it is")
    else:
        write(path, lambda unfinished: _download(download, unfinished, folder, tell))
    if download.unpacks:
        unpack(path, download.unpacks, tell)
        if not was_there:
            path.unlink()


def verify(path: Path, download: Download, called: Path | str, advice: str) -> None:
    """Check size and checksum of a file.

    Args:
        path: The file.
        download: The official file that it should be.
        called: Its name in error messages.
        advice: What the user can do, the end of error messages.
    """
    size = path.stat().st_size
    if size != download.size:
        raise damaged(called, f"the official file of {download.size:,} bytes", f"{size:,} bytes; {advice}")
    found = md5(path)
    if found != download.md5:
        raise damaged(called, f"the official file, of MD5 {download.md5}", f"{found}; {advice}")


def _download(download: Download, path: Path, folder: Path, tell: Tell) -> None:
    """Download a file and check that it is the right one."""
    needs(f"downloading {download.name}", "paper", "requests")
    import requests

    by_hand = f"put {download.name} into {folder} by other means and fetch again"
    # The servers' own compression would be undone on the way, and what arrives would not be the file.
    as_it_is = {"Accept-Encoding": "identity"}
    try:
        with requests.get(download.url, stream=True, timeout=TIMEOUT, headers=as_it_is) as response:
            response.raise_for_status()
            _receive(response, download, path, tell)
    except requests.RequestException as error:
        raise DownloadError(f"{download.url}: {_reason(error)}; {by_hand}") from None
    verify(path, download, download.url, f"try again later, or {by_hand}")


def _receive(response: requests.Response, download: Download, path: Path, tell: Tell) -> None:
    """Write the server's answer to a file; raise an error once it is longer than the official file."""
    done = 0
    with path.open("wb") as file:
        for chunk in response.iter_content(CHUNK):
            done += len(chunk)
            if done > download.size:
                raise damaged(download.url, f"the official file of {download.size:,} bytes", "more")
            file.write(chunk)
            tell(download.name, done, download.size)


def _reason(error: requests.RequestException) -> str:
    """Return in a few words why a download failed. The library's message has several lines."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server said {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    return "no connection" if isinstance(error, requests.ConnectionError) else f"{error}".splitlines()[0]
