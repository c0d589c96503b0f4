"""The official files of the image datasets, one entry per dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anode.data import cifar, digits, idx, svhn, tiny_imagenet
from anode.data.files import Download
from anode.data.reading import Pair, find

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Source:
    """The source of a dataset, and its contents.

    Attributes:
        read: Reads one split from the dataset's folder.
        shape: Channels, height and width of an image.
        classes: Number of classes.
        counts: Number of images in the official splits.
        names: The files and folders that each split needs; those ending in .gz may also be decompressed.
        downloads: The official files.
        unpacked: The MD5 checksums of files that come out of an archive.
    """

    read: Callable[[Path, str], Pair]
    shape: tuple[int, int, int]
    classes: int
    counts: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    unpacked: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size of all downloads in bytes."""
        return sum(download.size for download in self.downloads)

    @property
    def checksums(self) -> dict[str, str]:
        """The official MD5 checksums of the files that are read, by name."""
        as_they_are = {download.name: download.md5 for download in self.downloads if not download.unpacks}
        return {**as_they_are, **self.unpacked}

    def missing(self, folder: Path, split: str) -> list[str]:
        """Return the files of a split that are missing."""
        return [name for name in self.names.get(split, ()) if find(folder, name) is None]


def _idx_files(address: str, *sums: tuple[str, int]) -> tuple[Download, ...]:
    """Four files: images and labels for training, then for testing."""
    names = [*idx.NAMES["train"], *idx.NAMES["test"]]
    return tuple(Download(f"{address}/{name}", *pair) for name, pair in zip(names, sums, strict=True))


IMAGES: dict[str, Source] = {
    "digits": Source(digits.read, (1, 8, 8), 10, {"train": 1442, "test": 355}),
    "mnist": Source(
        idx.read,
        (1, 28, 28),
        10,
        {"train": 60_000, "test": 10_000},
        idx.NAMES,
        _idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    "fashion_mnist": Source(
        idx.read,
        (1, 28, 28),
        10,
        {"train": 60_000, "test": 10_000},
        idx.NAMES,
        _idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
    "cifar10": Source(
        cifar.read,
        (3, 32, 32),
        10,
        {"train": 50_000, "test": 10_000},
        cifar.NAMES,
        (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
                unpacks=cifar.FOLDER,
            ),
        ),
        {
            f"{cifar.FOLDER}/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            f"{cifar.FOLDER}/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            f"{cifar.FOLDER}/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            f"{cifar.FOLDER}/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            f"{cifar.FOLDER}/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            f"{cifar.FOLDER}/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
    ),
    "svhn": Source(
        svhn.read,
        (3, 32, 32),
        10,
        {"train": 73_257, "test": 26_032},
        svhn.NAMES,
        (
            Download(
                "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                "e26dedcc434d2e4c54c9b2d4a06d8373",
                182_040_794,
            ),
            Download(
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                "eb5a983be6a315427106f1b164d9cef3",
                64_275_384,
            ),
        ),
    ),
    "tiny_imagenet": Source(
        tiny_imagenet.read,
        (3, tiny_imagenet.SIDE, tiny_imagenet.SIDE),
        tiny_imagenet.CLASSES,
        {"train": 100_000, "test": 10_000},
        tiny_imagenet.NAMES,
        (
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
                unpacks=tiny_imagenet.FOLDER,
            ),
        ),
    ),
}
"""The image datasets by name."""
