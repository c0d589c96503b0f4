import errno
import os
from pathlib import Path

import pytest

from anode.files import (
    locked,
    make_folder,
    remove_unfinished,
    sync_folder,
    temporary,
    write,
    write_bytes,
    write_text,
)
from helpers.folders import names_in


def remove_deep(file: Path, top: Path) -> None:
    """Remove a file and the folders it lies in below another; pytest, which removes folders recursively, could not."""
    file.unlink(missing_ok=True)
    for folder in file.parents:
        if folder == top:
            break
        if folder.exists():
            folder.rmdir()


# Whole or not there


def test_a_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "some" / "where" / "note.txt"
    assert write_text(path, "Grüße\n") == path
    assert path.read_text(encoding="utf-8") == "Grüße\n"
    assert names_in(path.parent) == ["note.txt"]


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "note.txt"
    write_text(path, "old, and longer")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["note.txt"]


@pytest.mark.parametrize("error", [RuntimeError("half"), OSError("disk full"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("existing", [True, False])
def test_a_save_that_raises_leaves_the_old_file_and_nothing_else(tmp_path, error, existing):
    path = tmp_path / "data.bin"
    if existing:
        path.write_bytes(b"old")

    def save(unfinished: Path) -> None:
        unfinished.write_bytes(b"half of the n")
        raise error

    with pytest.raises(type(error)):
        write(path, save)
    assert names_in(tmp_path) == (["data.bin"] if existing else [])
    if existing:
        assert path.read_bytes() == b"old"


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: takes a file, got a device or a pipe; choose another name"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert names_in(tmp_path) == ["pipe"]


def test_a_save_that_writes_nothing_is_an_error_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        write(path, lambda unfinished: None)
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_at_the_very_end_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "data.txt"
    path.write_text("old")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(OSError, match="no space"):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["data.txt"]


def test_an_error_of_the_system_names_the_file_that_could_not_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/data\.txt'") as caught:
        write_text(tmp_path / "data.txt", "new")
    assert caught.value.errno == errno.ENOSPC


def test_only_what_a_killed_process_left_of_such_files_is_removed(tmp_path):
    left = [temporary(tmp_path / name).name for name in ("state-1.json", "state-22.safetensors", "state-1")]
    others = [".state-1.json", "state-1-0123abcd.json", temporary(tmp_path / "other.json").name, "state-1.json"]
    for name in (*left, *others):
        (tmp_path / name).write_text("")
    remove_unfinished(tmp_path, "state-")
    assert names_in(tmp_path) == sorted(others)


@pytest.mark.parametrize("stem", ["", "state-"])
def test_hidden_files_and_folders_of_the_user_are_left_alone(tmp_path, stem):
    digits = "0123456789abcdef" * 2
    names = [
        ".notes-20251231.txt",
        ".backup-20260101",
        ".state-1-0123abcd.json",  # as an earlier version called what it was writing
        f".state-1-{digits}.json",
        f".{digits}",
        ".anode-unfinished-notes.txt",
        f"anode-unfinished-state-1-{digits}.json",
        f".anode-unfinished-state-1-{digits}.json.orig",
        f".my.anode-unfinished-state-1-{digits}.json",
    ]
    files, folders = tmp_path / "files", tmp_path / "folders"
    for name in names:
        write_text(files / name, "mine")
        write_text(folders / name / "kept", "mine")
    for folder in (files, folders):
        remove_unfinished(folder, stem)
        assert names_in(folder) == sorted(names)
    assert all((folders / name / "kept").read_text() == "mine" for name in names)


def test_what_a_link_leads_to_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("mine")
    temporary(tmp_path / "unpacking").symlink_to(tmp_path / "mine", target_is_directory=True)
    remove_unfinished(tmp_path)
    assert names_in(tmp_path) == ["mine"]
    assert names_in(tmp_path / "mine") == ["kept"]


@pytest.mark.parametrize("name", ["a" * 250 + ".txt", "ü" * 120 + ".json", "a." + "b" * 250])
def test_a_file_whose_name_is_as_long_as_the_system_takes_can_be_written(tmp_path, name):
    write_text(tmp_path / name, "content")
    assert names_in(tmp_path) == [name]
    temporary(tmp_path / name).write_text("half")
    remove_unfinished(tmp_path)
    assert names_in(tmp_path) == [name]


def test_a_file_a_thousand_folders_deep_can_be_written(tmp_path):
    deep = tmp_path / ("a/" * 1000)
    assert len(str(deep)) < 4096
    try:
        assert make_folder(deep) == deep
        assert write_text(deep / "b" / "note.txt", "deep").read_text() == "deep"
        assert make_folder(deep).is_dir()
        with pytest.raises(FileExistsError):
            make_folder(deep / "b" / "note.txt")
    finally:
        remove_deep(deep / "b" / "note.txt", tmp_path)


def test_an_unfinished_folder_is_removed_with_all_that_is_in_it(tmp_path):
    unfinished = temporary(tmp_path / "unpacking")
    (unfinished / "deep").mkdir(parents=True)
    (unfinished / "deep" / "file").write_text("half")
    (tmp_path / "whole").mkdir()
    remove_unfinished(tmp_path)
    assert names_in(tmp_path) == ["whole"]
    remove_unfinished(tmp_path / "missing")  # has nothing to remove


def test_what_is_left_of_a_killed_process_is_found_by_its_name(tmp_path):
    def killed(unfinished: Path) -> None:
        unfinished.write_text("half")
        os.link(unfinished, tmp_path / "seen")  # what would stay, as nobody cleans up
        (tmp_path / "name").write_text(unfinished.name)

    write(tmp_path / "state-3.json", killed)
    (tmp_path / "seen").rename(tmp_path / (tmp_path / "name").read_text())
    assert len(names_in(tmp_path)) == 3
    remove_unfinished(tmp_path, "state-")
    assert names_in(tmp_path) == ["name", "state-3.json"]


def test_bytes_are_written_as_they_are_and_a_folder_can_be_synced(tmp_path):
    content = bytes(range(256))
    assert write_bytes(tmp_path / "data.bin", content).read_bytes() == content
    sync_folder(tmp_path)
    assert names_in(tmp_path) == ["data.bin"]


def test_the_old_file_stays_until_the_new_one_is_complete_and_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("old")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_text()))
    seen = []

    def save(unfinished: Path) -> None:
        unfinished.write_text("new")
        seen.append((unfinished.parent, unfinished.suffix, unfinished != path, path.read_text()))

    write(path, save)
    assert seen == [(tmp_path, ".txt", True, "old")]
    assert synced == ["old"]
    assert path.read_text() == "new"


def test_two_writers_do_not_share_a_temporary_file(tmp_path):
    path, used = tmp_path / "data.txt", []

    def save(unfinished: Path) -> None:
        used.append(unfinished)
        unfinished.write_text("outer")
        if len(used) < 3:
            write(path, save)

    write(path, save)
    assert len(set(used)) == 3
    assert path.read_text() == "outer"
    assert names_in(tmp_path) == ["data.txt"]


def test_on_a_read_only_disk_the_error_names_the_file_that_was_asked_for(tmp_path, monkeypatch):
    def read_only(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    for name in ("open", "write_text", "unlink"):  # a system says so also of a file that is not there
        monkeypatch.setattr(Path, name, read_only)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        write_text(tmp_path / "note.txt", "content")
    assert caught.value.filename == str(tmp_path / "note.txt")


def test_a_folder_is_kept_for_one_process_until_it_is_done(tmp_path):
    with locked(tmp_path, "out"):
        refused = pytest.raises(BlockingIOError, match=r"out: .* is in use by another process; wait until it ends")
        with refused, locked(tmp_path, "out"):
            pass
        assert not any(tmp_path.iterdir())
    with locked(tmp_path, "out"):
        pass
