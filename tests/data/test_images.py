from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anode.data import tiny_imagenet
from anode.data.files import MissingDataError, data_root
from anode.data.images import IMAGES, ImageData, load
from anode.files import DamagedFileError
from helpers.official import WNIDS, jpeg, write_cifar, write_mnist, write_svhn, write_tiny

PROPERTY = settings(max_examples=50)
WRITERS = {"mnist": write_mnist, "fashion_mnist": write_mnist, "cifar10": write_cifar, "svhn": write_svhn}
each_split = pytest.mark.parametrize("split", ["train", "test"])


def some_images(count: int = 50, channels: int = 3, side: int = 12) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)
    return ImageData("some", images, torch.arange(count) % 7, 7)


# Reading


@each_split
@pytest.mark.parametrize("name", WRITERS)
def test_official_files_are_read_as_they_were_written(tmp_path, name, split):
    images, labels = WRITERS[name](tmp_path / name)[split]
    data = load(name, split, tmp_path)
    assert (data.name, data.classes, data.shape) == (name, 10, IMAGES[name].shape)
    assert (data.images.dtype, data.labels.dtype) == (torch.uint8, torch.int64)
    assert data.images.is_contiguous()
    assert np.array_equal(data.images.numpy(), images)
    assert np.array_equal(data.labels.numpy(), labels)


@each_split
def test_decompressed_idx_files_are_read_too(tmp_path, split):
    import gzip

    images, labels = write_mnist(tmp_path / "mnist")[split]
    for path in (tmp_path / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    data = load("mnist", split, tmp_path)
    assert np.array_equal(data.images.numpy(), images)
    assert np.array_equal(data.labels.numpy(), labels)


def test_the_digits_need_no_files_and_both_splits_have_all_classes_in_the_same_shares(tmp_path):
    train, test = load("digits", "train", tmp_path), load("digits", "test")
    assert len(train) + len(test) == 1797
    assert (train.shape, train.classes) == ((1, 8, 8), 10)
    assert (int(train.images.min()), int(train.images.max())) == (0, 255)
    shares = test.labels.bincount() / (test.labels.bincount() + train.labels.bincount())
    assert ((shares > 0.19) & (shares < 0.21)).all()
    assert not any(tmp_path.iterdir())
    rows = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in rows for image in test.images)


def test_tiny_imagenet_has_labels_in_the_order_of_wnids_and_grey_images_in_colour(tmp_path):
    write_tiny(tmp_path / "tiny_imagenet")
    data = load("tiny_imagenet", "train", tmp_path)
    assert (len(data), data.shape, data.classes) == (200, (3, 64, 64), 200)
    assert data.labels.tolist() == list(range(200))
    colours = data.images.float().mean((2, 3))
    assert torch.allclose(colours[::10], torch.arange(0, 200, 10)[:, None].expand(20, 3).float(), atol=2)
    assert torch.allclose(colours[1::10, 1], 255 - torch.arange(1, 200, 10.0), atol=4)
    test = load("tiny_imagenet", "test", tmp_path)
    assert test.labels.tolist() == [7, 150]
    assert test.images[1, 0].float().mean() > 190


def test_a_split_shares_the_images_out():
    digits = load("digits")
    one, other = digits.split(0.9, seed=3)
    assert (len(one), len(other)) == (1298, 144)
    both = torch.cat([one.images, other.images]).flatten(1).double()
    assert torch.equal(both.sum(0), digits.images.flatten(1).double().sum(0))
    assert torch.equal(other.images, digits.split(0.9, seed=3)[1].images)
    assert not torch.equal(other.images, digits.split(0.9, seed=4)[1].images)
    for wrong in (0.0, 1.0, 1e-9, -0.5, 1, "0.5"):
        with pytest.raises(ValueError, match="fraction: takes a number between 0 and 1 that leaves some"):
            digits.split(wrong)


def test_decoded_images_are_kept_until_the_tree_changes(tmp_path, monkeypatch):
    tree = write_tiny(tmp_path / "tiny_imagenet")
    decoded = []
    monkeypatch.setattr(
        tiny_imagenet, "decode", lambda paths, real=tiny_imagenet.decode: decoded.append(1) or real(paths)
    )
    first, second = (load("tiny_imagenet", "test", tmp_path) for _ in range(2))
    assert len(decoded) == 1
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    (tree / "val" / "images" / "val_0.JPEG").write_bytes(jpeg((1, 200, 1)))
    assert load("tiny_imagenet", "test", tmp_path).images[0, 1].float().mean() > 190
    assert len(decoded) == 2
    kept = tmp_path / "tiny_imagenet" / "decoded-test.safetensors"
    whole = kept.read_bytes()
    for n, damaged in enumerate((whole[:-9], whole[:-9] + b"damaged: ")):  # cut off; pixels that are others
        kept.write_bytes(damaged)
        assert load("tiny_imagenet", "test", tmp_path).images[0, 1].float().mean() > 190
        assert len(decoded) == 3 + n


