import gzip
import io
import math
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from anode.data.cifar import read_batch
from anode.data.idx import read_idx
from anode.data.images import load
from anode.data.svhn import read_mat
from anode.data.tiny_imagenet import read_jpeg
from anode.files import DamagedFileError
from helpers.official import WNIDS, idx, jpeg, mat, noise, write_cifar, write_mnist, write_tiny

PROPERTY = settings(max_examples=60)

IDX_LABELS = idx(np.arange(50, dtype=np.uint8) % 10)
IDX_IMAGES = idx(noise(3, 28, 28))
ONE_TO_TEN = np.arange(1, 11, dtype=np.uint8)
MAT = {kind: mat(noise(10, 3, 32, 32), ONE_TO_TEN, kind == "compressed") for kind in ("plain", "compressed")}

positions = st.floats(0, 1, exclude_max=True)
each_kind_of_mat = pytest.mark.parametrize("kind", MAT)


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refused(read, path: Path, *words: str) -> None:
    """Fails unless reading raises an error of one line that names the file."""
    with pytest.raises(DamagedFileError) as caught:
        read(path)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"{path}: takes ")
    assert ", got " in said
    for word in words:
        assert word in said
    assert caught.value.__cause__ is None


def read_images(path: Path) -> torch.Tensor:
    return read_idx(path, (28, 28))


# idx


@PROPERTY
@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=3, max_side=9)), st.booleans())
def test_idx_files_are_read_as_they_were_written(tmp_path, values, zipped):
    path = put(tmp_path / "values", gzip.compress(idx(values)) if zipped else idx(values))
    found = read_idx(path, values.shape[1:])
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), values)


@PROPERTY
@given(positions, st.booleans(), st.booleans())
def test_every_cut_of_an_idx_file_is_noticed(tmp_path, position, zipped, images):
    whole = IDX_IMAGES if images else IDX_LABELS
    whole = gzip.compress(whole) if zipped else whole
    path = put(tmp_path / "cut", whole[: int(position * len(whole))])
    refused(read_images if images else read_idx, path)


@PROPERTY
@given(st.binary(max_size=200))
def test_bytes_that_are_no_idx_file_are_never_anything_but_an_error(tmp_path, content):
    for start in (b"", b"\x1f\x8b", b"\x1f\x8b\x08", b"\x00\x00\x08\x03"):
        refused(read_images, put(tmp_path / "garbage", start + content))


@PROPERTY
@given(positions, st.integers(1, 255))
def test_every_changed_byte_of_the_content_of_a_gzip_file_is_noticed(tmp_path, position, change):
    content = bytearray(gzip.compress(IDX_LABELS))
    at = 10 + int(position * (len(content) - 10))  # behind gzip's header, which has parts that mean nothing
    content[at] ^= change
    refused(read_idx, put(tmp_path / "changed.gz", bytes(content)))


