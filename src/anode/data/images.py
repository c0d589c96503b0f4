"""Image datasets, read from their official files into memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor

from anode.checks import as_seed, describe, lookup, number, require
from anode.data.files import MissingDataError, data_root
from anode.data.sources import IMAGES, SPLITS, Source
from anode.files import DamagedFileError

__all__ = ["IMAGES", "SPLITS", "ImageData", "Source", "count", "fetch_command", "load", "require_files"]

CHUNK = 4096
"""Number of images resized at once. All of them as floats would need several times the memory."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Images and the numbers of their classes.

    Attributes:
        name: Name of the dataset.
        images: Uint8 of shape [n, channels, height, width].
        labels: Int64 of shape [n], from 0.
        classes: Number of classes.

    Example:
        >>> from anode.data.images import load
        >>> data = load("digits")
        >>> data
        ImageData('digits', 1442 images of 1x8x8, 10 classes)
        >>> data.subset(100, seed=1).resize(4)
        ImageData('digits', 100 images of 1x4x4, 10 classes)
        >>> data.scaled().shape, data.scaled().max().item()
        (torch.Size([1442, 1, 8, 8]), 1.0)
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        for name, value, dtype in (("images", self.images, torch.uint8), ("labels", self.labels, torch.int64)):
            if not (isinstance(value, Tensor) and value.dtype == dtype):
                raise TypeError(f"{name}: takes a tensor of {dtype}, got {describe(value)}")
        takes = "at least one image, of shape [n, channels, height, width]"
        require(self.images.ndim == 4 and self.images.numel() > 0, "images", self.images, takes)
        count = len(self.images)
        require(self.labels.shape == (count,), "labels", self.labels, f"a label for each image, of shape [{count}]")
        number("classes", self.classes, whole=True)
        low, high = int(self.labels.min()), int(self.labels.max())
        require(low >= 0, "labels", low, f"classes from 0 to {self.classes - 1}")
        require(high < self.classes, "labels", high, f"classes from 0 to {self.classes - 1}")

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"ImageData({self.name!r}, {len(self)} images of {size}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def subset(self, size: int, seed: int = 0) -> ImageData:
        """Return a random subset of the images, in their order.

        Args:
            size: Number of images.
            seed: Random seed of the choice.
        """
        size = number("size", size, whole=True)
        require(size <= len(self), "size", size, f"at most the {len(self)} images that there are")
        return self._chosen(self._order(seed)[:size])

    def split(self, fraction: float, seed: int = 0) -> tuple[ImageData, ImageData]:
        """Split at random into a fraction of the images and the rest, both in their order.

        Example:
            >>> train, kept = load("digits").split(0.9)
            >>> len(train), len(kept)
            (1298, 144)
        """
        size = round(fraction * len(self)) if isinstance(fraction, float) and 0 < fraction < 1 else 0
        takes = f"a number between 0 and 1 that leaves some of the {len(self)} images on either side"
        require(0 < size < len(self), "fraction", fraction, takes)
        order = self._order(seed)
        return self._chosen(order[:size]), self._chosen(order[size:])

    def part(self, mask: Tensor) -> ImageData:
        """Return the images that a mask of shape [n] selects, in their order."""
        return self._chosen(mask.nonzero()[:, 0])

    def _order(self, seed: int) -> Tensor:
        return torch.randperm(len(self), generator=torch.Generator("cpu").manual_seed(as_seed(seed)), device="cpu")

    def _chosen(self, numbers: Tensor) -> ImageData:
        chosen = numbers.sort().values
        images, labels = self.images[chosen.to(self.images.device)], self.labels[chosen.to(self.labels.device)]
        return replace(self, images=images, labels=labels)

    def resize(self, side: int) -> ImageData:
        """Return smaller images. Each new pixel is the mean of the area that it covers.

        Args:
            side: The new height and width, at most the current ones.
        """
        side = number("side", side, whole=True)
        smallest = min(self.shape[1:])
        require(side <= smallest, "side", side, f"at most {smallest}, since images are not enlarged")
        if self.shape[1:] == (side, side):
            return self
        images = self.images.new_empty(len(self), self.shape[0], side, side)
        for source, target in zip(self.images.split(CHUNK), images.split(CHUNK), strict=True):
            target.copy_(torch.nn.functional.interpolate(source.to(torch.float32), side, mode="area").round())
        return replace(self, images=images)

    def scaled(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the images as floating-point numbers from 0 to 1."""
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype: takes a floating point type, got {dtype!r}")
        return self.images.to(dtype).div_(255)


def load(name: str, split: str = "train", root: str | Path | None = None) -> ImageData:
    """Read a dataset into memory.

    Args:
        name: One of ``IMAGES``. ``digits`` comes with scikit-learn; download the others first.
        split: ``train`` or ``test``.
        root: Folder of the datasets, each in a subfolder of its own name. Defaults to the environment variable
            ``ANODE_DATA``, or else the user's cache folder; see :func:`anode.data.files.data_root`.

    Raises:
        MissingDataError: If a file is missing. It is both a ``FileNotFoundError`` and a ``ValueError``.
        DamagedFileError: If a file is malformed. A well-formed file that differs from the official one, such as a part
            of it, is read.

    Example:
        >>> from anode.data.images import load
        >>> load("digits", "test")
        ImageData('digits', 355 images of 1x8x8, 10 classes)
        >>> load("digit")
        Traceback (most recent call last):
        ValueError: name: takes one of digits, mnist, ... got 'digit'; did you mean 'digits'?
    """
    require_files(name, split, root)
    source = IMAGES[name]
    try:
        images, labels = source.read(data_root(root) / name, split)
    except DamagedFileError as error:
        command = fetch_command(name, root)
        raise DamagedFileError(f"{error}; if it is damaged, remove it and run {command}") from None
    return ImageData(name, images, labels, source.classes)


def count(name: str, split: str = "train", root: str | Path | None = None) -> int:
    """Return how many images of a dataset there are: fewer than the official number if a file holds a part of them.

    A file of the official size is not read.

    Args:
        name, split, root: As for :func:`anode.images.load`, as are the errors.
    """
    require_files(name, split, root)
    source, folder = IMAGES[name], data_root(root) / name
    official = {download.name: download.size for download in source.downloads if not download.unpacks}
    names = source.names.get(split, ())
    if names and all(each in official and _size(folder / each) == official[each] for each in names):
        return source.counts[split]
    return len(load(name, split, root))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def require_files(name: str, split: str = "train", root: str | Path | None = None) -> None:
    """Raise ``MissingDataError`` if files of a dataset are missing.

    Args:
        name, split, root: As for :func:`anode.images.load`.
    """
    source = lookup("name", name, IMAGES)
    lookup("split", split, dict.fromkeys(SPLITS))
    folder = data_root(root) / name
    missing = source.missing(folder, split)
    if missing:
        command = fetch_command(name, root)
        raise MissingDataError(f"{name}: needs {missing[0]}, which is not in {folder}; {command} downloads it")


def fetch_command(name: str, root: str | Path | None = None) -> str:
    """Return the command that downloads a dataset to the folder in which it was not found.

    Args:
        name, root: As for :func:`anode.images.load`.
    """
    return f"anode data fetch {name}" + (f" --root {quote(str(root))}" if root is not None else "")