def test_images_are_decoded_where_nothing_can_be_written(tmp_path, monkeypatch):
    write_tiny(tmp_path / "tiny_imagenet")

    def fail(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(tiny_imagenet, "write_tensors", fail)
    assert len(load("tiny_imagenet", "test", tmp_path)) == 2
    assert [path.name for path in (tmp_path / "tiny_imagenet").iterdir()] == ["tiny-imagenet-200"]


def test_a_bar_is_shown_only_on_a_terminal_and_only_when_decoding_takes_long(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.JPEG"
    path.write_bytes(jpeg(3))
    tiny_imagenet.decode([path] * 3)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    tiny_imagenet.decode([path] * 3)
    assert "decoding" not in capsys.readouterr().err
    monkeypatch.setattr("anode.data.waiting.PATIENCE", -1.0)
    tiny_imagenet.decode([path] * 3)
    assert "decoding" in capsys.readouterr().err


def test_datasets_lie_where_the_argument_says_or_the_environment_or_in_a_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANODE_DATA", str(tmp_path / "there"))
    assert data_root() == tmp_path / "there"
    assert data_root(tmp_path) == data_root(str(tmp_path)) == tmp_path
    assert data_root("~/data") == Path.home() / "data"
    monkeypatch.setenv("ANODE_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "anode"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "anode"


def test_the_environment_says_where_to_read(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist", 3)
    monkeypatch.setenv("ANODE_DATA", str(tmp_path))
    assert len(load("mnist")) == 3


@pytest.mark.parametrize("root", [3, b"data", ["data"]], ids=repr)
def test_a_root_that_is_no_path_is_refused(root):
    with pytest.raises(TypeError, match="root: takes a path, got"):
        load("mnist", root=root)


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="root: takes a folder, got the file"):
        load("mnist", root=tmp_path / "file")


def test_a_name_or_a_split_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"name: takes one of digits, .* got 'cifar'; did you mean 'cifar10'\?"):
        load("cifar")
    with pytest.raises(ValueError, match="split: takes one of train, test, got 'tests'; did you mean 'test'"):
        load("digits", "tests")


@each_split
@pytest.mark.parametrize("name", [name for name in IMAGES if name != "digits"])
def test_missing_files_are_one_line_that_says_which_where_and_what_to_run(tmp_path, monkeypatch, name, split):
    monkeypatch.setenv("ANODE_DATA", str(tmp_path))
    first = IMAGES[name].names[split][0]
    with pytest.raises(MissingDataError) as caught:
        load(name, split)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, FileNotFoundError)
    said = f"{name}: needs {first}, which is not in {tmp_path / name}; anode data fetch {name} downloads it"
    assert str(caught.value) == said
    with pytest.raises(MissingDataError, match=f"anode data fetch {name} --root "):
        load(name, split, tmp_path)


def test_one_missing_file_of_several_is_named(tmp_path):
    write_cifar(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(MissingDataError, match=r"data_batch_4\.bin"):
        load("cifar10", root=tmp_path)
    assert len(load("cifar10", "test", tmp_path)) == 4


def test_a_damaged_file_is_named_in_one_line_that_says_what_to_run(tmp_path):
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>")
    with pytest.raises(
        DamagedFileError, match=r"train-labels.*; .* remove it and run anode data fetch mnist"
    ) as caught:
        load("mnist", root=tmp_path)
    assert "\n" not in str(caught.value)


# Subsets


def test_a_subset_is_the_same_for_the_same_seed_and_another_for_another():
    data = some_images()
    first, again, other = data.subset(20, seed=1), data.subset(20, seed=1), data.subset(20, seed=2)
    assert (len(first), first.shape, first.classes, first.name) == (20, data.shape, 7, "some")
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)


def test_a_subset_keeps_labels_with_images_and_takes_none_twice():
    data = ImageData("numbered", torch.arange(100, dtype=torch.uint8).reshape(100, 1, 1, 1), torch.arange(100), 100)
    part = data.subset(30, seed=3)
    assert torch.equal(part.images.flatten().long(), part.labels)
    assert torch.equal(part.labels, part.labels.unique())


def test_a_subset_of_all_is_all_in_order():
    data = some_images()
    assert torch.equal(data.subset(len(data), seed=5).images, data.images)


def test_a_subset_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    some_images().subset(10)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("size", "seed", "said"),
    [
        (51, 0, "size: takes at most the 50 images that there are, got 51"),
        (0, 0, "size: takes a whole number above 0, got 0"),
        (2.5, 0, "size: takes a whole number above 0, got 2.5"),
        (5, -1, "seed: takes a whole number from 0 to"),
        (5, True, "seed: takes a whole number from 0 to"),
    ],
)
def test_a_subset_that_cannot_be_taken_is_refused(size, seed, said):
    with pytest.raises(ValueError, match=said):
        some_images().subset(size, seed)