def test_more_than_the_header_promises_is_noticed(tmp_path):
    for content in (IDX_LABELS + b"\x00", gzip.compress(IDX_LABELS + b"\x00")):
        refused(read_idx, put(tmp_path / "more", content), "the 50 bytes that its header promises, got more")
    refused(read_idx, put(tmp_path / "more", gzip.compress(IDX_LABELS) + b"garbage"), "gzip")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["an idx file", "got an empty file"]),
        (b"<html>not here</html>", ["an idx file", "b'<htm'"]),
        (pickle.dumps([1, 2]), ["an idx file"]),
        (IDX_LABELS, ["takes images, got labels", "swapped"]),
        (idx(noise(3, 28, 28, 3)), ["takes images, got 4 dimensions"]),
        (idx(noise(3, 27, 28)), ["images of 28x28", "images of 27x28"]),
        (idx(noise(0, 28, 28)), ["1 to 1,000,000 images", "promises 0"]),
        (b"\x00\x00\x0d\x03" + IDX_IMAGES[4:], ["an idx file of bytes"]),
        (b"\x00\x00\x08\x03" + struct.pack(">3I", 2**32 - 1, 28, 28), ["promises 4,294,967,295"]),
        (IDX_IMAGES[:10], ["a whole header, got one that is cut short"]),
    ],
    ids=["empty", "html", "pickle", "labels", "colour", "shape", "none", "floats", "absurd", "header"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_files_of_something_else_are_said_to_be_what_they_are(tmp_path, content, words, zipped):
    refused(read_images, put(tmp_path / "images", gzip.compress(content) if zipped else content), *words)


def test_a_file_that_would_grow_without_end_is_read_no_further_than_promised(tmp_path):
    bomb = gzip.compress(IDX_LABELS[:8] + bytes(50_000_000))
    assert len(bomb) < 100_000
    refused(read_idx, put(tmp_path / "bomb.gz", bomb), "the 50 bytes", "got more")


def test_labels_where_images_should_be_are_refused_by_load(tmp_path):
    write_mnist(tmp_path / "mnist")
    names = [tmp_path / "mnist" / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    contents = [path.read_bytes() for path in names]
    for path, content in zip(names, reversed(contents), strict=True):
        path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"train-images.*takes images, got labels.*swapped"):
        load("mnist", root=tmp_path)


def test_labels_of_the_other_split_are_refused_by_load(tmp_path):
    write_mnist(tmp_path / "mnist")
    put(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", gzip.compress(IDX_LABELS))
    said = r"train-labels.*a label for each of the 20 images in train-images-idx3-ubyte.gz, got 50 labels"
    with pytest.raises(DamagedFileError, match=said):
        load("mnist", root=tmp_path)


def test_labels_that_no_class_has_are_refused_by_load(tmp_path):
    write_mnist(tmp_path / "mnist")
    put(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", gzip.compress(idx(np.arange(20, dtype=np.uint8))))
    said = r"train-labels.*takes labels from 0 to 9, got 10 \(10 of 20 are out of range\)"
    with pytest.raises(DamagedFileError, match=said):
        load("mnist", root=tmp_path)


# CIFAR-10


@PROPERTY
@given(positions)
def test_a_cut_of_a_cifar_file_is_noticed_unless_whole_records_are_left(tmp_path, position):
    whole = bytes(3073 * 3)
    left = int(position * len(whole))
    path = put(tmp_path / "batch.bin", whole[:left])
    if left and left % 3073 == 0:
        assert len(read_batch(path)[0]) == left // 3073
    else:
        refused(read_batch, path, "binary version of CIFAR-10", f"{left:,} bytes")


def test_a_cifar_file_of_another_kind_is_refused(tmp_path):
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    refused(read_batch, put(path, bytes(3074 * 10)), "30,740 bytes")  # CIFAR-100 has two labels
    refused(read_batch, put(path, b"\xff" * 3073), "labels from 0 to 9, got 255 (1 of 1 are out of range)")
    refused(read_batch, put(path, pickle.dumps({"data": bytes(9999)})))


def test_a_cifar_file_of_absurd_size_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(3073 * 1_000_001)  # takes no space on the disk
    refused(read_batch, path, "3,073,003,073 bytes")


# SVHN


@each_kind_of_mat
def test_label_10_is_the_digit_0(tmp_path, kind):
    images, labels = read_mat(put(tmp_path / "a.mat", MAT[kind]))
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert np.array_equal(images.numpy(), noise(10, 3, 32, 32))


@pytest.mark.parametrize("labels", [ONE_TO_TEN.astype(float), ONE_TO_TEN], ids=["double", "uint8"])
def test_labels_may_be_stored_as_numbers_of_either_kind(tmp_path, labels):
    assert read_mat(put(tmp_path / "a.mat", mat(noise(10, 3, 32, 32), labels)))[1].tolist()[-2:] == [9, 0]


@each_kind_of_mat
@PROPERTY
@given(positions)
def test_every_cut_of_a_mat_file_is_noticed(tmp_path, kind, position):
    whole = MAT[kind]
    refused(read_mat, put(tmp_path / "cut.mat", whole[: int(position * len(whole))]))


@each_kind_of_mat
def test_every_cut_near_the_ends_of_a_mat_file_is_noticed(tmp_path, kind):
    whole = MAT[kind]
    for length in (*range(0, 260, 3), *range(len(whole) - 120, len(whole))):
        refused(read_mat, put(tmp_path / "cut.mat", whole[:length]))


@pytest.mark.parametrize(
    ("at", "kind", "words"),
    [
        (136, 7, "at most 32 whole numbers, got 2 of float32"),  # flags that are not whole numbers
        (136, 99, "a part of kind 99"),
        (152, 7, "of float32"),  # and a shape
        (156, 0, "a part of kind 5 and 0 bytes"),
    ],
)
def test_a_mat_file_of_odd_flags_or_shapes_is_refused(tmp_path, at, kind, words):
    content = bytearray(MAT["plain"])
    content[at : at + 4] = kind.to_bytes(4, "little")
    refused(read_mat, put(tmp_path / "odd.mat", bytes(content)), words)


@each_kind_of_mat
@settings(PROPERTY, max_examples=200)
@given(st.integers(0, 199), st.booleans(), st.integers(1, 255))
def test_a_changed_byte_of_a_mat_file_is_read_or_refused_and_never_anything_else(tmp_path, kind, at, end, change):
    content = bytearray(MAT[kind])
    content[-1 - at if end else at] ^= change
    path = put(tmp_path / "changed.mat", bytes(content))
    try:
        images, labels = read_mat(path)
    except DamagedFileError:
        refused(read_mat, path)
    else:
        assert images.shape == (10, 3, 32, 32)
        assert 0 <= labels.min() <= labels.max() <= 9


def version_7_3() -> bytes:
    return b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["begins with MATLAB 5.0 MAT-file, got an empty file"]),
        (version_7_3(), ["begins with MATLAB 5.0 MAT-file", "MATLAB 7.3"]),
        (b"\x89HDF\r\n\x1a\n" + bytes(500), ["begins with MATLAB 5.0"]),
        (pickle.dumps({"X": 1}), ["begins with MATLAB 5.0"]),
        (b"MATLAB 5.0 MAT-file".ljust(126) + b"??", ["begins with MATLAB 5.0"]),
        (MAT["plain"][:128], ["the arrays X and y, got none"]),
        (MAT["plain"][:128] + struct.pack("<II", 9, 8) + bytes(8), ["an element of kind 9"]),
        (mat(noise(2, 3, 32, 32), ONE_TO_TEN), ["y of shape [2, 1]", "[10, 1] and uint8"]),
        (mat(noise(10, 1, 32, 32), ONE_TO_TEN), ["X of shape [32, 32, 3, n]", "[32, 32, 1, 10]"]),
        (mat(noise(10, 3, 16, 16), ONE_TO_TEN), ["X of shape [32, 32, 3, n]", "[16, 16, 3, 10]"]),
        (mat(noise(32, 32, 3, 10).transpose(2, 1, 0, 3), ONE_TO_TEN), ["X of shape [32, 32, 3, n]"]),
        (mat(noise(10, 3, 32, 32) / 255, ONE_TO_TEN), ["uint8", "and float64"]),
        (mat(noise(10, 3, 32, 32), ONE_TO_TEN - 1), ["labels from 1 to 10", "got 0 (1 of 10 are out of range)"]),
        (mat(noise(10, 3, 32, 32), ONE_TO_TEN + 0.5), ["labels from 1 to 10", "got 1.5 (10 of 10"]),
        (mat(noise(10, 3, 32, 32), np.full(10, math.nan)), ["labels from 1 to 10", "got nan"]),
        (mat(noise(10, 3, 32, 32), ONE_TO_TEN.astype(object)), ["y as an array of uint8 or double"]),
        (mat(noise(10, 3, 32, 32), ONE_TO_TEN.astype(complex)), ["y as an array of uint8 or double, not complex"]),
    ],
    ids=range(17),
)
def test_mat_files_of_something_else_are_said_to_be_what_they_are(tmp_path, content, words):
    refused(read_mat, put(tmp_path / "a.mat", content), *words)


