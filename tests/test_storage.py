import contextlib
import errno
import json
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
    remove_unfinished,
)
from anode.storage import (
    read_described,
    read_json,
    read_tensors,
    tensors_from_bytes,
    tensors_to_bytes,
    write_described,
    write_json,
    write_sealed,
    write_tensors,
)
from helpers.folders import names_in

PROPERTY = settings(max_examples=50)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


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


@PROPERTY
@given(st.dictionaries(st.text(), json_values, max_size=4), st.data())
def test_every_digit_that_changes_in_a_sealed_file_is_noticed(tmp_path, content, data):
    path = write_sealed(tmp_path / "content.json", {**content, "mean": 12.375}, indent=1)
    whole = path.read_text()
    assert read_json(path) == read_json(path, sealed=True) == {**content, "mean": 12.375}
    digits = [place for place, letter in enumerate(whole) if letter in "12345678"]
    place = data.draw(st.sampled_from(digits))
    path.write_text(whole[:place] + str(int(whole[place]) + 1) + whole[place + 1 :])
    with pytest.raises(DamagedFileError, match=r"content\.json: is "):
        read_json(path)


def test_keys_of_a_sealed_file_that_are_numbers_are_read_as_texts(tmp_path):
    path = write_sealed(tmp_path / "content.json", {"counts": {9: 1, 10: 2}, "sizes": (1, 2)})
    assert read_json(path, sealed=True) == {"counts": {"9": 1, "10": 2}, "sizes": [1, 2]}


@pytest.mark.parametrize("content", [{"a": 1}, [1, 2], {"digest": 3}])
def test_a_file_without_a_digest_is_refused_where_it_must_have_one(tmp_path, content):
    path = write_json(tmp_path / "content.json", content)
    assert read_json(path) == content
    with pytest.raises(DamagedFileError, match="it has no digest"):
        read_json(path, sealed=True)


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
from anode.storage import write_described

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
from anode.storage import read_tensors

path = Path(sys.argv[1])
tensors = read_tensors(path)
with path.open("wb"):
    pass  # what was mapped is no longer there: whoever looks at it gets a bus error
print(tensors["a"].sum().item())
"""
    path = write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(10**6)})
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1000000.0"), done.stderr