# Sizes and scales


@PROPERTY
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 255))
def test_an_even_colour_stays_what_it_is_in_every_size(side, channels, value):
    images = torch.full((3, channels, 12, 12), value, dtype=torch.uint8)
    small = ImageData("even", images, torch.zeros(3, dtype=torch.int64), 1).resize(side)
    assert small.shape == (channels, side, side)
    assert (small.images == value).all()


def test_a_pixel_of_a_smaller_image_is_the_mean_of_the_area_it_covers(monkeypatch):
    monkeypatch.setattr("anode.data.images.CHUNK", 7)  # several chunks, of which the last is smaller
    data = some_images()
    small = data.resize(4)
    means = data.images.double().reshape(50, 3, 4, 3, 4, 3).mean((3, 5))
    assert small.images.dtype == torch.uint8
    assert torch.equal(small.images, means.float().round().to(torch.uint8))
    assert torch.equal(small.labels, data.labels)


def test_a_size_that_images_have_already_changes_nothing():
    data = some_images()
    assert data.resize(12) is data


@pytest.mark.parametrize(
    ("side", "said"), [(13, "at most 12, since images are not enlarged, got 13"), (0, "above 0"), (4.0, "whole number")]
)
def test_a_size_that_is_larger_or_none_is_refused(side, said):
    with pytest.raises(ValueError, match=f"side: takes .*{said}"):
        some_images().resize(side)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_scaled_images_are_from_0_to_1_and_the_dataset_stays_as_it_was(dtype):
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    data = ImageData("three", images.clone(), torch.zeros(3, dtype=torch.int64), 1)
    scaled = data.scaled(dtype)
    assert scaled.dtype == dtype
    assert scaled.flatten().tolist() == pytest.approx([0, 0.2, 1], abs=1e-3)
    assert torch.equal(data.images, images)


@pytest.mark.parametrize("dtype", [torch.uint8, "float32", None], ids=str)
def test_scaling_to_what_is_no_floating_point_type_is_refused(dtype):
    with pytest.raises(TypeError, match="dtype: takes a floating point type"):
        some_images().scaled(dtype)


# What a dataset takes


def test_a_dataset_says_what_it_is():
    assert repr(some_images()) == "ImageData('some', 50 images of 3x12x12, 7 classes)"


IMAGE, LABEL = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("images", "labels", "classes", "error", "said"),
    [
        (IMAGE.float(), LABEL, 2, TypeError, "images: takes a tensor of torch.uint8, got a tensor of shape"),
        (IMAGE.numpy(), LABEL, 2, TypeError, "images: takes a tensor of torch.uint8, got a NumPy array"),
        (IMAGE, LABEL.int(), 2, TypeError, "labels: takes a tensor of torch.int64"),
        (IMAGE, [0] * 4, 2, TypeError, "labels: takes a tensor of torch.int64, got a list"),
        (IMAGE[:, 0], LABEL, 2, ValueError, "images: takes at least one image, of shape"),
        (IMAGE[:0], LABEL[:0], 2, ValueError, "images: takes at least one image"),
        (IMAGE, LABEL[:3], 2, ValueError, r"labels: takes a label for each image, of shape \[4\]"),
        (IMAGE, LABEL[:, None], 2, ValueError, "labels: takes a label for each image"),
        (IMAGE, LABEL + 2, 2, ValueError, "labels: takes classes from 0 to 1, got 2"),
        (IMAGE, LABEL - 1, 2, ValueError, "labels: takes classes from 0 to 1, got -1"),
        (IMAGE, LABEL, 0, ValueError, "classes: takes a whole number above 0, got 0"),
        (IMAGE, LABEL, 2.0, ValueError, "classes: takes a whole number above 0, got 2.0"),
    ],
    ids=range(12),
)
def test_a_dataset_of_something_else_is_refused(images, labels, classes, error, said):
    with pytest.raises(error, match=said):
        ImageData("wrong", images, labels, classes)


def test_the_classes_of_the_tree_are_those_of_wnids(tmp_path):
    tree = write_tiny(tmp_path)
    assert tiny_imagenet.read_classes(tree / "wnids.txt") == {name: i for i, name in enumerate(WNIDS)}