def test_arrays_besides_the_two_are_ignored(tmp_path):
    content = mat(noise(10, 3, 32, 32), ONE_TO_TEN, note="hello", more=np.arange(5.0))
    assert len(read_mat(put(tmp_path / "a.mat", content))[1]) == 10


@pytest.mark.parametrize("promised", [50, 2**32 - 1])
def test_a_mat_file_that_would_grow_without_end_is_read_no_further_than_promised(tmp_path, promised):
    bomb = zlib.compress(struct.pack("<II", 14, promised) + bytes(50_000_000))
    content = MAT["plain"][:128] + struct.pack("<II", 15, len(bomb)) + bomb
    refused(read_mat, put(tmp_path / "bomb.mat", content), f"{promised:,}" if promised > 50 else "the 50 bytes")


# Tiny ImageNet


def test_a_grey_jpeg_becomes_a_coloured_one(tmp_path):
    pixels = read_jpeg(put(tmp_path / "a.JPEG", jpeg(77)))
    assert pixels.shape == (64, 64, 3)
    assert pixels.dtype == np.uint8
    assert (abs(pixels.astype(int) - 77) <= 1).all()


def noisy_jpeg() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(file, "JPEG")
    return file.getvalue()


@PROPERTY
@given(st.floats(0, 0.99))
def test_every_cut_of_a_jpeg_is_noticed(tmp_path, position):
    whole = noisy_jpeg()
    refused(read_jpeg, put(tmp_path / "cut.JPEG", whole[: int(position * len(whole))]), "a JPEG")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["a JPEG"]),
        (b"<html>", ["a JPEG"]),
        (jpeg((1, 2, 3), kind="PNG"), ["a JPEG"]),
        (jpeg((1, 2, 3), side=65), ["an image of 64x64, got one of 65x65"]),
        (jpeg(3, side=3000), ["an image of 64x64, got one of 3000x3000"]),
    ],
    ids=["empty", "html", "png", "larger", "enormous"],
)
def test_images_of_another_kind_or_size_are_refused(tmp_path, content, words):
    refused(read_jpeg, put(tmp_path / "a.JPEG", content), *words)


