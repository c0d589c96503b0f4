import contextlib
import errno
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anode.files import (
    DamagedFileError,
    locked,
    make_folder,
    read_described,
    read_json,
    read_tensors,
    remove_unfinished,
    sync_folder,
    temporary,
    tensors_from_bytes,
    tensors_to_bytes,
    write,
    write_bytes,
    write_described,
    write_json,
    write_tensors,
    write_text,
)

PROPERTY = settings(max_examples=50)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def remove_deep(file: Path, top: Path) -> None:
    """Remove a file and the folders it lies in below another; pytest, which removes folders recursively, could not."""
    file.unlink(missing_ok=True)
    for folder in file.parents:
        if folder == top:
            break
        if folder.exists():
            folder.rmdir()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


# JSON


@PROPERTY
@given(json_values)
def test_json_comes_back_as_it_was(tmp_path, content):
    path = tmp_path / "content.json"
    assert read_json(write_json(path, content)) == content


def test_json_files_are_plain_utf8_that_ends_in_a_newline(tmp_path):
    path = write_json(tmp_path / "a.json", {"name": "π", "values": [1, 2.5, None, True]}, indent=1)
    assert json.loads(path.read_bytes().decode("utf-8")) == {"name": "π", "values": [1, 2.5, None, True]}
    assert path.read_text().endswith("}\n")
    assert path.read_text().count("\n") > 4


@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), {1, 2}, torch.ones(2), pytest.param(object(), id="object")], ids=repr
)
def test_what_json_does_not_have_is_refused_and_the_old_file_stays(tmp_path, bad):
    path = write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises((TypeError, ValueError)):
        write_json(path, {"new": bad})
    assert read_json(path) == {"old": 1}
    assert names_in(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b'{"a": [1, 2',
        b'{"a": 1} and more',
        b"{'a': 1}",
        b"\xff\xfe\x00{",
        b"\x80\x04\x95",
        b"\x00" * 100,
        b"[" * 100_000,
        "{}".encode("utf-16"),
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
    ],
    ids=["empty", "open", "cut", "more", "quotes", "binary", "pickle", "zeros", "deep", "utf-16", "nan", "inf", "huge"],
)
def test_a_damaged_json_file_is_an_error_that_names_it_and_says_what_to_do(tmp_path, damage):
    path = tmp_path / "content.json"
    path.write_bytes(damage)
    said = r"content\.json: is not a JSON file .*; remove it or restore it"
    with pytest.raises(DamagedFileError, match=said) as caught:
        read_json(path)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None


@PROPERTY
@given(st.integers(0, 60))
def test_every_cut_of_a_json_file_is_noticed(tmp_path, length):
    path = tmp_path / "content.json"
    whole = write_json(path, {"series": [1.5, 2.5, None], "name": "a history", "more": {}}).read_bytes()
    path.write_bytes(whole[: min(length, len(whole) - 2)])  # the newline may be missing
    with pytest.raises(DamagedFileError):
        read_json(path)


def test_a_json_file_that_is_not_there_is_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


# Tensors


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool], ids=str
)
def test_tensors_come_back_as_they_were(tmp_path, dtype):
    values = torch.arange(6).reshape(2, 3).to(dtype)
    tensors = {"a.weight": values, "b": torch.ones((), dtype=dtype), "c": torch.empty(0, 2)}
    found = read_tensors(write_tensors(tmp_path / "t.safetensors", tensors))
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tensors_that_are_views_or_need_a_gradient_are_written(tmp_path):
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    tensors = {"turned": base.T, "row": base[1], "expanded": torch.ones(1, 3).expand(2, 3)}
    found = read_tensors(write_tensors(tmp_path / "t.safetensors", tensors))
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert not found[name].requires_grad


def test_values_that_are_not_finite_are_kept(tmp_path):
    tensor = torch.tensor([float("nan"), float("inf"), -0.0])
    found = read_tensors(write_tensors(tmp_path / "t.safetensors", {"a": tensor}))["a"]
    assert torch.equal(found.view(torch.int32), tensor.view(torch.int32))


def test_tensors_can_be_bytes_which_are_those_of_the_file(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones((), dtype=torch.int64), "c": torch.empty(0, 2)}
    content = tensors_to_bytes(tensors)
    assert write_tensors(tmp_path / "t.safetensors", tensors).read_bytes() == content
    found = tensors_from_bytes(content)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(DamagedFileError, match="not a safetensors file"):
        tensors_from_bytes(content[:20])


@pytest.mark.parametrize("keep", [0, 4, 8, 20, -1, -8])
def test_a_cut_safetensors_file_is_an_error_that_names_it(tmp_path, keep):
    path = write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(3, 4)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        DamagedFileError, match=r"t\.safetensors: is not a safetensors file .*; remove it or restore it"
    ):
        read_tensors(path)


@pytest.mark.parametrize(
    "damage", [b"not tensors at all, but text", b"\xff" * 64, pickle.dumps({"a": 1}), b"\x02" + b"\x00" * 7 + b"[]"]
)
def test_a_file_of_something_else_is_an_error_and_nothing_is_executed(tmp_path, damage):
    path = tmp_path / "t.safetensors"
    path.write_bytes(damage)
    with pytest.raises(DamagedFileError, match="is not a safetensors file"):
        read_tensors(path)


