"""Pictures in folders: a folder for each class, or such folders in ``train`` and ``test``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anode.checks import number, require
from anode.data.images import ImageData
from anode.extras import needs

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
SPLITS = ("train", "test")
LARGEST = 64
"""Height and width up to which pictures of one size stay as they are, unless the user asks for a size."""
SMALL = 32
"""The height and width that others get."""
MOST_BYTES = 2**31
"""What all pictures together may take in memory."""
GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
"""Pillow's names for pictures of 8 bits per value."""

Tell = Callable[[int], None]
"""Told how many further pictures were read."""


@dataclass(frozen=True)
class Pictures:
    """The pictures of a folder.

    Attributes:
        train: Those to train on.
        test: Those of the folder ``test``; ``None`` if there is none.
        classes: The names of the classes.
        sha256: A checksum of all of them, as they are given to a model.
        notes: What was done with them, in lines.
    """

    train: ImageData
    test: ImageData | None
    classes: tuple[str, ...]
    sha256: str
    notes: tuple[str, ...]


def read_pictures(folder: str | Path, side: int | None = None, tell: Tell | None = None) -> Pictures:
    """Read a folder of pictures into memory.

    Args:
        folder: It has a folder for each class with PNG and JPEG files, or folders ``train`` and ``test`` that have.
        side: Height and width that all get. By default they stay as they are if they have one size of at most 64, and
            get 32 otherwise.
        tell: Is told how many further pictures were read.

    Raises:
        ValueError: The folder has something else in it; the message says what to do.
    """
    needs("reading pictures", "plots", "pillow")
    root = Path(folder)
    found, ignored = _by_class(root)
    classes = tuple(sorted({name for _, name, _ in found}))
    _check_classes(root, found, classes)
    shape, notes = _shape([path for path, _, _ in found], number("side", side, whole=True, optional=True), len(found))
    images = torch.empty((len(found), *shape), dtype=torch.uint8)
    for i, (path, _, _) in enumerate(found):
        images[i] = read_picture(path, shape)
        if tell is not None:
            tell(1)
    labels = torch.tensor([classes.index(name) for _, name, _ in found])
    is_test = torch.tensor([split == "test" for _, _, split in found])
    parts = [
        ImageData(root.name, images[mask], labels[mask], len(classes)) for mask in (~is_test, is_test) if mask.any()
    ]
    if ignored:
        notes.append(f"{ignored} files that are neither PNG nor JPEG are ignored")
    checksum = sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    return Pictures(parts[0], parts[1] if len(parts) > 1 else None, classes, checksum, tuple(notes))


def _by_class(root: Path) -> tuple[list[tuple[Path, str, str]], int]:
    """The pictures, each with its class and its split, in order; and how many other files there are."""
    top = _folders(root)
    if {path.name for path in top} == set(SPLITS):
        classes = [(path, path.parent.name) for split in SPLITS for path in _folders(root / split)]
    else:
        classes = [(path, "train") for path in top]
    if not classes:
        direct = [path for path in root.iterdir() if path.suffix.lower() in SUFFIXES]
        what = f"has {len(direct)} pictures and no folders" if direct else "has no folders"
        raise ValueError(f"{root}: takes a folder for each class, with its pictures, but it {what}; put them into some")
    found, ignored = [], 0
    for folder, split in classes:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
        ignored += len(files) - len(pictures)
        found += [(path, folder.name, split) for path in pictures]
        if not pictures:
            raise ValueError(
                f"{folder}: takes pictures of its class, PNG or JPEG, but it has none; add some or remove it"
            )
    return found, ignored


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _check_classes(root: Path, found: Sequence[tuple[Path, str, str]], classes: Sequence[str]) -> None:
    """Refuse a single class, classes that only the test has, and those with one picture."""
    require(len(classes) > 1, str(root), classes[0], "folders of at least two classes")
    counts = Counter((split, name) for _, name, split in found)
    has_test = any(split == "test" for split, _ in counts)
    for name in classes:
        if not counts["train", name]:
            raise ValueError(f"{root / 'test' / name}: is a class that {root / 'train'} does not have; add it there")
        if counts["train", name] == 1 and not has_test:
            path = next(path for path, each, _ in found if each == name)
            raise ValueError(f"{path}: is the only picture of class {name!r}, which takes at least 2; add some")


def _shape(paths: Sequence[Path], side: int | None, count: int) -> tuple[tuple[int, int, int], list[str]]:
    """Channels, height and width that all pictures get, and what is done to them in words."""
    looks = [_look(path) for path in paths]
    sizes = {size for size, _ in looks}
    channels = 3 if any(is_colour for _, is_colour in looks) else 1
    width, height = next(iter(sizes))
    if side is None and len(sizes) == 1 and max(width, height) <= LARGEST:
        return (channels, height, width), []
    new = side or SMALL
    if sizes == {(new, new)}:
        return (channels, new, new), []
    small, large = min(sizes), max(sizes)
    were = f"{width}x{height}" if len(sizes) == 1 else f"{small[0]}x{small[1]} to {large[0]}x{large[1]}"
    takes = f"a smaller side: {count} pictures of {channels}x{new}x{new} take more than {MOST_BYTES / 1e9:.0f} GB"
    require(count * channels * new * new <= MOST_BYTES, "side", new, takes)
    how = "" if side else "; --side changes that"
    return (channels, new, new), [f"pictures of {were} are resized to {new}x{new}{how}"]


def _look(path: Path) -> tuple[tuple[int, int], bool]:
    """Width and height of a picture, and whether it has colours; only the beginning of the file is read."""
    with _opened(path) as picture:
        return picture.size, picture.mode in COLOUR


def read_picture(path: Path, shape: Sequence[int]) -> Tensor:
    """Return a picture as uint8 of shape [channels, height, width], which it is converted and resized to."""
    from PIL import Image

    channels, height, width = shape
    with _opened(path) as picture:
        try:
            made = picture.convert("RGB" if channels == 3 else "L")
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{path}: is a damaged picture ({error}); replace or remove it") from None
    if made.size != (width, height):
        made = made.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return torch.from_numpy(np.array(made).reshape(height, width, channels)).permute(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    """A picture whose pixels have not been read yet."""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(path, formats=("PNG", "JPEG"))
    except UnidentifiedImageError:
        raise ValueError(
            f"{path}: is not a picture, PNG or JPEG, whatever its name says; replace or remove it"
        ) from None
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system cannot open the file
            raise
        raise ValueError(f"{path}: is a damaged picture ({error}); replace or remove it") from None
    if picture.mode not in GREY + COLOUR:  # which Pillow would cut off at 255
        picture.close()
        raise ValueError(f"{path}: has pixels of type {picture.mode}, not of 8 bits; convert it")
    return picture