def test_a_damaged_image_of_many_is_named(tmp_path):
    tree = write_tiny(tmp_path / "tiny_imagenet")
    path = tree / "train" / WNIDS[123] / "images" / f"{WNIDS[123]}_0.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DamagedFileError, match=f"{path.name}: takes a JPEG"):
        load("tiny_imagenet", root=tmp_path)


def without_class(tree: Path) -> None:
    for path in (tree / "train" / WNIDS[3] / "images").iterdir():
        path.unlink()


def rewrite(name: str, change) -> object:
    """A change to a text file of the tree."""
    return lambda tree: (tree / name).write_text(change((tree / name).read_text()))


NOTES = "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("split", "change", "words"),
    [
        ("train", rewrite("wnids.txt", lambda text: text[:800]), ["wnids.txt", "200 different names"]),
        ("train", rewrite("wnids.txt", lambda text: text.replace(WNIDS[1], WNIDS[0])), ["199 in 200 lines"]),
        ("train", rewrite("wnids.txt", lambda text: text.replace(WNIDS[1], "../../etc")), ["'../../etc'"]),
        ("train", rewrite("wnids.txt", lambda text: text.replace(WNIDS[1], "n99999999")), [f"{WNIDS[1]} besides"]),
        ("train", lambda tree: (tree / "wnids.txt").write_bytes(b"\xff\xfe\x00"), ["wnids.txt", "a text file"]),
        ("train", without_class, [WNIDS[3], "a folder of .JPEG files, got none"]),
        ("test", rewrite(NOTES, lambda text: text.replace("val_0.JPEG", "../a.JPEG")), ["'../a.JPEG"]),
        ("test", rewrite(NOTES, lambda text: text.replace(WNIDS[7], "n99999999")), ["n99999999"]),
        ("test", rewrite(NOTES, lambda text: text.splitlines()[0]), ["each of the 2 images", "got 1"]),
        ("test", rewrite(NOTES, lambda text: text + f"val_9.JPEG\t{WNIDS[7]}"), ["got 3, of which 2 are there"]),
        ("test", rewrite(NOTES, lambda text: text * 2), ["no image twice"]),
        ("test", rewrite(NOTES, lambda text: "\x00\x01 garbage"), ["lines of an image and its class"]),
        ("test", lambda tree: (tree / "val" / "images" / "val_1.JPEG").unlink(), ["each of the 1 images", "got 2"]),
    ],
    ids=range(13),
)
def test_a_tree_that_is_not_in_order_is_refused(tmp_path, split, change, words):
    change(write_tiny(tmp_path / "tiny_imagenet"))
    with pytest.raises(DamagedFileError) as caught:
        load("tiny_imagenet", split, tmp_path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_files_that_systems_leave_in_folders_are_ignored(tmp_path):
    tree = write_tiny(tmp_path / "tiny_imagenet")
    (tree / "train" / ".hidden").mkdir()
    (tree / "train" / "notes.txt").write_text("")
    (tree / "val" / "images" / "._val_0.JPEG").write_bytes(b"")
    assert len(load("tiny_imagenet", "train", tmp_path)) == 200
    assert len(load("tiny_imagenet", "test", tmp_path)) == 2