def test_tensors_that_are_not_there_are_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "none.safetensors")


class FullDisk:
    """Stands for a file's path, once the disk is full."""

    @staticmethod
    def write(path, content, **_):
        with path.open("wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_tensors_are_written_whole_or_not_at_all_and_the_error_is_the_systems(tmp_path, monkeypatch):
    path = write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(3)})
    monkeypatch.setattr(Path, "write_bytes", FullDisk.write)
    with pytest.raises(OSError, match="No space left") as caught:
        write_tensors(path, {"a": torch.zeros(3)})
    assert caught.value.filename == str(path)
    assert torch.equal(read_tensors(path)["a"], torch.ones(3))
    assert names_in(tmp_path) == ["t.safetensors"]


@pytest.mark.parametrize("full", ["write_bytes", "write_text"])
def test_of_files_that_belong_together_both_are_written_or_none(tmp_path, monkeypatch, full):
    described, path = tmp_path / "t.json", tmp_path / "t.safetensors"
    write_described(described, {"n": 1}, path, {"a": torch.ones(3)})
    monkeypatch.setattr(Path, full, FullDisk.write)
    with pytest.raises(OSError, match="No space left"):
        write_described(described, {"n": 2}, path, {"a": torch.zeros(3)})
    monkeypatch.undo()
    content, tensors = read_described(described, path)
    assert content["n"] == 1
    assert torch.equal(tensors["a"], torch.ones(3))
    assert names_in(tmp_path) == ["t.json", "t.safetensors"]


def test_tensors_that_belong_to_another_description_are_refused(tmp_path):
    described, path = tmp_path / "t.json", tmp_path / "t.safetensors"
    write_described(described, {}, path, {"a": torch.ones(3)})
    write_tensors(path, {"a": torch.zeros(3)})
    with pytest.raises(DamagedFileError, match=r"t\.safetensors: is damaged, or does not belong"):
        read_described(described, path)
    write_json(described, {"n": 1})  # which does not say what belongs to it
    content, tensors = read_described(described, path)
    assert content == {"n": 1}
    assert torch.equal(tensors["a"], torch.zeros(3))


class Killed(BaseException):
    """The end of a process, for a test that goes on."""


@pytest.mark.parametrize("renames", range(4))
def test_a_process_killed_between_two_names_leaves_the_old_pair_or_the_new_one(tmp_path, monkeypatch, renames):
    described, path = tmp_path / "t.json", tmp_path / "t.safetensors"
    write_described(described, {"n": 1}, path, {"a": torch.ones(3)})
    replace, left = Path.replace, [renames]

    def killed(self, target):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # nobody cleans up
    with pytest.raises(Killed) if renames < 3 else contextlib.nullcontext():
        write_described(described, {"n": 2}, path, {"a": torch.full((3,), 2.0)})
    monkeypatch.undo()
    content, tensors = read_described(described, path)
    assert content["n"] == (1 if renames < 2 else 2)
    assert torch.equal(tensors["a"], torch.full((3,), float(content["n"])))
    remove_unfinished(tmp_path)
    assert read_described(described, path)[0]["n"] == content["n"]  # it is not taken for something unfinished
    write_described(described, {"n": 3}, path, {"a": torch.full((3,), 3.0)})
    assert torch.equal(read_described(described, path)[1]["a"], torch.full((3,), 3.0))
    assert names_in(tmp_path) == ["t.json", "t.safetensors"]


SAVES = """
import sys
import torch
from pathlib import Path
from anode.files import write_described

folder, first = Path(sys.argv[1]), int(sys.argv[2])
print("saving", flush=True)
for n in range(first, 10**9):
    write_described(folder / "t.json", {"n": n}, folder / "t.safetensors", {"a": torch.full((2000,), float(n))})
"""


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 2])
def test_what_is_read_while_other_processes_save_belongs_together(tmp_path, writers):
    described, path = tmp_path / "t.json", tmp_path / "t.safetensors"
    write_described(described, {"n": 0}, path, {"a": torch.zeros(2000)})
    commands = [[sys.executable, "-c", SAVES, str(tmp_path), str(i * 10**6)] for i in range(writers)]
    saving = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    try:
        for process in saving:
            process.stdout.readline()
        seen, end = set(), time.monotonic() + 60
        while len(seen) < 50 and time.monotonic() < end:
            content, tensors = read_described(described, path)
            assert torch.equal(tensors["a"], torch.full((2000,), float(content["n"])))
            seen.add(content["n"])
    finally:
        for process in saving:
            process.kill()
            process.wait()
            process.stdout.close()
    assert len(seen) == 50
    content, tensors = read_described(described, path)
    assert torch.equal(tensors["a"], torch.full((2000,), float(content["n"])))


def test_tensors_that_were_read_survive_that_their_file_is_overwritten_in_place(tmp_path):
    program = """
import sys
from pathlib import Path
from anode.files import read_tensors

path = Path(sys.argv[1])
tensors = read_tensors(path)
with path.open("wb"):
    pass  # what was mapped is no longer there: whoever looks at it gets a bus error
print(tensors["a"].sum().item())
"""
    path = write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(10**6)})
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1000000.0"), done.stderr


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
