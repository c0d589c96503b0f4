import gzip
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anode.cli import app
from anode.data.files import Download
from anode.data.images import IMAGES
from helpers.refusals import refused

COMMANDS = ("list", "fetch", "check")


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """The command, in this process, with room for long lines and an empty folder for data."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ANODE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "*")

    def invoke(*arguments):
        return CliRunner().invoke(app, ["data", *map(str, arguments)])

    return invoke


@pytest.fixture
def offline(monkeypatch):
    """Addresses at which nobody answers."""
    for name, source in IMAGES.items():
        there = tuple(replace(one, url=f"http://127.0.0.1:9/{one.name}") for one in source.downloads)
        monkeypatch.setitem(IMAGES, name, replace(source, downloads=there))


def write_mnist(folder: Path, count: int = 3) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = b"\x00\x00\x08\x03" + struct.pack(">3I", count, 28, 28) + bytes(count * 28 * 28)
        labels = b"\x00\x00\x08\x01" + struct.pack(">I", count) + bytes(range(count))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def row(text: str, name: str) -> list[str]:
    """The cells of a table's row."""
    (line,) = [line for line in text.splitlines() if f" {name} " in line]
    return [cell.strip() for cell in re.split("[│┃|]", line) if cell.strip()]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []], ids=str)
def test_help_names_every_command(invoke, arguments):
    result = invoke(*arguments)
    for command in COMMANDS:
        assert f" {command} " in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_where_data_lies(invoke, command):
    result = invoke(command, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "--root" in result.stdout
    assert "ANODE_DATA" in result.stdout


def test_list_shows_every_dataset_its_size_and_whether_it_is_there(invoke, tmp_path):
    result = invoke("list")
    assert (result.exit_code, result.stderr) == (0, "")
    for name in IMAGES:
        assert row(result.stdout, name)[-1] == ("built in" if name == "digits" else "no")
    assert row(result.stdout, "mnist") == ["mnist", "60,000 + 10,000", "1x28x28", "10", "11.6 MB", "no"]
    assert f"folder: {tmp_path / 'data'}\n" in result.stdout
    assert not any(tmp_path.iterdir())
    write_mnist(tmp_path / "data" / "mnist")
    assert row(invoke("list").stdout, "mnist")[-1] == "yes"
    assert row(invoke("list", "--root", tmp_path).stdout, "mnist")[-1] == "no"
    (tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert row(invoke("list", "--root", tmp_path / "data").stdout, "mnist")[-1] == "partly"


def test_the_digits_need_not_be_fetched(invoke, tmp_path):
    result = invoke("fetch", "digits")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "digits: comes with scikit-learn\n", "")
    assert not any(tmp_path.iterdir())


def test_a_check_of_the_digits_counts_them(invoke):
    result = invoke("check", "digits")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "train: 1,442 images of 1x8x8, 10 classes",
        "test: 355 images of 1x8x8, 10 classes",
    ]


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_a_name_that_does_not_exist_is_one_line(invoke, command, tmp_path):
    refused(invoke(command, "minst"), "name: takes one of digits, mnist", "got 'minst'; did you mean 'mnist'?")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in IMAGES if name != "digits"])
def test_without_a_network_one_line_says_which_file_to_put_where(invoke, offline, tmp_path, name):
    first = IMAGES[name].downloads[0].name
    refused(
        invoke("fetch", name), f"/{first}: no connection; put {first} into {tmp_path / 'data' / name} by other means"
    )
    refused(invoke("fetch", name, "--root", tmp_path / "b"), f"into {tmp_path / 'b' / name} ")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_several_datasets_are_fetched_and_one_that_fails_keeps_no_other_from_it(invoke, offline, tmp_path):
    result = invoke("fetch", "mnist", "digits", "svhn", "digits")
    assert (result.exit_code, result.stdout) == (2, "digits: comes with scikit-learn\n")
    first, second = result.stderr.splitlines()
    assert f"into {tmp_path / 'data' / 'mnist'} by other means" in first
    assert f"into {tmp_path / 'data' / 'svhn'} by other means" in second


def test_several_datasets_are_checked_and_every_line_says_of_which_it_is(invoke, tmp_path):
    write_mnist(tmp_path / "data" / "mnist")
    (tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    result = invoke("check", "mnist", "digits")
    assert (result.exit_code, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["mnist"] * 6 + ["digits"] * 2
    assert "mnist: t10k-labels-idx1-ubyte.gz: missing" in lines
    assert lines[-1] == "digits: test: 355 images of 1x8x8, 10 classes"
    assert invoke("check", "digits", "digits").exit_code == 0


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_of_several_names_one_that_does_not_exist_is_refused_before_anything_is_begun(invoke, command, tmp_path):
    refused(invoke(command, "mnist", "digits", "svnh"), "name: takes one of", "got 'svnh'; did you mean 'svhn'?")
    refused(invoke(command, "mnist", "svhn", "--root", __file__), "root: takes a folder, got the file")
    assert not any(tmp_path.iterdir())


def test_files_that_are_not_official_are_checked_and_said_to_be_such(invoke, tmp_path):
    write_mnist(tmp_path / "data" / "mnist")
    result = invoke("check", "mnist")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("train-images-idx3-ubyte.gz: not the official file: its MD5 is ")
    assert lines[4] == "train: 3 images of 1x28x28, 10 classes; not the official split, which has 60,000"
    assert invoke("check", "mnist", "--root", tmp_path / "data").stdout == result.stdout


def test_a_check_of_damaged_and_missing_files_says_so_and_ends_with_1(invoke, tmp_path):
    write_mnist(tmp_path / "data" / "mnist")
    path = tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-10])
    (tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    result = invoke("check", "mnist")
    assert (result.exit_code, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 6
    assert "t10k-labels-idx1-ubyte.gz: missing" in lines
    assert lines[4].startswith(f"train: cannot be read: {path}: takes a whole gzip file, got one that is cut short")
    assert lines[4].endswith("remove it and run anode data fetch mnist")
    assert lines[5].endswith("anode data fetch mnist downloads it")


def test_a_root_that_is_a_file_is_one_line(invoke, tmp_path):
    (tmp_path / "file").write_text("keep me")
    for command in (["list"], ["fetch", "mnist"], ["check", "mnist"]):
        refused(invoke(*command, "--root", tmp_path / "file"), "root: takes a folder, got the file")
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_file_that_is_not_the_official_one_is_not_overwritten(invoke, offline, tmp_path):
    write_mnist(tmp_path / "data" / "mnist")
    before = {path: path.read_bytes() for path in (tmp_path / "data" / "mnist").iterdir()}
    refused(invoke("fetch", "mnist"), "train-images-idx3-ubyte.gz: takes the official file", "remove it", "or use it")
    assert {path: path.read_bytes() for path in (tmp_path / "data" / "mnist").iterdir()} == before


def test_ctrl_c_is_one_line_and_leaves_no_file(invoke, monkeypatch, tmp_path):
    def interrupted(download: Download, *_, again):
        raise KeyboardInterrupt

    monkeypatch.setattr("anode.data.stock.obtain", interrupted)
    result = invoke("fetch", "mnist", "svhn")
    assert (result.exit_code, result.stdout) == (130, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("interrupted; complete files are kept")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_name_that_begins_as_a_dataset_does_is_one_line(invoke):
    refused(invoke("check", "cifar"), "got 'cifar'; did you mean 'cifar10'?")
