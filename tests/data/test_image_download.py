import errno
import gzip
import hashlib
import io
import os
import stat
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from anode.data import archives, files
from anode.data.archives import unpack
from anode.data.files import Download, DownloadError, obtain
from anode.data.images import IMAGES, load
from anode.data.stock import check, fetch, presence
from anode.files import DamagedFileError, locked, temporary
from helpers.official import idx, noise, write_cifar, write_mnist, write_svhn, write_tiny

FILE = gzip.compress(idx(noise(50, 28, 28)))
CIFAR, TINY = "cifar-10-batches-bin", "tiny-imagenet-200"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        kind, content = self.server.files.get(self.path, ("missing", b""))
        self.send_response(404 if kind == "missing" else 200)
        if kind != "endless":
            self.send_header("Content-Length", str(len(content) + 100 * (kind == "broken")))
        if kind == "compressing" and "gzip" in self.headers.get("Accept-Encoding", ""):
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            for _ in range(1000 if kind == "endless" else 1):
                self.wfile.write(content)
        except OSError:
            self.server.hung_up.set()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A server on this computer; what it has is in ``files``: how it sends a file, and the file."""
    monkeypatch.setenv("NO_PROXY", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.hung_up = {}, [], threading.Event()
        server.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def offered(
    server, name: str, content: bytes, kind: str = "whole", official: bytes | None = None, **options
) -> Download:
    """A download of a file that the server sends; the official one may be another."""
    server.files[f"/{name}"] = (kind, content)
    true = content if official is None else official
    md5 = hashlib.md5(true, usedforsecurity=False).hexdigest()
    return Download(f"{server.address}/{name}", md5, len(true), **options)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def silent(*_):
    pass


def refused(download: Download, folder: Path, *words: str, error: type[Exception] = DamagedFileError) -> None:
    with pytest.raises(error) as caught:
        obtain(download, folder, silent)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


# Downloads


def test_a_file_is_downloaded_whole_and_progress_is_told(server, tmp_path):
    seen = []
    obtain(offered(server, "a.gz", FILE), tmp_path / "new", lambda *told: seen.append(told))
    assert (tmp_path / "new" / "a.gz").read_bytes() == FILE
    assert names_in(tmp_path / "new") == ["a.gz"]
    assert {name for name, _, _ in seen} == {"a.gz"}
    assert seen[-1] == ("a.gz", len(FILE), len(FILE))
    assert all(0 < done <= total for _, done, total in seen)


def test_a_file_that_is_there_is_not_downloaded_again(server, tmp_path):
    download = offered(server, "a.gz", FILE)
    for _ in range(2):
        obtain(download, tmp_path, silent)
    assert server.asked == ["/a.gz"]


def test_a_server_that_compresses_on_the_way_changes_nothing(server, tmp_path):
    obtain(offered(server, "a.gz", FILE, "compressing"), tmp_path, silent)
    assert (tmp_path / "a.gz").read_bytes() == FILE


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (FILE[:-1] + b"!", "whole", ["takes the official file, of MD5"]),
        (FILE[:-1], "whole", [f"takes the official file of {len(FILE):,} bytes, got {len(FILE) - 1:,} bytes"]),
        (b"<html>log in first</html>", "whole", ["got 25 bytes"]),
        (b"", "whole", ["got 0 bytes"]),
    ],
    ids=["changed", "short", "html", "empty"],
)
def test_what_is_not_the_official_file_is_not_kept(server, tmp_path, content, kind, words):
    download = offered(server, "a.gz", content, kind, FILE)
    refused(download, tmp_path, download.url, *words, f"put a.gz into {tmp_path} by other means")
    assert names_in(tmp_path) == []


def test_a_download_that_breaks_off_leaves_nothing_and_is_begun_anew(server, tmp_path):
    download = offered(server, "a.gz", FILE[:9000], "broken", FILE)
    refused(download, tmp_path, download.url, f"put a.gz into {tmp_path}", error=DownloadError)
    assert names_in(tmp_path) == []
    server.files["/a.gz"] = ("whole", FILE)
    obtain(download, tmp_path, silent)
    assert (tmp_path / "a.gz").read_bytes() == FILE


def test_a_download_without_end_is_ended(server, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 1024)
    refused(offered(server, "a.gz", FILE, "endless", FILE), tmp_path, f"{len(FILE):,} bytes, got more")
    assert names_in(tmp_path) == []
    assert server.hung_up.wait(5)


def test_a_file_that_the_server_does_not_have_is_one_line(server, tmp_path):
    download = replace(offered(server, "a.gz", FILE), url=f"{server.address}/b.gz")
    refused(download, tmp_path, "/b.gz: the server said 404 Not Found; put b.gz into", error=DownloadError)
    assert names_in(tmp_path) == []


def test_without_a_network_one_line_says_which_file_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    download = Download("http://127.0.0.1:9/mnist/a.gz", "0" * 32, 10)
    said = f"http://127.0.0.1:9/mnist/a.gz: no connection; put a.gz into {tmp_path} by other means and fetch again"
    with pytest.raises(DownloadError) as caught:
        obtain(download, tmp_path, silent)
    assert str(caught.value) == said
    assert names_in(tmp_path) == []


def test_an_interrupted_download_leaves_nothing(server, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(offered(server, "a.gz", FILE), tmp_path, interrupt)
    assert names_in(tmp_path) == []


def test_a_file_that_is_there_but_not_the_official_one_is_left_alone(server, tmp_path):
    (tmp_path / "a.gz").write_bytes(b"mine")
    refused(
        offered(server, "a.gz", FILE), tmp_path, f"{tmp_path / 'a.gz'}: takes the official", "remove it", "or use it"
    )
    assert (tmp_path / "a.gz").read_bytes() == b"mine"
    assert server.asked == []


# Archives


def tar(*members: tuple[str, bytes | str | None]) -> bytes:
    """A .tar.gz of files, of links (whose content is a str) and of folders (None)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                info.type, info.linkname = (tarfile.DIRTYPE, "") if content is None else (tarfile.SYMTYPE, content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return file.getvalue()


def zipped(*members: tuple[str, bytes | str | None]) -> bytes:
    """The same as a .zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(f"{name}/" if content is None else name)
            mode = stat.S_IFLNK | 0o777 if isinstance(content, str) else stat.S_IFREG | 0o644
            info.external_attr = mode << 16 if content is not None else 0
            archive.writestr(info, content or b"")
    return file.getvalue()


each_archive = pytest.mark.parametrize(("make", "name"), [(tar, "a.tar.gz"), (zipped, "a.zip")], ids=["tar", "zip"])


@each_archive
def test_an_archive_is_unpacked_and_goes(server, tmp_path, make, name):
    content = make(("in", None), ("in/side", None), ("in/side/a.bin", b"abc"), ("in/b.txt", b""))
    seen = []
    download = offered(server, name, content, unpacks="in")
    obtain(download, tmp_path, lambda *told: seen.append(told))
    assert names_in(tmp_path) == ["in"]
    assert (tmp_path / "in" / "side" / "a.bin").read_bytes() == b"abc"
    assert seen[-1] == (f"unpacking {name}", 4, 4)
    obtain(download, tmp_path, silent)
    assert server.asked == [f"/{name}"]


@each_archive
def test_an_archive_that_was_put_there_by_hand_is_unpacked_and_stays(server, tmp_path, make, name):
    content = make(("in/a.bin", b"abc"))
    (tmp_path / name).write_bytes(content)
    obtain(offered(server, name, content, unpacks="in"), tmp_path, silent)
    assert names_in(tmp_path) == [name, "in"]
    assert server.asked == []


@each_archive
@pytest.mark.parametrize(
    ("member", "words"),
    [
        (("../evil", b"x"), "a path that leads elsewhere"),
        (("in/../../evil", b"x"), "a path that leads elsewhere"),
        (("/evil", b"x"), "a path that leads elsewhere"),
        (("in\\..\\..\\evil", b"x"), "a path that leads elsewhere"),
        (("C:/evil", b"x"), "a path that leads elsewhere"),
        (("in/link", "/etc/passwd"), "a link or a device"),
        (("in/link", "a.bin"), "a link or a device"),
    ],
    ids=["up", "inside-up", "absolute", "backslash", "drive", "link-away", "link-inside"],
)
def test_an_archive_that_leads_elsewhere_is_refused_before_anything_is_unpacked(tmp_path, make, name, member, words):
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(make(("in/a.bin", b"abc"), member))
    with pytest.raises(DamagedFileError, match=f"takes an archive of plain files and folders, got {words}"):
        unpack(folder / name, "in", silent)
    assert names_in(folder) == [name]
    assert names_in(tmp_path) == ["one"]
    assert names_in(tmp_path / "one") == ["two"]


def test_a_hard_link_and_a_device_are_refused(tmp_path):
    for kind in (tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("in/thing")
            info.type, info.linkname = kind, "in/other"
            archive.addfile(info)
        with pytest.raises(DamagedFileError, match="a link or a device, 'in/thing'"):
            unpack(tmp_path / "a.tar.gz", "in", silent)


@each_archive
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, make, name):
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    (tmp_path / name).write_bytes(make(("in/a", bytes(600)), ("in/b", bytes(401))))
    with pytest.raises(DamagedFileError, match="at most 1,000 bytes, got one that unpacks to more"):
        unpack(tmp_path / name, "in", silent)
    assert names_in(tmp_path) == [name]


@each_archive
def test_an_archive_of_something_else_is_refused(tmp_path, make, name):
    (tmp_path / name).write_bytes(make(("other/a", b"x")))
    with pytest.raises(DamagedFileError, match="takes an archive of in, got one without it"):
        unpack(tmp_path / name, "in", silent)
    assert names_in(tmp_path) == [name]


@each_archive
def test_every_cut_of_an_archive_is_noticed_and_leaves_nothing(tmp_path, make, name):
    whole = make(("in/a.bin", noise(300).tobytes()), ("in/b.bin", noise(300, seed=1).tobytes()))
    for length in range(0, len(whole) - 8, 37):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match="takes a"):
            unpack(tmp_path / name, "in", silent)
        assert names_in(tmp_path) == [name]


@each_archive
def test_interrupted_unpacking_leaves_nothing(tmp_path, make, name):
    (tmp_path / name).write_bytes(make(("in/a.bin", b"abc"), ("in/b.bin", b"abc")))

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(tmp_path / name, "in", interrupt)
    assert names_in(tmp_path) == [name]


# Whole datasets


def packed(folder: Path, kind: str) -> bytes:
    """A folder as an archive."""
    members = [
        (str(path.relative_to(folder)), None if path.is_dir() else path.read_bytes()) for path in folder.rglob("*")
    ]
    return (zipped if kind == "zip" else tar)(*members)


@pytest.fixture
def official(server, tmp_path, monkeypatch):
    """Small datasets that take the place of the official ones, on the server."""
    made = tmp_path / "made"
    for name, write in {
        "mnist": write_mnist,
        "svhn": write_svhn,
        "cifar10": write_cifar,
        "tiny_imagenet": write_tiny,
    }.items():
        write(made / name)
    contents = {
        "mnist": {path.name: path.read_bytes() for path in sorted((made / "mnist").iterdir())},
        "svhn": {path.name: path.read_bytes() for path in sorted((made / "svhn").iterdir())},
        "cifar10": {"cifar.tar.gz": packed(made / "cifar10", "tar")},
        "tiny_imagenet": {"tiny.zip": packed(made / "tiny_imagenet", "zip")},
    }
    folders = {"cifar10": CIFAR, "tiny_imagenet": TINY}
    for name, parts in contents.items():
        downloads = tuple(offered(server, file, part, unpacks=folders.get(name)) for file, part in parts.items())
        monkeypatch.setitem(IMAGES, name, replace(IMAGES[name], downloads=downloads))
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10", "tiny_imagenet"])
def test_a_dataset_is_fetched_and_read(official, name):
    assert presence(name, official) == "no"
    assert fetch(name, official) == official / name
    assert presence(name, official) == "yes"
    assert len(load(name, "train", official)) > len(load(name, "test", official)) - 1
    assert all(finding.usable for finding in check(name, official))


def test_fetching_again_downloads_only_what_is_missing(official, server):
    fetch("mnist", official)
    (official / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert presence("mnist", official) == "partly"
    server.asked.clear()
    fetch("mnist", official)
    assert server.asked == ["/t10k-labels-idx1-ubyte.gz"]


def test_fetching_completes_a_folder_that_was_unpacked_but_lacks_a_file(official, server):
    root = official
    fetch("cifar10", root, silent)
    path = root / "cifar10" / "cifar-10-batches-bin" / "data_batch_3.bin"
    content = path.read_bytes()
    path.unlink()
    fetch("cifar10", root, silent)
    assert path.read_bytes() == content
    assert names_in(root / "cifar10") == ["cifar-10-batches-bin"]


def test_fetching_removes_what_a_killed_process_left(official):
    half = temporary(official / "cifar10" / "cifar.tar.gz")
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    (temporary(official / "cifar10" / "unpacking") / CIFAR).mkdir(parents=True)
    fetch("cifar10", official)
    assert names_in(official / "cifar10") == [CIFAR]


def test_fetching_leaves_hidden_files_of_the_user_alone(official):
    mine = [official / "cifar10" / ".backup-20260101" / "kept", official / "cifar10" / ".notes-20251231.txt"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    fetch("cifar10", official)
    assert all(path.read_text() == "mine" for path in mine)


def test_an_archive_that_cannot_be_unpacked_is_an_error_that_names_the_folder(official, monkeypatch):
    def full(self, member, path, **_):
        raise OSError(errno.ENOSPC, "No space left on device", f"{path}/{member.name}")

    monkeypatch.setattr(tarfile.TarFile, "extract", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch("cifar10", official)
    assert caught.value.filename == str(official / "cifar10" / CIFAR)


def test_a_dataset_is_fetched_by_one_process_at_a_time(official, server):
    (official / "mnist").mkdir(parents=True)
    with locked(official / "mnist", "root"), pytest.raises(BlockingIOError, match=r"root: .*mnist is in use"):
        fetch("mnist", official)
    assert server.asked == []


def test_the_digits_are_fetched_without_a_network_or_a_folder(tmp_path):
    fetch("digits", tmp_path)
    assert presence("digits", tmp_path) == "built in"
    assert names_in(tmp_path) == []


def test_a_check_tells_official_files_from_others_that_can_be_read(official):
    fetch("mnist", official)
    notes = {finding.what: finding.note for finding in check("mnist", official)}
    assert notes["train-images-idx3-ubyte.gz"] == "the official file"
    assert notes["train"] == "20 images of 1x28x28, 10 classes; not the official split, which has 60,000"
    write_mnist(official / "mnist", 10)
    findings = check("mnist", official)
    assert all(finding.usable for finding in findings)
    assert findings[0].note.startswith("not the official file: its MD5 is ")
    for path in (official / "mnist").glob("t10k*"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    notes = {finding.what: finding.note for finding in check("mnist", official)}
    assert notes["t10k-images-idx3-ubyte.gz"] == "decompressed, which has no official checksum"
    assert notes["test"].startswith("10 images")


def test_a_check_names_what_is_missing_or_damaged_and_goes_on(official):
    fetch("mnist", official)
    (official / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    (official / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
    findings = {finding.what: finding for finding in check("mnist", official)}
    assert [what for what, finding in findings.items() if not finding.usable] == [
        "t10k-images-idx3-ubyte.gz",
        "train",
        "test",
    ]
    assert findings["t10k-images-idx3-ubyte.gz"].note == "missing"
    assert "train-labels-idx1-ubyte.gz: takes an idx file" in findings["train"].note
    assert "anode data fetch mnist" in findings["test"].note


def test_every_official_file_has_an_address_a_size_and_a_checksum():
    for name, source in IMAGES.items():
        needed = {file for split in source.names.values() for file in split}
        for download in source.downloads:
            assert download.url.startswith(("https://", "http://"))
            assert download.size > 1000
            assert len(download.md5) == 32
            assert download.unpacks or download.name in needed
        assert set(source.checksums) <= needed, name
        assert set(source.counts) == {"train", "test"}


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="needs a folder that cannot be written to")
def test_a_folder_that_cannot_be_written_to_is_named(server, tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            obtain(offered(server, "a.gz", FILE), tmp_path, silent)
    finally:
        tmp_path.chmod(0o700)
